"""Receivers that hang, drip, break off, or lie."""

import asyncio

import pytest

from bide.model.commands import Put
from bide.model.limits import MAX_RECEIVER_HEAD, MAX_RECEIVER_INTERIM
from bide.model.message import Item
from tests.system.targets.http.environment import Stage, error_of, until
from tests.system.targets.http.receiver import Got, answer, receiver


def test_a_receiver_that_hangs_is_given_up_in_time(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(timeout=5_000) as (it, _):

            async def hang(got: Got, _: asyncio.StreamWriter) -> bytes:
                await asyncio.Event().wait()
                return b""

            it.script = hang
            await stage.put(1)
            await until(lambda: it.got)
            began = stage.clock.now()
            await stage.pass_time(lambda: stage.counts().sizes.delayed)
            assert stage.clock.now() - began >= 4_900
            assert await error_of(stage) == "no answer within 5 s"

    stage.play(story())


def test_a_ping_that_is_not_answered_ends_in_time(stage: Stage) -> None:
    async def hang(*_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def story() -> None:
        async with receiver() as it, stage.pushing() as pusher:
            it.script = hang
            told = await pusher.ping(await stage.subscribe(it.url, timeout=50))
            assert (told.status, told.text) == (None, "no answer within 0.05 s")

    stage.play(story())


def test_a_receiver_that_drips_its_head_is_given_up_in_time(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(timeout=5_000) as (it, _):

            async def drip(got: Got, writer: asyncio.StreamWriter) -> bytes:
                while True:
                    writer.write(b"H")
                    await writer.drain()
                    await asyncio.Event().wait()

            it.script = drip
            await stage.put(1)
            await until(lambda: it.got)
            await stage.pass_time(lambda: stage.counts().sizes.delayed)
            assert await error_of(stage) == "no answer within 5 s"

    stage.play(story())


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_that_never_ends_counts_as_its_status(stage: Stage, status: int) -> None:
    async def story() -> None:
        async with stage.at_work(timeout=60_000) as (it, _):

            async def drip(got: Got, writer: asyncio.StreamWriter) -> bytes:
                writer.write(answer(status, b"so far", length=1_000_000))
                await writer.drain()
                await asyncio.Event().wait()
                return b""

            it.script = drip
            await stage.put(1)
            await until(lambda: it.got)
            began = stage.clock.now()
            counts = stage.counts
            await stage.pass_time(lambda: counts().flow.acked or counts().sizes.delayed, pause=0.05)
            assert stage.clock.now() - began < 5_000
            assert counts().flow.acked == (status == 200)
            if status == 500:
                assert await error_of(stage) == "500 Internal Server Error: so far"

    stage.play(story())


def test_an_answer_that_is_there_when_time_is_over_counts(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(timeout=500) as (it, _):

            async def drip(got: Got, writer: asyncio.StreamWriter) -> bytes:
                writer.write(answer(200, b"so far", length=1_000_000))
                await writer.drain()
                await asyncio.Event().wait()
                return b""

            it.script = drip
            await stage.put(1)
            await until(lambda: it.got)
            await stage.pass_time(lambda: stage.counts().flow.acked)

    stage.play(story())


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_that_breaks_off_counts_as_its_status(stage: Stage, status: int) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, _):

            async def break_off(got: Got, writer: asyncio.StreamWriter) -> None:
                writer.write(answer(status, b"half", length=100))
                await writer.drain()

            it.script = break_off
            await stage.put(1)
            if status == 200:
                await stage.acked(1)
            else:
                assert await error_of(stage) == "500 Internal Server Error: half"

    stage.play(story())


def test_a_connection_that_is_closed_without_an_answer_is_tried_again(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, _):

            async def close(got: Got, writer: asyncio.StreamWriter) -> None:
                pass

            it.script = close
            await stage.put(1)
            assert await error_of(stage) == "the receiver closed the connection without an answer"

    stage.play(story())


def test_nobody_listening_is_tried_again(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            url = it.url
        await stage.subscribe(url)
        async with stage.pushing():
            await stage.put(1)
            assert await error_of(stage) == "no connection: Connection refused"

    stage.play(story())


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 abc What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"\x00" * 1_000,
    ],
    ids=["ssh", "status", "head", "length", "zeros"],
)
def test_what_is_no_http_is_tried_again(stage: Stage, data: bytes) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, _):

            async def lie(got: Got, writer: asyncio.StreamWriter) -> None:
                writer.write(data)
                await writer.drain()

            it.script = lie
            await stage.put(1)
            error = await error_of(stage)
            assert error.startswith(("the answer could not be understood", "the receiver closed"))
            assert "yyy" not in error

    stage.play(story())


@pytest.mark.parametrize("status", [200, 500])
def test_a_huge_answer_is_not_read_to_its_end(stage: Stage, status: int) -> None:
    async def story() -> None:
        sent = 0

        async def flood(got: Got, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(answer(status, length=1 << 40))
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536

        async with stage.at_work() as (it, _):
            it.script = flood
            await stage.put(1)
            if status == 200:
                await stage.acked(1)
            else:
                assert len(await error_of(stage)) < 600
            await until(lambda: not it.under_way)
        assert sent < 20_000_000  # what fits into the buffers of two sockets

    stage.play(story())


@pytest.mark.parametrize(("length", "fits"), [(15_000, True), (MAX_RECEIVER_HEAD, False)])
def test_a_head_has_a_bound(stage: Stage, length: int, fits: bool) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, _):
            long = b"HTTP/1.1 204 No Content\r\nx: " + b"y" * length
            it.answers(long + (b"\r\n\r\n" if fits else b""))
            await stage.put(1)
            await (stage.acked(1) if fits else stage.delayed(1))

    stage.play(story())


@pytest.mark.parametrize("closes", [True, False])
def test_an_answer_to_a_body_that_is_not_read_counts(stage: Stage, closes: bool) -> None:
    async def story() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer(413, b"too large"))
            await writer.drain()
            if not closes:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await over.wait()
            writer.close()

        over = asyncio.Event()
        server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await stage.subscribe(f"http://127.0.0.1:{port}/")
            async with stage.pushing():
                more_than_the_buffers_of_two_sockets = b"x" * 8_000_000
                await stage.lane.acall(
                    Put("q", [Item("m0", more_than_the_buffers_of_two_sockets, json=False)])
                )
                assert (await error_of(stage)).startswith("413")
            over.set()

    stage.play(story())


