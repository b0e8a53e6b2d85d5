"""Messages that were published with a delay, on their way into the store."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aio_pika import IncomingMessage
from aiormq import spec
from pamqp import encode

from bide.clock import SYSTEM_CLOCK
from bide.consuming.store_client import StoreClient
from bide.model.commands import Ack, BuryCommand, Cancel, Claim, Lease, Put
from bide.model.errors import InvalidArgument, StoreFull
from bide.model.limits import MAX_AMQP_BODY, MAX_BODY
from bide.model.replies import Claimed
from bide.targets.amqp import parse
from bide.targets.rabbitmq import intake as intakes
from bide.targets.rabbitmq.intake import Intake
from bide.targets.rabbitmq.redelivery import RECORDS
from tests.system.rabbitmq.environment import Stage, until
from tests.system.rabbitmq.proxy import proxy


def test_messages_are_stored_under_their_ids_with_their_delays(stage: Stage) -> None:
    async def story() -> None:
        async with stage.intake() as intake:
            await stage.send(
                b'{"a":1}',
                "a.b",
                message_id="m1",
                headers={"x-delay": 60_000},
                content_type="application/json",
            )
            await stage.send(message_id="m2", headers={"bide-at": 1_893_456_000}, priority=5)
            await stage.stored(2)
            first, second = await stage.find("m1"), await stage.find("m2")
            assert first is not None
            assert second is not None
            assert (first.data, first.json, first.state) == (b'{"a":1}', True, "delayed")
            assert (first.headers or {})["amqp-key"] == "a.b"
            assert (second.due, second.priority) == (1_893_456_000_000, 5)
            await until(lambda: intake.taken.stored == 2)
        assert await stage.count(f"{stage.exchange}.delayed") == 0

    stage.play(story)


def puts_into(stage: Stage) -> Callable[[object], bool]:
    """Return what fails while the store is full; what else an intake writes still fits."""
    return lambda command: isinstance(command, Put) and command.queue == stage.exchange


def test_a_message_is_acknowledged_once_it_is_stored(stage: Stage) -> None:
    fault = stage.engine.fail(StoreFull("no space"), when=puts_into(stage), times=None)

    async def story() -> None:
        async with stage.intake() as intake:
            await stage.send(message_id="m1", headers={"x-delay": 60_000})
            await until(lambda: intake.taken.waiting and fault.struck >= 3)
            # Were it killed now, what is recorded would be dropped when it comes again.
            records = await stage.counts(RECORDS)
            assert (intake.taken.stored, records.sizes.total, records.flow.put) == (0, 0, 1)
        assert (await stage.receive(f"{stage.exchange}.delayed", keep=True)).message_id == "m1"
        stage.engine.heal()
        async with stage.intake() as intake:
            await until(lambda: intake.taken.stored == 1)
        assert await stage.count(f"{stage.exchange}.delayed") == 0

    stage.play(story)


def test_an_intake_that_stops_while_it_stores_loses_nothing(stage: Stage) -> None:
    async def story() -> None:
        stage.engine.fail(StoreFull("no space"), when=puts_into(stage), times=None)
        with ExitStack() as held:
            async with stage.intake():
                held.enter_context(stage.engine.held())
                await stage.send(message_id="m1")
                await asyncio.to_thread(stage.engine.wait_until_held)
                asyncio.get_running_loop().call_later(0, held.close)  # the intake stops before it
        stage.engine.heal()
        async with stage.intake():
            await stage.stored(1)

    stage.play(story)


def test_a_store_that_is_back_gets_what_waited(stage: Stage) -> None:
    stage.engine.fail(StoreFull("no space"), when=lambda c: isinstance(c, Put), times=3)

    async def story() -> None:
        async with stage.intake() as intake:
            await asyncio.gather(*[stage.send(message_id=str(n)) for n in range(50)])
            await stage.stored(50)
            await until(lambda: intake.taken.stored == 50)
            assert not intake.taken.waiting

    stage.play(story)


def test_a_message_that_comes_again_is_one_message(stage: Stage) -> None:
    async def story() -> None:
        async with stage.intake() as intake:
            for _ in range(3):
                await stage.send(message_id="m1", headers={"x-delay": 60_000})
            await until(lambda: intake.taken.repeated == 2)
            assert (await stage.counts()).sizes.total == 1

    stage.play(story)


def test_a_message_id_that_is_in_use_with_another_body_loses_nothing(stage: Stage) -> None:
    async def story() -> None:
        async with stage.intake() as intake:
            sent = [stage.send(body, message_id="m1") for body in (b"a", b"b", b"c", b"a")]
            await asyncio.gather(*sent)
            await stage.stored(3)
            await until(lambda: intake.taken.repeated == 1)
            assert intake.taken.renamed == 2
            reply = await stage.lane.acall(Claim(stage.exchange, 10, 60_000, "test"))
            assert isinstance(reply, Claimed)
            assert sorted(one.data for one in reply.messages) == [b"a", b"b", b"c"]
            given = [(one.headers or {}).get("bide-message-id") for one in reply.messages]
            assert sorted(given, key=str) == [None, "m1", "m1"]

    stage.play(story)


def test_a_message_that_is_published_again_after_its_death_is_delivered(stage: Stage) -> None:
    async def story() -> None:
        async with stage.intake() as intake:
            await stage.send(b"a", message_id="m1")
            await stage.stored(1)
            await stage.lane.acall(BuryCommand(stage.exchange, await claim(stage), "why"))
            await stage.send(b"a", message_id="m1")
            await stage.stored(2)
            await until(lambda: intake.taken.renamed == 1)
            sizes = (await stage.counts()).sizes
            assert (sizes.dead, sizes.ready) == (1, 1)

    stage.play(story)


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_message_that_its_consumer_publishes_again_at_once_is_not_lost(
    stage: Stage, confirmed: bool
) -> None:
    """To try again later, say: bide may not have noted yet that it was confirmed."""

    async def story() -> None:
        async with stage.intake() as intake:
            await stage.send(b"a", message_id="m1")
            await stage.stored(1)
            leases = await claim(stage)
            original = intake.find

            async def late(channel: Any, arrived: Any) -> Any:
                if not arrived:
                    return []
                intake.find = original  # type: ignore[method-assign]
                found = await original(channel, arrived)
                await stage.lane.acall(Ack(stage.exchange, leases))
                return found

            if confirmed:
                intake.find = late  # type: ignore[method-assign]
            await stage.send(b"a", message_id="m1", headers={"x-delay": 60_000})
            await stage.stored(2)
            assert (await stage.counts()).sizes.delayed == 1
            await until(lambda: intake.taken.stored == 2)
            assert intake.taken.renamed == (not confirmed)

    stage.play(story)


def test_an_id_that_becomes_free_meanwhile_is_taken(stage: Stage) -> None:
    """Between the put that met a message and the look at that message, it may be acked."""

    async def story() -> None:
        async with stage.intake() as intake:
            await stage.send(b"a", message_id="m1")
            await stage.stored(1)
            (claimed,) = await claim(stage)
            original = intake.find

            async def late(channel: Any, arrived: Any) -> Any:
                if not arrived:
                    return []
                intake.find = original  # type: ignore[method-assign]
                await stage.lane.acall(Ack(stage.exchange, [claimed]))
                return await original(channel, arrived)

            intake.find = late  # type: ignore[method-assign]
            await stage.send(b"b", message_id="m1")
            await stage.stored(2)
            found = await stage.find("m1")
            assert found is not None
            assert found.data == b"b"

    stage.play(story)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"headers": {"x-delay": "soon"}}, "x-delay='soon' must be milliseconds"),
        ({"body": b"x" * (MAX_BODY + 1)}, "takes 1,048,577 bytes, the limit is 1,048,576"),
    ],
)
def test_what_cannot_be_stored_is_a_dead_letter_with_the_reason(
    stage: Stage, fields: dict[str, Any], told: str
) -> None:
    async def story() -> None:
        async with stage.intake() as intake:
            await stage.send(message_id="bad", **fields)
            await stage.send(message_id="good")
            letter = await stage.receive(f"{stage.exchange}.delayed.dead")
            assert told in str(letter.headers["bide-reason"])
            assert (letter.message_id, letter.routing_key) == ("bad", "k")
            await stage.stored(1)
            await until(lambda: intake.taken.refused == 1)
            assert await stage.find("bad") is None

    stage.play(story)


class Raw(spec.Basic.Properties):
    """Properties that the client library would not send: one bit says which, then its bytes."""

    def __init__(self, bit: int, value: bytes) -> None:
        super().__init__()
        self.raw = struct.pack(">H", bit) + value

    def marshal(self) -> bytes:
        return self.raw


def table(*fields: bytes) -> bytes:
    """Return a table of names and values in turn."""
    named = zip(fields[::2], fields[1::2], strict=True)
    inner = b"".join(bytes([len(name)]) + name + value for name, value in named)
    return struct.pack(">I", len(inner)) + inner


def nested(levels: int) -> bytes:
    value = bytes(4)
    for _ in range(levels):
        value = table(b"a", b"F" + value)
    return value


def text(value: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(value)) + value


HUGE = b"d" + struct.pack(">d", 1e300)
HEADERS, MESSAGE_ID, TIMESTAMP = 0x2000, 0x80, 0x40


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(Raw(MESSAGE_ID, b"\2\xff\xfe"), id="message_id is not UTF-8"),
        pytest.param(Raw(HEADERS, table(b"\xff", b"t\1")), id="name of a header is not UTF-8"),
        pytest.param(Raw(HEADERS, table(b"x-delay", text(b"\xff"))), id="x-delay is not UTF-8"),
        pytest.param(Raw(HEADERS, table(b"x-delay", text(b"1" * 130_900))), id="x-delay is huge"),
        pytest.param(Raw(HEADERS, table(b"x-delay", b"t\1", b"a", HUGE)), id="a number is huge"),
        pytest.param(Raw(HEADERS, nested(300)), id="headers are deep"),
        pytest.param(Raw(HEADERS, nested(5_000)), id="headers are very deep"),
        pytest.param(Raw(TIMESTAMP, struct.pack(">Q", 2**63)), id="timestamp is impossible"),
        pytest.param(None, id="routing key is not UTF-8"),
        pytest.param(spec.Basic.Properties(message_id="huge"), id="body is huge"),
    ],
)
def test_a_hostile_message_stops_no_other(
    stage: Stage, raw: spec.Basic.Properties | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker takes them all. aiormq would lose its connection by most, again and again."""
    key = "bad" if raw is None else "k"
    body = b"x" * (MAX_AMQP_BODY + 1) if raw is not None and raw.message_id else b"bad"

    def short_string(value: str) -> bytes:
        return b"\3\xff\xfek" if value == "bad" else encode.short_string(value)

    async def story() -> None:
        delayed, dead = f"{stage.exchange}.delayed", f"{stage.exchange}.delayed.dead"
        async with stage.intake() as intake:
            underlay = await stage.channel.get_underlay_channel()
            await stage.send(message_id="before")
            with monkeypatch.context() as patch:
                patch.setitem(encode.METHODS, "shortstr", short_string)
                await underlay.basic_publish(
                    body, exchange=delayed, routing_key=key, properties=raw
                )
            await stage.send(message_id="after")
            await stage.stored(2)
            await until(lambda: (intake.taken.stored, intake.taken.refused) == (2, 1))
            assert intake.taken.connected
        assert await stage.count(delayed) == 0
        while await stage.count(dead) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    stage.play(story)


