"""Limited queues: workers and servers die with -9, and no limit is ever exceeded."""

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
from tests.system.faults.test_kills import mend

pytestmark = pytest.mark.process

IN_FILE, ON_REDIS = effort(200, 3_000), effort(500, 5_000)
"""How many messages are worked on."""
PATIENCE = 60.0


def test_no_limit_is_exceeded_in_a_file_whoever_dies(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db?durability=normal"
    chance = random.Random(7)
    board = RedisServer(tmp_path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.system.faults.limited"])
    crew: list[BaseProcess] = []

    def bear() -> None:
        arguments = (url, board.path, f"w{chance.randrange(1 << 20)}", chance.randrange(1 << 30))
        crew.append(context.Process(target=work, args=arguments, daemon=True))
        crew[-1].start()

    try:
        with bide.Queue(QUEUE, url, limit=LIMIT, group_limit=PER_GROUP) as orders:
            orders.put_many(
                bide.NewMessage(body=number, group=chance.choice("aaaabcd"), attempts=10_000)
                for number in range(IN_FILE)
            )
            for _ in range(3):
                bear()
            deadline = time.monotonic() + PATIENCE
            for part in range(1, 3 + 1):  # one dies at each quarter of the work
                while orders.counts().flow.acked < IN_FILE * part // (3 + 1):
                    assert time.monotonic() < deadline, orders.counts()
                    time.sleep(0.01)
                victim = crew.pop(chance.randrange(3))
                victim.kill()
                victim.join()
                bear()
            while orders.counts().sizes.total:
                assert time.monotonic() < deadline, orders.counts()
                time.sleep(0.01)
            assert orders.audit()
        assert violations(board.client()) == []
    finally:
        for process in crew:
            process.kill()
            process.join()
        board.stop()


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


def test_no_limit_is_exceeded_on_redis_whatever_dies(
    servers: tuple[RedisServer, RedisServer],
) -> None:
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
                for number in range(ON_REDIS)
            ]
        )
        for _ in range(4):
            bear()
        deadline, killed = time.monotonic() + PATIENCE, 0
        try:
            while orders.counts().sizes.total:
                assert time.monotonic() < deadline, orders.counts()
                assert all(process.is_alive() for process in crew), "a worker did not go on"
                if killed < 6:
                    time.sleep(chance.uniform(0.05, 0.4))  # a random point of what they are at
                    victim = crew.pop(chance.randrange(4))
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
        assert counts.flow.acked == counts.flow.put == ON_REDIS
        assert orders.audit()
    assert killed == 6
    assert violations(board.client()) == []
    engine.close()
