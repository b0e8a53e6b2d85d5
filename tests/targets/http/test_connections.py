"""Connections that are kept, that break, and whose certificates are checked."""

import asyncio
import ssl
from collections.abc import Callable

import pytest
import trustme

from bide.model.limits import MAX_RECEIVER_BODY
from tests.targets.http.environment import Stage, error_of
from tests.targets.http.receiver import Got, answer, receiver


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