def test_the_broker_has_where_to_put_a_huge_message_even_if_that_was_deleted(stage: Stage) -> None:
    """It would drop a message that is rejected, while the log says that it is a dead letter."""

    async def story() -> None:
        dead = f"{stage.exchange}.delayed.dead"
        async with stage.intake() as intake:
            await stage.send(message_id="before")
            await stage.stored(1)
            await stage.channel.queue_delete(dead)
            await stage.channel.exchange_delete(dead)
            await stage.send(b"x" * (MAX_AMQP_BODY + 1), message_id="huge")
            await until(lambda: intake.taken.refused == 1)
            letter = await stage.receive(dead)
            assert (letter.message_id, len(letter.body)) == ("huge", MAX_AMQP_BODY + 1)

    stage.play(story)


def test_a_message_that_is_rejected_while_nobody_takes_dead_letters_is_kept(stage: Stage) -> None:
    async def story() -> None:
        delayed, dead = f"{stage.exchange}.delayed", f"{stage.exchange}.delayed.dead"
        async with stage.intake():
            pass
        await stage.channel.queue_delete(dead)
        await stage.channel.exchange_delete(dead)
        await stage.send(message_id="rejected")
        queue = await stage.channel.get_queue(delayed, ensure=False)
        await stage.arrived(1, delayed)
        message = await queue.get()
        await message.reject(requeue=False)
        async with stage.intake():  # declares them again
            letter = await stage.receive(dead)
            assert (letter.message_id, letter.body) == ("rejected", b"hi")

    stage.play(story)


