"""What takes long is done in turns, with pauses, and keeps nobody waiting but each other."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Cancel, Command, Count, Find, ForecastCommand, Put, Scan, Where
from bide.model.message import Item
from bide.model.replies import Counts, Reply
from bide.server.limits.slow_reads import SlowReads, Turns, is_slow
from tests.system.server.client import Q
from tests.system.server.conftest import Serve


def test_one_at_a_time_in_their_order_also_after_a_failure() -> None:
    async def story() -> list[str]:
        turns, told = Turns(), []

        async def work(name: str) -> None:
            async with turns.turn():
                told.append(f"{name} begins")
                await asyncio.sleep(0)
                if name == "b":
                    raise ValueError(name)
                told.append(f"{name} ends")

        await asyncio.gather(*map(work, "abc"), return_exceptions=True)
        return told

    told = asyncio.run(story())
    assert told == ["a begins", "a ends", "b begins", "c begins", "c ends"]


def test_who_waits_no_longer_takes_no_turn() -> None:
    async def story() -> None:
        turns = Turns()
        async with turns.turn():
            waiting = asyncio.create_task(turns.turn().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
        async with turns.turn():
            pass

    asyncio.run(story())


BOUND = 60


@pytest.mark.parametrize(
    ("command", "slow"),
    [
        (Count("q"), False),
        (Count("q", recount=True), True),
        (Count("q", stored=True), True),
        (Scan("q", "dead"), False),
        (Scan("q", "dead", Where(group="g")), True),
        (Cancel("q", where=Where(group="g"), dry_run=True), True),
        (Cancel("q", where=Where(group="g")), False),
        (Cancel("q", ["a"]), False),
        (ForecastCommand("q", 60_000, 60), True),
        (Find("q", ["a"]), False),
    ],
)
def test_which_are_slow(command: Command, slow: bool) -> None:
    assert is_slow(command) is slow


@pytest.mark.parametrize("store", ["sqlite:///{}/bide.db", "memory://slow"])
def test_they_go_one_at_a_time_beside_all_else(tmp_path: Path, store: str) -> None:
    lane = open_lane(store.format(tmp_path), SYSTEM_CLOCK)
    lane.call(Put("q", [Item("a", b"1"), Item("b", b"22")]))

    async def run() -> None:
        slow_reads = SlowReads(lane)
        command = Count("q", recount=True, stored=True)
        replies = await asyncio.gather(*[slow_reads.read(command) for _ in range(3)])
        for reply in replies:
            assert isinstance(reply, Counts)
            assert (reply.sizes.ready, reply.stored, reply.strays) == (2, 5, 0)
        await asyncio.to_thread(slow_reads.close)

    asyncio.run(run())
    close_lane(lane)


def test_they_are_capped_and_others_go_on(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, read = threading.Event(), threading.Event(), SlowReads.read

    async def held(self: SlowReads, command: Command, owner: object = None) -> Reply:
        if isinstance(command, Count) and command.recount:
            began.set()
            await asyncio.to_thread(go_on.wait, BOUND)
        return await read(self, command, owner)

    monkeypatch.setattr(SlowReads, "read", held)
    server = serve(auth="required", max_slow_reads=1)
    token = make_token("shop", "admin")
    shop, auditor = server.with_token(token), server.with_token(token)
    assert shop.put(f"{Q}/messages/a", {"body": 1}).status == 201
    found: list[int] = []
    audit = threading.Thread(target=lambda: found.append(auditor.get(f"{Q}/audit").status))
    audit.start()
    assert began.wait(BOUND)
    slow = "audit", "forecast", "past", "messages?group=g"
    for path in (*(f"{Q}/{name}" for name in slow), "/v1/usage", "/metrics"):
        refused = shop.get(path)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1"), path
        assert "max_slow_reads" in refused.problem["detail"]
    assert shop.send("DELETE", f"{Q}/messages?group=g").status == 200
    undoable = shop.send("DELETE", f"{Q}/messages?group=g&undo=true")  # it reads what it changes
    assert "max_slow_reads" in undoable.problem["detail"]
    put = {"command": "put", "queue": "orders", "items": [{"id": "b", "data": "MQ=="}]}
    recount = {"command": "count", "queue": "orders", "recount": True}
    replies = shop.post("/v1/batch", {"commands": [put, recount, put]}).json["replies"]
    assert [reply["type"] for reply in replies] == ["outcomes", "failed", "outcomes"]
    assert replies[1]["error"] == "StoreBusy"
    assert shop.get(f"{Q}/messages/b").status == 200
    go_on.set()
    audit.join()
    assert found == [200]
    assert shop.get(f"{Q}/audit").json["balanced"]


def test_what_follows_an_unforeseen_failure_in_a_batch_is_executed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: SlowReads, command: Command, owner: object = None) -> Reply:
        raise ZeroDivisionError("an error that nobody foresaw")

    monkeypatch.setattr(SlowReads, "read", broken)
    server = serve()
    put = {"command": "put", "queue": "orders", "items": [{"id": "b", "data": "MQ=="}]}
    recount = {"command": "count", "queue": "orders", "recount": True}
    assert server.post("/v1/batch", {"commands": [recount, put]}).status == 500
    assert server.get(f"{Q}/messages/b").status == 200
