"""A limited queue on Redis: workers and the server die with -9, and no limit is ever exceeded."""

import multiprocessing
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import bide
from bide.engines.registry import opener
from bide.model.commands import Configure
from tests.effort import effort
from tests.servers import RedisServer
from tests.system.faults.limited import LIMIT, PER_GROUP, QUEUE, violations, work
from tests.system.faults.test_redis_kills import mend

pytestmark = pytest.mark.process

PROCESSES = 4
MESSAGES = effort(500, 5_000)
KILLS = 6
PATIENCE = 60.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Provide a server that survives kills with its data, and one for the board."""
    for name in ("store", "board"):
        (tmp_path / name).mkdir()
    store = RedisServer(tmp_path / "store", appendonly="yes", appendfsync="always")
    board = RedisServer(tmp_path / "board")
    yield store, board
    store.stop()
    board.stop()


def test_no_limit_is_exceeded_whatever_dies(servers: tuple[RedisServer, RedisServer]) -> None:
    store, board = servers
    url = f"{store.url}?timeout=15s"
    engine = opener(url)()
    engine.execute([Configure(QUEUE, limit=LIMIT, group_limit=PER_GROUP)])
    chance = random.Random(7)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.system.faults.limited"])
    crew: list[BaseProcess] = []

    def bear() -> None:
        name = f"w{len(crew)}-{chance.randrange(1 << 20)}"
        arguments = (url, board.path, name, chance.randrange(1 << 30))
        crew.append(context.Process(target=work, args=arguments, daemon=True))
        crew[-1].start()

    with bide.Queue(QUEUE, url) as orders:
        orders.put_many(
            [
                bide.NewMessage(body=number, group=chance.choice("aaaabcd"), attempts=10_000)
                for number in range(MESSAGES)
            ]
        )
        for _ in range(PROCESSES):
            bear()
        deadline, killed = time.monotonic() + PATIENCE, 0
        try:
            while orders.counts().sizes.total:
                assert time.monotonic() < deadline, orders.counts()
                assert all(process.is_alive() for process in crew), "a worker did not go on"
                if killed < KILLS:
                    time.sleep(chance.uniform(0.05, 0.4))  # a random point of what they are at
                    victim = crew.pop(chance.randrange(PROCESSES))
                    victim.kill()
                    victim.join()
                    bear()
                    killed += 1
                    if killed % 2 == 0:
                        store.stop(signal.SIGKILL)
                        mend(store)
                        store.start(wait_for_data=False)
                else:
                    time.sleep(0.02)
        finally:
            for process in crew:
                process.kill()
                process.join()
        counts = orders.counts()
        assert counts.flow.acked == counts.flow.put == MESSAGES
        assert orders.audit()
    assert killed == KILLS
    assert violations(board.client()) == []
    engine.close()