def test_only_the_message_that_the_store_refuses_is_a_dead_letter(stage: Stage) -> None:
    def has_bad(command: object) -> bool:
        return isinstance(command, Put) and any(item.id == "bad" for item in command.items)

    stage.engine.fail(InvalidArgument("not that one"), when=has_bad, times=None)

    async def story() -> None:
        async with stage.intake() as intake:
            await asyncio.gather(*[stage.send(message_id=id) for id in ("a", "bad", "b")])
            letter = await stage.receive(f"{stage.exchange}.delayed.dead")
            assert (letter.message_id, letter.headers["bide-reason"]) == ("bad", "not that one")
            await stage.stored(2)
            await until(lambda: intake.taken.stored == 2)

    stage.play(story)


def test_messages_for_an_exchange_that_is_gone_are_dead_letters(stage: Stage) -> None:
    async def story() -> None:
        async with stage.intake() as intake:
            await stage.channel.exchange_delete(stage.exchange)
            intake.checked_at = float("-inf")
            await stage.send(message_id="m1")
            letter = await stage.receive(f"{stage.exchange}.delayed.dead")
            assert "does not exist" in str(letter.headers["bide-reason"])

    stage.play(story)


def test_a_message_that_was_cancelled_does_not_come_back(stage: Stage) -> None:
    """Its acknowledgement is lost with the connection, so the broker delivers it again."""

    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            async with stage.intake(stage.url(port=line.port)) as intake:

                async def lost(message: Any, multiple: bool = False) -> None:
                    line.cut()

                original, IncomingMessage.ack = IncomingMessage.ack, lost  # type: ignore[assignment, method-assign]
                try:
                    await stage.send(message_id="m1", headers={"x-delay": 60_000})
                    await stage.stored(1)
                    await stage.lane.acall(Cancel(stage.exchange, ["m1"]))
                    await until(lambda: line.connections > 1)
                finally:
                    IncomingMessage.ack = original  # type: ignore[method-assign]
                await until(lambda: intake.taken.repeated == 1)
            assert (await stage.counts()).flow.put == 1

    stage.play(story)


