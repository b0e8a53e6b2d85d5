"""A limited queue in a file: workers die with -9, and no limit is ever exceeded."""

import multiprocessing
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import bide
from tests.effort import effort
from tests.servers import RedisServer
from tests.system.faults.limited import LIMIT, PER_GROUP, QUEUE, violations, work

pytestmark = pytest.mark.process

PROCESSES = 3
MESSAGES = effort(200, 3_000)
KILLS = 3
PATIENCE = 60.0


def test_no_limit_is_exceeded_by_many_processes(tmp_path: Path) -> None:
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
                for number in range(MESSAGES)
            )
            for _ in range(PROCESSES):
                bear()
            deadline = time.monotonic() + PATIENCE
            for part in range(1, KILLS + 1):  # one dies at each quarter of the work
                while orders.counts().flow.acked < MESSAGES * part // (KILLS + 1):
                    assert time.monotonic() < deadline, orders.counts()
                    time.sleep(0.01)
                victim = crew.pop(chance.randrange(PROCESSES))
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
