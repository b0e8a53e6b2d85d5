"""Puts with `latest` race with workers: after each put, its body or a newer one is delivered."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import bide
from tests.servers import PATIENCE

IDS = ("a", "b")
PUTS = 60


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    redis_url: Callable[[], str],
    postgres_url: Callable[[], str],
) -> str:
    made = {"redis": redis_url, "postgres": postgres_url}.get(request.param)
    return made() if made is not None else f"sqlite:///{tmp_path}/bide.db?durability=normal"


def test_the_last_change_is_always_delivered_after_it(store: str) -> None:
    delivered: list[tuple[str, int]] = []
    done = threading.Event()

    def put(id: str) -> None:
        with bide.Queue("index", store) as index:
            for number in range(PUTS):
                outcome = index.put(number, id=id, on_conflict="replace", delay=0, latest=0)
                assert outcome.done

    def work() -> None:
        with bide.Queue("index", store) as index:
            while not (done.is_set() and index.counts().sizes.total == 0):
                for number, delivery in enumerate(index.claim(2, lease=60, wait=0.05)):
                    delivered.append((delivery.id, delivery.body))
                    if number == 0 and delivery.body % 3 == 0 and delivery.attempt == 1:
                        delivery.retry()
                    else:
                        delivery.ack()

    bide.Queue("index", store).close()
    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work) for _ in range(2)]
        putting = [threads.submit(put, id) for id in IDS]
        try:
            for one in putting:
                one.result(PATIENCE)
        finally:
            done.set()
        for one in working:
            one.result(PATIENCE)
    last = dict(delivered)
    assert last == dict.fromkeys(IDS, PUTS - 1)
    with bide.Queue("index", store) as index:
        assert index.audit()