def test_a_message_that_was_cancelled_does_not_come_back_by_another_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that stored it dies before it has acknowledged it."""

    async def never(message: Any, multiple: bool = False) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(IncomingMessage, "ack", never)
            async with stage.intake():
                for id in ("m1", "m2"):
                    await stage.send(message_id=id, headers={"x-delay": 60_000})
                await stage.stored(1)
        await stage.lane.acall(Cancel(stage.exchange, ["m1"]))
        async with stage.intake() as intake:
            await stage.stored(2)
            await until(lambda: intake.taken.repeated + intake.taken.stored == 2)
            assert intake.taken.repeated >= 1
        assert await stage.find("m1") is None
        assert await stage.find("m2") is not None

    stage.play(story)


def test_what_is_acknowledged_is_not_remembered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intakes, "FORGET", 0.01)

    async def story() -> None:
        async with stage.intake():
            for number in range(3):
                await stage.send(message_id="m1", headers={"x-delay": 60_000})
                await stage.stored(number + 1)
                await stage.reached(number + 1, "flow.cancelled", RECORDS)
                await stage.lane.acall(Cancel(stage.exchange, ["m1"]))
        assert (await stage.counts(RECORDS)).sizes.total == 0

    stage.play(story)


async def claim(stage: Stage) -> list[Lease]:
    reply = await stage.lane.acall(Claim(stage.exchange, 10, 60_000, "test"))
    assert isinstance(reply, Claimed)
    return [Lease(one.id, reply.token) for one in reply.messages]


def test_an_intake_begins_only_where_its_exchange_is(stage: Stage) -> None:
    async def story() -> None:
        intake = Intake(
            parse(stage.url().replace(stage.exchange, "nope")),
            StoreClient(stage.lane, SYSTEM_CLOCK),
        )
        with pytest.raises(InvalidArgument, match="'nope' does not exist on"):
            await intake.declare()

    stage.play(story)


@pytest.mark.parametrize(
    ("user", "told"),
    [("reader", "ACCESS_REFUSED"), ("writer", "ACCESS_REFUSED"), ("guest", "PRECONDITION_FAILED")],
)
def test_an_intake_begins_only_where_it_may_declare(stage: Stage, user: str, told: str) -> None:
    async def story() -> None:
        if user == "guest":
            await stage.channel.declare_queue(f"{stage.exchange}.delayed", durable=True)
        access = StoreClient(stage.lane, SYSTEM_CLOCK)
        intake = Intake(parse(stage.url(user=user)), access)
        with pytest.raises(InvalidArgument, match=f"{told}.*needs the right to configure"):
            await intake.declare()

    stage.play(story)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("guest:guest@", "guest:wrong@"), "ACCESS_REFUSED"),
        (("/?", "/nothing?"), "no such virtual host"),
        (("amqp:", "amqps:"), "does not speak TLS"),
        (("amqp:", "amqps:", "&cafile=another.pem"), "could not be verified"),
        (("amqp:", "amqps:", "&cafile=missing.pem"), "cannot be read"),
    ],
)
def test_an_intake_begins_only_where_the_broker_lets_it_in(
    stage: Stage, authority: Path, change: tuple[str, ...], told: str
) -> None:
    async def story() -> None:
        old, new, *tls = change
        url = stage.url(port=stage.broker.tls_port if tls else None).replace(old, new, 1)
        if tls:
            url = url.replace("127.0.0.1", "localhost") + tls[0].replace("=", f"={authority}/")
        intake = Intake(parse(url), StoreClient(stage.lane, SYSTEM_CLOCK))
        with pytest.raises(InvalidArgument, match=told) as refused:
            await intake.declare()
        assert "wrong" not in str(refused.value)

    stage.play(story)


def test_messages_are_taken_over_tls(stage: Stage, authority: Path) -> None:
    async def story() -> None:
        url = stage.url(f"&cafile={authority}/ca.pem", port=stage.broker.tls_port)
        async with stage.intake(url.replace("amqp", "amqps", 1).replace("127.0.0.1", "localhost")):
            await stage.send(message_id="m1")
            await stage.stored(1)

    stage.play(story)


def test_an_intake_that_may_no_longer_declare_goes_on_when_it_may(stage: Stage) -> None:
    """Somebody deletes its queue, and declares another one under its name."""

    async def story() -> None:
        async with stage.intake() as intake:
            delayed = f"{stage.exchange}.delayed"
            await stage.channel.queue_delete(delayed)
            await stage.channel.declare_queue(delayed, durable=True)
            await until(lambda: not intake.taken.connected)
            await stage.channel.queue_delete(delayed)
            await until(lambda: intake.taken.connected)
            await stage.send(message_id="m1")
            await stage.stored(1)

    stage.play(story)


def test_a_connection_that_is_cut_or_half_open_loses_nothing(stage: Stage) -> None:
    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            async with stage.intake(stage.url("&heartbeat=1", port=line.port)) as intake:
                for number, fault in enumerate((line.cut, line.freeze)):
                    fault()
                    await asyncio.gather(
                        *[stage.send(message_id=f"{number}-{n}") for n in range(20)]
                    )
                    await stage.stored(20 * (number + 1))
                # The acknowledgement of the first 20 may have been lost: then they come again.
                await until(lambda: intake.taken.stored + intake.taken.repeated >= 40)
        assert (await stage.counts()).flow.put == 40

    stage.play(story)
