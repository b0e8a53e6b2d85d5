"""Connections that are kept, shared, that break, and whose certificates are checked."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

import pytest
import trustme

from bide.model.limits import MAX_RECEIVER_BODY
from tests.system.targets.http.environment import Stage, error_of, until
from tests.system.targets.http.receiver import Got, answer, receiver


def test_an_answer_that_is_read_whole_keeps_its_connection(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(concurrency=1) as (it, _):
            for id, length in enumerate((MAX_RECEIVER_BODY - 1, MAX_RECEIVER_BODY + 1, 0)):
                it.answers(answer(200, b"x" * length))
                await stage.put(1, id=f"m{id}")
                await stage.acked(id + 1)
            assert it.connections == 2

    stage.play(story())


def test_a_connection_that_the_receiver_closed_while_idle_costs_no_attempt(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(concurrency=1) as (it, _):
            served = 0

            async def serve_one(got: Got, writer: asyncio.StreamWriter) -> bytes | None:
                nonlocal served
                served += 1
                if served == 2:  # the request came on a kept connection that is about to close
                    return None
                return answer(200)

            it.script = serve_one
            await stage.put(1, 2)
            await stage.acked(2)
            assert [got.headers["bide-attempt"] for got in it.got] == ["1", "1", "1"]

    stage.play(story())


@pytest.mark.parametrize(
    ("part", "later"), [(b"more than it said", b""), (b"", answer(408)), (b"", answer(200))]
)
def test_what_comes_unasked_on_a_kept_connection_answers_no_request(
    stage: Stage, part: bytes, later: bytes
) -> None:
    """As from servers that say 408 before they close a connection which was idle for too long."""

    async def story() -> None:
        async with stage.at_work(concurrency=1) as (it, _):
            first: list[asyncio.StreamWriter] = []

            async def script(got: Got, writer: asyncio.StreamWriter) -> bytes:
                if got.id != "m0":
                    return answer(200)
                first.append(writer)
                return answer(200) + part

            it.script = script
            await stage.put(1)
            await stage.acked(1)
            first[0].write(later)
            await stage.put(2, id="m1")
            await stage.acked(2)
            assert [(got.id, got.connection) for got in it.got] == [("m0", 1), ("m1", 2)]

    stage.play(story())


def test_connections_are_kept_and_used_again(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(concurrency=1) as (it, _):
            it.answers(answer(200, b"thank you"))
            await stage.put(*range(20))
            await stage.acked(20)
            assert it.connections == 1

    stage.play(story())


@pytest.fixture
def certificates() -> tuple[ssl.SSLContext, Callable[[str], ssl.SSLContext]]:
    """Provide what trusts an authority, and what makes servers that it vouches for."""
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def server(host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(host).configure_cert(context)
        return context

    return trusting, server


Certificates = tuple[ssl.SSLContext, Callable[[str], ssl.SSLContext]]


def test_a_certificate_for_the_host_is_accepted(stage: Stage, certificates: Certificates) -> None:
    async def story() -> None:
        trusting, server = certificates
        async with receiver(server("127.0.0.1")) as it:
            await stage.subscribe(it.url)
            async with stage.pushing(tls=trusting):
                await stage.put(1)
                await stage.acked(1)

    stage.play(story())


@pytest.mark.parametrize("trusted", [True, False])
def test_a_certificate_of_another_host_or_authority_is_refused(
    stage: Stage, certificates: Certificates, trusted: bool
) -> None:
    async def story() -> None:
        trusting, server = certificates
        async with receiver(server("elsewhere.example" if trusted else "127.0.0.1")) as it:
            await stage.subscribe(it.url)
            async with stage.pushing(tls=trusting if trusted else None):
                await stage.put(1)
                assert "certificate" in await error_of(stage)
            assert it.got == []

    stage.play(story())


async def hang(got: Got, _: object) -> bytes:
    """Never answer."""
    await asyncio.Event().wait()
    return b""


def test_no_more_connections_are_open_than_the_process_may_have(stage: Stage) -> None:
    """And a receiver that hangs leaves some for the others."""

    async def story() -> None:
        async with (
            receiver() as well,
            stage.at_work(concurrency=500, options={"limit": 8}) as (it, _),
        ):
            it.script = hang
            await stage.put(*range(100))
            await until(lambda: it.under_way == 4)
            await stage.subscribe(well.url, name="other", queue="w")
            await stage.put(*range(100), queue="w")
            await stage.pass_time(lambda: stage.counts("w").flow.acked == 100, step=0.01)
            assert it.most == 4
            assert it.connections + well.connections <= 8

    stage.play(story())


def test_a_subscription_is_pinged_while_its_messages_take_their_share(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it, stage.pushing(limit=8) as pusher:
            it.script = hang
            one = await stage.subscribe(it.url, concurrency=500)
            pusher.look()
            await stage.put(*range(10))
            await until(lambda: it.under_way == 4)

            async def reply(got: Got, _: object) -> bytes:
                return answer(200)

            it.script = reply
            assert (await pusher.ping(one)).good

    stage.play(story())


def test_requests_from_before_a_change_of_the_queue_hold_up_no_message(stage: Stage) -> None:
    async def story() -> None:
        async with stage.pushing(limit=8) as pusher, receiver() as it:
            it.script = hang
            await stage.subscribe(it.url, concurrency=500)
            pusher.look()
            await stage.put(*range(10))
            await until(lambda: it.under_way == 4)
            await stage.subscribe(it.url, concurrency=500, queue="w")
            await stage.put(1, queue="w")
            began = stage.clock.now()
            pusher.look()
            await stage.pass_time(lambda: it.under_way == 5, pause=0.01)
            assert stage.clock.now() - began < 5_000  # they end only after 15 s

    stage.play(story())


def test_a_namespace_leaves_connections_for_others(stage: Stage) -> None:
    """However many of its receivers hang; and it does not ping with those that are left."""

    async def story() -> None:
        async with receiver() as it, receiver() as well, stage.pushing(limit=8) as pusher:
            it.script = hang
            for name in "abcdef":
                more = {"name": f"evil/{name}", "queue": f"evil/{name}", "concurrency": 500}
                await stage.subscribe(it.url, **more)
                await stage.put(*range(10), queue=f"evil/{name}")
            pusher.look()
            await until(lambda: it.under_way == 4)
            hook = (await pusher.records.listed())[0]
            told = await pusher.ping(hook)
            assert (told.good, "no connection left" in told.text) == (False, True)
            await stage.subscribe(well.url, name="shop/hooks", queue="shop/w")
            await stage.put(*range(100), queue="shop/w")
            pusher.look()
            await stage.pass_time(lambda: stage.counts("shop/w").flow.acked == 100, step=0.01)
            assert it.most == 4

    stage.play(story())


def test_receivers_that_fail_leave_half_of_the_connections_for_others(stage: Stage) -> None:
    """However many they are, and however long each takes to fail."""

    async def story() -> None:
        async with receiver() as it, receiver() as well, stage.pushing(limit=8) as pusher:
            it.script = hang
            for name in "abcdefghij":
                await stage.subscribe(it.url, name=name, queue=name)
                await stage.put(*range(2), queue=name)
            await stage.subscribe(well.url, name="well", queue="w")
            pusher.look()
            workers = pusher.workers.values()
            await stage.pass_time(
                lambda: sum(w.circuit.failures > 0 for w in workers) == 10, step=1
            )
            await stage.pass_time(lambda: pusher.sender.client.free <= 4, step=1)
            began = stage.clock.now()
            await stage.put(1, queue="w")
            await stage.pass_time(lambda: stage.counts("w").flow.acked == 1, pause=0.02)
            assert stage.clock.now() - began < 2_000

    stage.play(story())


def test_connections_that_are_kept_make_room_for_others(stage: Stage) -> None:
    async def story() -> None:
        async with stage.pushing(limit=3) as pusher:
            async with receiver() as one, receiver() as two:
                for number, it in enumerate((one, two, one, two)):
                    await stage.subscribe(it.url, name=f"s{number}", queue=f"q{number}")
                pusher.look()
                for number in range(4):
                    await stage.put(1, 2, queue=f"q{number}")
                for queue in ("q0", "q1", "q2", "q3"):
                    acked = partial(lambda queue: stage.counts(queue).flow.acked == 2, queue)
                    await stage.pass_time(acked, step=0.05)

    stage.play(story())
