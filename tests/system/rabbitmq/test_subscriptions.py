"""Subscriptions whose messages go to RabbitMQ, to brokers that may be hostile, too."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from pamqp import commands, frame

from bide.clock import SYSTEM_CLOCK
from bide.model.commands import Put
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.targets.amqp import parse
from bide.targets.http.addresses import AddressGate
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription
from bide.targets.pusher import Pusher
from bide.targets.rabbitmq.broker import LOST, Broker, Refused
from bide.targets.rabbitmq.publisher import RabbitMQ
from tests.system.rabbitmq.environment import Stage, until
from tests.system.rabbitmq.proxy import proxy

LOOPBACK = ("127.0.0.0/8",)


async def subscribe(stage: Stage, url: str, **fields: Any) -> None:
    given = {"name": "s", "queue": "q", "url": url, "concurrency": 500, "timeout": 15_000, **fields}
    await Records(stage.lane, SYSTEM_CLOCK).put(Subscription(**given))


async def put(stage: Stage, count: int = 1, delay: int = 0, **fields: Any) -> None:
    items = [Item(f"m{n}", b"%d" % n, delay=delay, **fields) for n in range(count)]
    await stage.lane.acall(Put("q", items))


@asynccontextmanager
async def pushing(stage: Stage, *intakes: str) -> AsyncIterator[Pusher]:
    pusher = Pusher(stage.lane, gate=AddressGate(LOOPBACK), intakes=map(parse, intakes))
    task = asyncio.create_task(pusher.run(5))
    try:
        await until(lambda: task.done() or pusher.looked)
        yield pusher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_due_messages_are_published_and_acked_after_the_confirm(stage: Stage) -> None:
    async def story() -> None:
        await subscribe(stage, stage.url("&key=k"), headers={"tenant": "eu"})
        async with pushing(stage):
            await put(stage, 200, headers={"a": "1"})
            got = [await stage.receive() for _ in range(200)]
            assert {one.message_id for one in got} == {f"m{n}" for n in range(200)}
            assert got[0].headers.items() >= {"tenant": "eu", "a": "1", "bide-queue": "q"}.items()
            await stage.reached(200, "flow.acked", "q")
        assert (await stage.counts("q")).sizes.total == 0

    stage.play(story)


def test_a_ping_leaves_no_connection_behind(stage: Stage) -> None:
    """A server with --no-push would keep one for each URL that was ever pinged."""

    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            await subscribe(stage, stage.url("&key=k", port=line.port))
            pusher = Pusher(stage.lane, gate=AddressGate(LOOPBACK))
            one = await pusher.records.get("s")
            assert one is not None
            assert (await pusher.ping(one)).good
            await until(lambda: not line.open)
            await pusher.close()

    stage.play(story)


def test_a_message_in_flight_to_a_url_that_is_given_up_leaves_no_connection_behind(
    stage: Stage,
) -> None:
    """Such as the old one of a subscription that was changed."""

    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            await subscribe(stage, stage.url("&key=k", port=line.port))
            await put(stage, 2)
            to = await Records(stage.lane, SYSTEM_CLOCK).get("s")
            first, second = await stage.find("m0", "q"), await stage.find("m1", "q")
            assert to is not None
            assert first is not None
            assert second is not None
            target = RabbitMQ(SYSTEM_CLOCK, AddressGate(LOOPBACK))
            assert (await target.send(first, to)).good
            line.hold_answers()
            sending = asyncio.create_task(target.send(second, to))
            await until(lambda: target.publishers[to.url].in_flight)
            target.keep(())
            line.cut()
            assert (await sending).good
            await until(lambda: not line.open)
            await target.close()

    stage.play(story)


def test_none_is_published_before_it_is_due(stage: Stage) -> None:
    async def story() -> None:
        await subscribe(stage, stage.url("&key=k"))
        async with pushing(stage):
            due = SYSTEM_CLOCK.now() + 700
            await put(stage, 5, delay=700)
            while SYSTEM_CLOCK.now() < due:
                count = await stage.count()
                assert not count or SYSTEM_CLOCK.now() >= due
                await asyncio.sleep(0.1)
            for _ in range(5):
                got = await stage.receive()
                assert got.headers["bide-due"] == (await stage_due(got.headers))
            assert await stage.count() == 0

    async def stage_due(headers: Any) -> int:
        due = int(headers["bide-due"])
        assert SYSTEM_CLOCK.now() >= due
        return due

    stage.play(story)


@pytest.mark.parametrize("key", ["nowhere", "full"])
def test_what_the_broker_does_not_take_is_retried_then_dead_with_its_reason(
    stage: Stage, key: str
) -> None:
    async def story() -> None:
        full = await stage.channel.declare_queue(
            f"{stage.exchange}.full",
            auto_delete=True,
            arguments={"x-max-length": 0, "x-overflow": "reject-publish"},
        )
        await full.bind(stage.exchange, "full")
        await subscribe(stage, stage.url(f"&key={key}"), attempts=2, first=50)
        async with pushing(stage) as pusher:
            await put(stage, 10)
            await stage.reached(10, "sizes.dead", "q")
            dead = await stage.find("m0", "q")
            assert dead is not None
            reasons = {failure.reason for failure in dead.failures}
            assert len(dead.failures) == 2
            assert reasons <= {
                "unroutable: NO_ROUTE nowhere",
                "the broker rejected the message (basic.nack): a queue is full or failed",
            }
            # Of the message or the queue, not of the broker: others go on.
            assert pusher.workers["s"].circuit.since is None
            await put_one(stage, "amqp-key", "k")
            assert (await stage.receive()).message_id == "late"

    stage.play(story)


def test_a_message_that_amqp_cannot_hold_becomes_a_dead_letter(stage: Stage) -> None:
    async def story() -> None:
        await subscribe(stage, stage.url("&key=k"), attempts=1)
        async with pushing(stage):
            await put_one(stage, "amqp-expiration", "soon")
            await stage.reached(1, "sizes.dead", "q")
            dead = await stage.find("late", "q")
            assert dead is not None
            assert "amqp-expiration='soon' must be" in dead.failures[0].reason

    stage.play(story)


def test_a_missing_exchange_opens_the_circuit_and_costs_no_more_attempts(stage: Stage) -> None:
    async def story() -> None:
        late = f"{stage.exchange}late"
        await subscribe(
            stage, stage.url("&key=k").replace(stage.exchange, late), probe=300, first=100
        )
        async with pushing(stage) as pusher:
            await put(stage, 50)
            await until(lambda: pusher.workers["s"].circuit.since is not None)
            assert "NOT_FOUND" in pusher.workers["s"].circuit.error
            exchange = await stage.channel.declare_exchange(late, auto_delete=True)
            await (await stage.channel.get_queue(stage.queue)).bind(exchange, "k")
            got = {(await stage.receive()).message_id for _ in range(50)}
            assert len(got) == 50
            await until(lambda: pusher.workers["s"].circuit.since is None)

    stage.play(story)


def test_a_connection_that_is_cut_loses_nothing(stage: Stage) -> None:
    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            await subscribe(stage, stage.url("&key=k", port=line.port))
            async with pushing(stage):
                await put(stage, 300)
                await stage.receive()
                line.cut()
                await stage.reached(300, "flow.acked", "q")
        got = {(await stage.receive()).message_id for _ in range(await stage.count())}
        assert len(got) >= 299

    stage.play(story)


def test_a_broker_that_is_restarted_loses_nothing(stage: Stage) -> None:
    """It tells its clients so; `tests.soak.rabbitmq.kills` kills it."""

    async def story() -> None:
        await subscribe(stage, stage.url("&key=k"), failures=1, probe=100)
        async with stage.intake() as intake, pushing(stage) as pusher:
            await stage.send(message_id="before", headers={"x-delay": 60_000})
            await stage.stored(1)
            await asyncio.to_thread(stage.broker.ctl, "stop_app")
            try:
                await put(stage, 20)
                await until(lambda: not intake.taken.connected)
                await until(lambda: pusher.workers["s"].running)
            finally:
                await asyncio.to_thread(stage.broker.ctl, "start_app")
            await stage.reached(20, "flow.acked", "q")
            await until(lambda: intake.taken.connected)
            async with await aio_pika.connect(stage.broker.url) as connection:
                stage.channel = await connection.channel()
                await stage.send(message_id="after", headers={"x-delay": 60_000})
                await stage.stored(2)
                # One whose confirm was lost comes twice.
                got = {(await stage.receive()).message_id for _ in range(await stage.count())}
                assert got == {f"m{n}" for n in range(20)}

    stage.play(story)


def test_two_processes_share_the_work(stage: Stage) -> None:
    async def story() -> None:
        await subscribe(stage, stage.url("&key=k"))
        async with pushing(stage), pushing(stage):
            await put(stage, 300)
            got = [(await stage.receive()).message_id for _ in range(300)]
            assert len(set(got)) == 300
            assert await stage.count() == 0

    stage.play(story)


def test_the_figures_of_exchanges_of_one_name_add_up(stage: Stage) -> None:
    async def story() -> None:
        urls = stage.url("&queue=one"), stage.url("&queue=two")
        async with pushing(stage, *urls) as pusher:
            await until(lambda: pusher.sent.taken[stage.exchange].connected == 2)

    stage.play(story)


def test_what_an_intake_has_stored_counts_once_after_the_end(stage: Stage) -> None:
    async def story() -> None:
        async with pushing(stage, stage.url()) as pusher:
            await until(lambda: pusher.sent.taken[stage.exchange].connected)
            await stage.send(message_id="m1", headers={"x-delay": 60_000})
            await until(lambda: pusher.sent.taken[stage.exchange].stored == 1)
        told = pusher.sent.taken[stage.exchange]
        assert (told.stored, told.connected) == (1, 0)

    stage.play(story)


def test_an_intake_goes_on_when_its_pusher_runs_again(stage: Stage) -> None:
    async def story() -> None:
        pusher = Pusher(stage.lane, gate=AddressGate(LOOPBACK), intakes=[parse(stage.url())])
        for run in (1, 2):
            task = asyncio.create_task(pusher.run(5))
            await until(lambda: pusher.sent.taken[stage.exchange].connected)
            await stage.send(message_id=f"m{run}", headers={"x-delay": 60_000})
            await until(lambda: pusher.sent.taken[stage.exchange].stored == run)  # noqa: B023
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    stage.play(story)


def test_rate_and_pause_hold_as_for_push(stage: Stage) -> None:
    async def story() -> None:
        await subscribe(stage, stage.url("&key=k"), rate=10)
        records = Records(stage.lane, SYSTEM_CLOCK)
        async with pushing(stage) as pusher:
            began = SYSTEM_CLOCK.monotonic()
            await put(stage, 6)
            for _ in range(6):
                await stage.receive()
            assert SYSTEM_CLOCK.monotonic() - began > 0.4
            await records.pause("s")
            pusher.look()
            await until(lambda: pusher.workers["s"].subscription.paused)
            await put_one(stage, "amqp-key", "k")
            assert await stage.count() == 0
            await records.resume("s")
            assert (await stage.receive()).message_id == "late"

    stage.play(story)


def test_a_subscription_to_rabbitmq_is_not_signed(stage: Stage) -> None:
    async def story() -> None:
        records = Records(stage.lane, SYSTEM_CLOCK)
        given = Subscription(name="s", queue="q", url=stage.url())
        kept = await records.put(given)
        assert (kept.secret, kept.subscription.secrets) == (None, ())
        with pytest.raises(InvalidArgument, match="not signed"):
            await records.rotate("s", 0)
        with pytest.raises(InvalidArgument, match="cannot change between"):
            await records.change("s", url="https://shop.example/")
        signed = await records.put(Subscription(name="s", queue="q", url="https://shop.example/"))
        assert signed.secret == signed.subscription.secrets[0].text

    stage.play(story)


def test_the_command_line_makes_pings_and_lists_one_without_its_password(stage: Stage) -> None:
    async def story() -> None:
        store = f"sqlite:///{stage.path}"
        url = stage.url("&key=k")

        def bide(*arguments: str) -> str:
            command = [sys.executable, "-m", "bide", *arguments, "--url", store]
            done = subprocess.run(command, capture_output=True, text=True)
            return done.stdout + done.stderr

        assert await asyncio.to_thread(bide, "subscription", "add", "q", "--to", url) == ""
        (listed,) = (await asyncio.to_thread(bide, "subscription", "list", "--json")).splitlines()
        told = json.loads(listed)
        assert (told["name"], told["concurrency"], told["secrets"]) == ("q", 500, [])
        assert told["url"] == url.replace("guest:guest", "guest:***")
        networks = ("--allow-network", LOOPBACK[0])
        pinged = await asyncio.to_thread(bide, "subscription", "ping", "q", *networks)
        assert "has the exchange" in pinged
        refused = await asyncio.to_thread(bide, "subscription", "ping", "q")
        assert "not public" in refused

    stage.play(story)


async def put_one(stage: Stage, name: str, value: str) -> None:
    await stage.lane.acall(Put("q", [Item("late", b"1", headers={name: value})]))


@pytest.mark.parametrize(
    ("url", "broker", "exchange", "key"),
    [
        ("amqp://mq?exchange=shop", "amqp://mq/%2F", "shop", ""),
        ("amqp://mq/?exchange=shop&key=a.b", "amqp://mq/%2F", "shop", "a.b"),
        ("amqp://mq/%2F?key=orders", "amqp://mq/%2F", "", "orders"),
        ("amqps://u:p@mq:5671/a%2Fb?exchange=x", "amqps://u:p@mq:5671/a%2Fb", "x", ""),
    ],
)
def test_a_url_names_broker_exchange_and_key(
    url: str, broker: str, exchange: str, key: str
) -> None:
    found = parse(url)
    assert (found.broker, found.exchange, found.key) == (broker, exchange, key)
    assert parse(found.url) == found


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://mq/?exchange=x", "must be amqp://"),
        ("amqp:///?exchange=x", "must be amqp://"),
        ("amqp://mq:0/?exchange=x", "must be amqp://"),
        ("amqp://mq:x/?exchange=x", "not a valid URL"),
        ("amqp://mq/", "names no exchange"),
        ("amqp://mq/?exchange=x#y", "%23"),
        ("amqp://mq/?exchange=x&ke=y", "unknown option 'ke'"),
        ("amqp://mq/?exchange=" + "x" * 128, "up to 127 of"),
        ("amqp://mq/?exchange=caf%C3%A9", "exchange='café' must be"),
        ("amqp://mq/?key=" + "x" * 256, "255 bytes"),
        ("amqp://mq/?exchange=x&cafile=a.pem", "amqps://"),
        ("amqp://mq/?exchange=x&heartbeat=0", "1 to 600 seconds"),
        ("amqp://mq/?exchange=x&heartbeat=000000005999999", "1 to 600 seconds"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_the_reason(url: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        parse(url)


def test_no_text_of_an_address_has_the_password_in_it() -> None:
    url = "amqp://app:s3cret@mq/shop?exchange=orders"
    assert "s3cret" not in f"{parse(url)} {parse(url)!r}"
    with pytest.raises(InvalidArgument) as caught:
        parse(url + "&oops=1")
    assert "s3cret" not in str(caught.value)


FRAME = b"\x01\x00\x00\xff\xff\xff\xff"
"""The beginning of a frame of a method, of 4 GiB."""


def broker(host: str, port: int = 5672, gate: AddressGate | None = None) -> Broker:
    return Broker(parse(f"amqp://{host}:{port}/?exchange=x"), SYSTEM_CLOCK, gate)


@pytest.mark.parametrize("start", [FRAME, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_frame_without_end_is_not_kept(start: bytes) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            await reader.readexactly(8)
            writer.write(start)
            while sent < 64 << 20:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
        except OSError:
            pass  # the client has closed the connection
        finally:
            writer.close()

    async def story() -> None:
        server = await asyncio.start_server(flood, "127.0.0.1", 0)
        one = broker("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(LOST):
            await one.channel()
        await one.close()
        server.close()
        await server.wait_closed()

    asyncio.run(story())
    assert sent < 32 << 20


def test_a_limit_for_frames_that_would_make_millions_of_a_body_is_refused() -> None:
    answers = [
        commands.Connection.Start(server_properties={}, mechanisms="PLAIN", locales="en_US"),
        commands.Connection.Tune(channel_max=10, frame_max=9, heartbeat=0),
        commands.Connection.OpenOk(),
    ]

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.read(4096)
            writer.write(frame.marshal(answer, 0))
        await reader.read()
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        one = broker("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(Refused, match="frames of 9 bytes"):
            await one.channel()
        await one.close()
        server.close()
        await server.wait_closed()

    asyncio.run(story())


def test_a_private_host_and_an_unknown_one_are_refused_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a stranger could find out which names exist in the network of the server."""

    def find(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def refused(one: Broker) -> str:
        with pytest.raises(Refused) as error:
            await one.channel()
        await one.close()
        return str(error.value)

    async def story() -> None:
        private = await refused(broker("127.0.0.1", gate=AddressGate()))
        monkeypatch.setattr(socket, "getaddrinfo", find)
        unknown = await refused(broker("mq.example", gate=AddressGate()))
        assert private.replace("127.0.0.1", "mq.example") == unknown

    asyncio.run(story())
