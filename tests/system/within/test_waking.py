"""On SQLite, what a transaction puts wakes other processes, whatever library commits it."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import bide
from bide.engines.port import Notifier
from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Claim
from bide.model.ended import message_hint
from bide.model.replies import Claimed
from tests.system.within.libraries import ASYNCHRONOUS, BLOCKING, Made, file_of


class OtherProcess:
    """What another process does: it listens, and claims when it gets a hint."""

    def __init__(self, url: str) -> None:
        self._engine = SqliteEngine(file_of(url))
        notifier = self._engine.notifier()
        assert notifier is not None
        self.notifier: Notifier = notifier

    def claim(self) -> list[str]:
        (reply,) = self._engine.execute([Claim("orders", 9, 60_000, "other")])
        assert isinstance(reply, Claimed)
        return [message.id for message in reply.messages]

    def close(self) -> None:
        self._engine.close()


@contextmanager
def other_process(url: str) -> Iterator[OtherProcess]:
    other = OtherProcess(url)
    yield other
    other.close()


SQLITE = [made for kind, made in BLOCKING if kind == "sqlite"]


@pytest.mark.parametrize("made", SQLITE, ids=[made.__name__ for made in SQLITE])
def test_a_claim_that_is_woken_gets_the_message_with_the_commit(
    made: Made, url_of: Callable[[str], str]
) -> None:
    url = url_of("sqlite")
    with bide.Queue("orders", url) as orders:
        orders.resume()
        with other_process(url) as other, ThreadPoolExecutor(1) as threads:
            user = made(url)
            user.begin()
            outcome = orders.put(1, id="a", within=user.within)
            assert other.notifier.listen() == [("orders", outcome.due)]
            claiming = threads.submit(other.claim)
            user.commit()
            assert claiming.result(60) == ["a"]
            user.close()


def test_the_same_of_an_async_library(url_of: Callable[[str], str]) -> None:
    url = url_of("sqlite")
    made = ASYNCHRONOUS["session-aiosqlite"][1]

    async def main(other: OtherProcess) -> None:
        async with bide.AsyncQueue("orders", url) as orders:
            await orders.resume()
            user = await made(url)
            await user.begin()
            outcome = await orders.put(1, id="a", within=user.within)
            hints = await asyncio.to_thread(other.notifier.listen)
            assert ("orders", outcome.due) in hints
            claiming = asyncio.create_task(asyncio.to_thread(other.claim))
            await user.commit()
            assert await claiming == ["a"]
            await user.close()

    with bide.Queue("orders", url) as orders:
        orders.resume()
        with other_process(url) as other:
            asyncio.run(main(other))


def test_an_ack_wakes_those_who_wait_for_its_result_and_its_place(
    url_of: Callable[[str], str],
) -> None:
    url = url_of("sqlite")
    with bide.Queue("orders", url, result_ttl="1h", limit=1) as orders:
        orders.put_many([bide.NewMessage(1, id=id) for id in "ab"])
        (delivery,) = orders.claim(lease=60)
        with other_process(url) as other:
            user: Any = SQLITE[0](url)
            user.begin()
            delivery.ack("done", within=user.within)
            hinted = dict(other.notifier.listen())
            assert hinted.keys() == {"orders", message_hint("orders", delivery.id)}
            user.commit()
            assert len(other.claim()) == 1
            user.close()


def test_what_changes_nothing_and_what_nobody_listens_to_sends_nothing(
    url_of: Callable[[str], str],
) -> None:
    url = url_of("sqlite")
    with bide.Queue("orders", url) as orders:
        user: Any = SQLITE[0](url)
        user.begin()
        assert orders.put(1, id="a", within=user.within)
        user.commit()
        with other_process(url) as other:
            user.begin()
            assert not orders.cancel("no such message", within=user.within)
            user.commit()
            assert orders.put(1, id="b", within=user.within)
            assert [queue for queue, _ in other.notifier.listen()] == ["orders"]
            user.rollback()
            assert other.claim() == ["a"]
        user.close()
