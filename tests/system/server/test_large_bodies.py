"""Large bodies: what they may take of the memory, and what they leave of the event loop."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Ack, Cancel, Claim, Command, Lease, Put
from bide.model.errors import InvalidArgument
from bide.model.message import Item, Message
from bide.model.replies import Claimed, Page
from bide.server.access.rights import Caller
from bide.server.access.tokens import LeaseSecrets
from bide.server.limits import request_bodies
from bide.server.limits.request_bodies import LARGE, LargeBodies, Pause
from bide.server.problem import ClientText, Problem
from bide.server.routes.batch import _shown
from bide.server.validate import check_values
from tests.system.server.client import Q
from tests.system.server.conftest import Serve
from tests.system.server.raw import request

KIB = 1024


def test_large_ones_take_turns_and_others_go_on_between() -> None:
    async def story() -> None:
        bodies, said = LargeBodies(1), []

        async def large(number: int) -> None:
            await bodies.turn(LARGE + 1)
            said.append(f"large {number}")

        async def small() -> None:
            await bodies.turn(LARGE)
            said.append("small")

        tasks = [asyncio.create_task(large(number)) for number in range(3)]
        while len(said) < 3 or not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            await small()
        order = [one for one in said if one != "small"]
        assert order == ["large 0", "large 1", "large 2"]
        assert not any("large" in one and "large" in next for one, next in pairwise(said))

    asyncio.run(story())


def test_a_turn_that_is_not_waited_for_any_more_goes_to_the_next() -> None:
    async def story() -> None:
        bodies = LargeBodies(1)
        await bodies.turn(LARGE + 1)
        given_up, next = (asyncio.create_task(bodies.turn(LARGE + 1)) for _ in range(2))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait_for(next, 60)

    asyncio.run(story())


def test_of_long_loops_one_at_a_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "SLICE_SECONDS", 0.0)

    async def story() -> None:
        bodies, said = LargeBodies(1), []

        async def loop(name: str) -> None:
            pause = bodies.pauses()
            for _ in range(3):
                await pause()
                said.append(name)

        async def others() -> None:
            while len(said) - said.count("-") < 6:
                said.append("-")
                await asyncio.sleep(0)

        await asyncio.gather(loop("a"), loop("b"), others())
        told = "".join(said)
        assert not any(two in told for two in ("aa", "ab", "ba", "bb"))

    asyncio.run(story())


def test_what_is_counted_is_given_back() -> None:
    bodies = LargeBodies(40 << 20)  # two of the largest: more than the 64 MiB of others
    bodies.grow(0, LARGE)
    assert bodies.buffered == 0
    bodies.grow(LARGE, LARGE + (80 << 20))
    with pytest.raises(Problem, match="take 80 MiB already"):
        bodies.grow(0, LARGE + 1)
    bodies.grow(LARGE + (80 << 20), 0)
    assert bodies.buffered == 0


def test_many_unfinished_large_bodies(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "MAX_BUFFERED", 0)
    client = serve(max_request=256 * KIB)
    head = request(
        "POST", f"{Q}/put", content_length=str(256 * KIB), content_type="application/json"
    )
    bodies = client.app.service.large_bodies
    with ExitStack() as stack:
        for number in range(3):  # the third reaches twice 256 KiB, of which 64 do not count
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", client.port), 20))
            raw.sendall(head + b" " * (255 * KIB))
            if number < 2:
                while bodies.buffered < (number + 1) * 191 * KIB:
                    pass
        assert raw.recv(100).startswith(b"HTTP/1.1 503")
        assert client.post(f"{Q}/messages", {"body": "small"}).status == 201
        assert client.post(f"{Q}/messages", {"body": "x" * 200_000}).status == 503
    while bodies.buffered:
        pass
    assert client.post(f"{Q}/messages", {"body": "x" * 200_000}).status == 201


@pytest.mark.parametrize("many", [False, True])
def test_text_that_is_much_longer_than_its_body(serve: Serve, many: bool) -> None:
    client = serve(max_body=1_000)
    for text, status in (
        ('"' + "\\u0041" * 998 + '"', 201),
        ("[1," + " " * 5_995 + "1]", 201),
        ("[1," + " " * 5_996 + "1]", 400),
    ):
        data = f'{{"body": {text}}}'
        if many:
            data = f'{{"messages": [{data}]}}'
        path = f"{Q}/put" if many else f"{Q}/messages"
        reply = client.send("POST", path, data=data.encode())
        assert reply.status == (200 if many and status == 201 else status)
        if status == 400:
            assert "body takes 6,001 bytes, the limit is 1,000" in reply.problem["detail"]


def test_a_client_is_told_why_its_request_was_refused_before_it_was_whole(serve: Serve) -> None:
    """The server reads some of it, and resets the connection."""
    client = serve(max_request=256 * KIB)
    with bide.Queue("orders", f"http://127.0.0.1:{client.port}") as orders:
        for _ in range(2):  # on a new connection, and on one that was kept
            with pytest.raises(bide.InvalidArgument, match="262,144 bytes"):
                orders.put_many(["x" * 512 * KIB] * 40)
            assert orders.counts().sizes.total == 0


def test_puts_that_are_together_too_large_for_a_request(serve: Serve) -> None:
    client = serve(max_request=256 * KIB)

    async def together() -> None:
        async with bide.AsyncQueue("orders", f"http://127.0.0.1:{client.port}") as orders:
            puts = [orders.put("x" * 100 * KIB) for _ in range(100)]
            assert all(await asyncio.gather(*puts))

    asyncio.run(together())


def test_large_bodies_arrive_whole(serve: Serve) -> None:
    client = serve()
    body = {"numbers": [*range(50_000)], "text": "ü" * 50_000}
    messages = [{"id": f"m{number}", "body": body} for number in range(4)]
    assert client.post(f"{Q}/put", {"messages": messages}).status == 200
    assert client.get(f"{Q}/messages/m3").json["body"] == body


def test_what_a_command_names_is_checked_in_steps() -> None:
    ids = [f"order-{number}" for number in range(1_000)]
    assert _pauses_of(Cancel("q", ids)) == 1_000 // 256
    leases = [Lease(id, 1, "secret") for id in ids]
    assert _pauses_of(Ack("q", leases, [b"1"] * 1_000)) == 1_000 // 256 + 1_000
    with pytest.raises(InvalidArgument, match="control characters"):
        _pauses_of(Cancel("q", [*ids, "\n"]))


def test_the_messages_of_a_reply_are_shown_in_steps() -> None:
    messages = [Message(str(n), "shop/q", b"1", True, 0, 0, 0, 1, "ready") for n in range(1_000)]
    caller = Caller("shop", frozenset({"read"}))
    shown = partial(_shown, Page(messages, None), caller, ClientText("memory://"))
    assert _pauses_in(shown) == 1_000


def _pauses_of(command: Command) -> int:
    return _pauses_in(partial(check_values, command))


def _pauses_in(work: Callable[[Pause], Coroutine[Any, Any, object]]) -> int:
    """Return how often others may go on during some work."""
    pauses = 0

    async def pause(size: int = 0) -> None:
        nonlocal pauses
        pauses += 1

    asyncio.run(work(pause))
    return pauses


def test_leases_are_signed_and_checked_in_steps(tmp_path: Path) -> None:
    pauses: list[str] = []

    class Counted(LargeBodies):
        def pauses(self) -> Pause:
            async def pause(size: int = 0) -> None:
                pauses.append("pause")

            return pause

    async def story() -> None:
        lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
        lane.call(Put("q", [Item(f"m{number}", b"1") for number in range(5)]))
        claimed = lane.call(Claim("q", 5, 30_000, "w"))
        assert isinstance(claimed, Claimed)
        secrets = LeaseSecrets(lane, Counted(1))
        signed = await secrets.signed("q", claimed)
        leases = [Lease(m.id, signed.token, m.secret) for m in signed.messages]
        known = await secrets.checked("q", leases, trusted=False)
        assert [lease.token for lease in known] == [claimed.token] * 5
        assert len(pauses) == 10
        close_lane(lane)

    asyncio.run(story())