def test_interim_answers_without_end_are_cut_off(stage: Stage) -> None:
    """They would keep the event loop busy for as long as the receiver likes."""

    async def story() -> None:
        sent = 0

        async def flood(got: Got, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 4_000)
                await writer.drain()
                sent += 100_000

        async with stage.at_work(timeout=300_000) as (it, _):
            it.script = flood
            await stage.put(1)
            assert "more than 8 interim answers" in await error_of(stage)
            await until(lambda: not it.under_way)
        assert sent < 20_000_000  # what fits into the buffers of two sockets

    stage.play(story())


def test_a_few_interim_answers_are_no_harm(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, _):
            early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
            it.answers(early * MAX_RECEIVER_INTERIM + answer(204))
            await stage.put(1)
            await stage.acked(1)
            it.answers(early * (MAX_RECEIVER_INTERIM + 1) + answer(204))
            await stage.put(2, id="m1")
            await until(lambda: stage.counts().flow.retried == 1)

    stage.play(story())


@pytest.mark.parametrize("chunked", [True, False])
def test_an_answer_in_chunks_or_until_the_end_is_read(stage: Stage, chunked: bool) -> None:
    async def story() -> None:
        async with stage.at_work() as (it, _):
            head = b"HTTP/1.1 500 No\r\n"
            whole = head + b"\r\nhello"
            if chunked:
                whole = head + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"

            async def tell(got: Got, writer: asyncio.StreamWriter) -> None:
                writer.write(whole)
                await writer.drain()

            it.script = tell
            await stage.put(1)
            assert await error_of(stage) == "500 Internal Server Error: hello"

    stage.play(story())


def test_no_secret_comes_back_into_the_reason(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(headers={"authorization": "Bearer abcdefghij"}) as (it, worker):
            secret = stage.secret

            async def echo(got: Got, _: asyncio.StreamWriter) -> bytes:
                told = " ".join(got.headers.values())
                part = got.target.partition("?")[0].rpartition("/")[2]
                return answer(500, f"{secret} {told} {got.target} {part} abcdefghij".encode())

            it.script = echo
            query = worker.subscription
            await stage.subscribe(
                f"{it.url}/T1/hush-path-of-a-chat?key=hush-hush",
                headers=dict(query.headers),
                name="shop",
            )
            await stage.pass_time(lambda: "?" in worker.subscription.url)
            await stage.put(1)
            error = await error_of(stage)
            got = it.got[-1]
            for hidden in (secret, got.headers["webhook-signature"], "abcdefghij", "hush-"):
                assert hidden not in error
            assert "***" in error

    stage.play(story())
