"""Publishing to a real broker, and what becomes of messages when that goes wrong."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiormq import spec

from bide.model.commands import Put
from bide.model.errors import StoreFull
from bide.targets.http import addresses
from bide.targets.http.addresses import AddressGate
from bide.targets.http.receiver import ReceiverAnswer
from bide.targets.rabbitmq import broker as brokers
from bide.targets.rabbitmq import publisher as publishers
from bide.targets.rabbitmq.messages import Publication
from bide.targets.rabbitmq.publisher import STATUS, Publisher, answer
from tests.system.rabbitmq.environment import PATIENCE, Stage, until
from tests.system.rabbitmq.proxy import proxy


async def publish(
    to: Publisher, key: str = "k", patience: float = PATIENCE, id: str = "m1", **properties: Any
) -> ReceiverAnswer:
    given = spec.Basic.Properties(message_id=id, delivery_mode=2, **properties)
    return await to.publish(Publication(b"hi", given, key), patience)


def outcome_of(answer: ReceiverAnswer) -> str:
    return next(name for name, status in STATUS.items() if status == answer.status)


def test_messages_are_confirmed_and_arrive_as_they_were(stage: Stage) -> None:
    async def story() -> None:
        async with stage.publisher() as to:
            sent: Any = {"headers": {"a": 1}, "content_type": "text/plain", "priority": 3}
            assert await publish(to, **sent) == answer("confirmed")
        got = await stage.receive()
        assert (got.body, got.message_id, got.headers, got.priority) == (b"hi", "m1", {"a": 1}, 3)
        assert (got.content_type, got.delivery_mode) == ("text/plain", 2)

    stage.play(story)


def test_each_of_many_in_flight_gets_its_own_result(stage: Stage) -> None:
    async def story() -> None:
        async with stage.publisher() as to:
            keys = ["k" if number % 10 else "nowhere" for number in range(300)]
            found = await asyncio.gather(
                *[publish(to, key, id=str(number)) for number, key in enumerate(keys)]
            )
            wanted = ["confirmed" if key == "k" else "unroutable" for key in keys]
            assert [outcome_of(one) for one in found] == wanted
            assert found[0].text == "unroutable: NO_ROUTE nowhere"
        assert await stage.count() == 270

    stage.play(story)


def test_messages_of_two_queues_with_one_id_are_not_mistaken_for_each_other(stage: Stage) -> None:
    async def story() -> None:
        async with stage.publisher() as to:
            found = await asyncio.gather(publish(to, "nowhere"), publish(to), publish(to, "no"))
            assert [outcome_of(one) for one in found] == ["unroutable", "confirmed", "unroutable"]
        assert await stage.count() == 1

    stage.play(story)


def test_a_message_that_makes_the_broker_close_the_channel_harms_no_other(stage: Stage) -> None:
    async def story() -> None:
        async with stage.publisher() as to:
            found = await asyncio.gather(
                *[publish(to, id=f"a{number}") for number in range(20)],
                publish(to, id="bad", headers={"CC": "no list"}),
                *[publish(to, id=f"b{number}") for number in range(20)],
            )
            assert [outcome_of(one) for one in found] == ["confirmed"] * 20 + ["unfit"] + [
                "confirmed"
            ] * 20
            assert "PRECONDITION_FAILED" in found[20].text
        got = {(await stage.receive()).message_id for _ in range(await stage.count())}
        assert got == {f"{letter}{number}" for letter in "ab" for number in range(20)}

    stage.play(story)


def test_a_quorum_queue_ignores_priorities_and_lets_messages_expire(stage: Stage) -> None:
    """As the documentation says of RabbitMQ 3.10."""

    async def story() -> None:
        quorum = await stage.channel.declare_queue(
            f"{stage.exchange}.quorum", durable=True, arguments={"x-queue-type": "quorum"}
        )
        await quorum.bind(stage.exchange, "quorum")
        async with stage.publisher() as to:
            for id, more in (("gone", {"expiration": "1"}), ("low", {}), ("high", {"priority": 9})):
                assert await publish(to, "quorum", id=id, **more) == answer("confirmed")
        got = [(await stage.receive(quorum.name)).message_id for _ in range(2)]
        assert got == ["low", "high"]
        await quorum.delete(if_unused=False, if_empty=False)

    stage.play(story)


def test_what_amqp_cannot_hold_spoils_nothing(stage: Stage) -> None:
    async def story() -> None:
        async with stage.publisher() as to:
            found = await asyncio.gather(
                *[publish(to, headers={"a": value}) for value in (2**70, 1e300, b"1")],
                publish(to, id="m2"),
            )
            assert [outcome_of(one) for one in found] == ["unfit"] * 3 + ["confirmed"]
            assert "Unsupported numeric value" in found[0].text

    stage.play(story)


def test_a_queue_that_is_full_rejects_messages(stage: Stage) -> None:
    async def story() -> None:
        full = await stage.channel.declare_queue(
            f"{stage.exchange}.full",
            auto_delete=True,
            arguments={"x-max-length": 1, "x-overflow": "reject-publish"},
        )
        await full.bind(stage.exchange, "full")
        async with stage.publisher() as to:
            found = [await publish(to, "full") for _ in range(3)]
            assert outcome_of(found[-1]) == "nacked"
            assert "rejected" in found[-1].text
            assert outcome_of(await publish(to)) == "confirmed"

    stage.play(story)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("exchange=x", "exchange=nope"), "NOT_FOUND - no exchange 'nope"),
        (("guest:guest@", "guest:wrong@"), "ACCESS_REFUSED"),
        (("guest:guest@", "reader:reader@"), "ACCESS_REFUSED - access to exchange"),
        (("/?", "/nothing?"), "no such virtual host"),
        (("amqp:", "amqps:"), "does not speak TLS"),
    ],
)
def test_a_refusal_has_the_brokers_reason_and_no_password(
    stage: Stage, change: tuple[str, str], told: str
) -> None:
    async def story() -> None:
        async with stage.publisher(stage.url().replace(*change, 1)) as to:
            for found in await asyncio.gather(publish(to), publish(to)):
                assert outcome_of(found) == "refused"
                assert told in found.text
                assert "wrong" not in found.text

    stage.play(story)


def test_an_exchange_that_is_declared_later_is_found(stage: Stage) -> None:
    async def story() -> None:
        async with stage.publisher(stage.url().replace(stage.exchange, f"{stage.exchange}b")) as to:
            assert outcome_of(await publish(to)) == "refused"
            late = await stage.channel.declare_exchange(f"{stage.exchange}b", auto_delete=True)
            await (await stage.channel.get_queue(stage.queue)).bind(late, "k")
            assert outcome_of(await publish(to)) == "confirmed"

    stage.play(story)


def test_tls_is_checked(stage: Stage, authority: Path) -> None:
    async def story() -> None:
        for file, outcome in (("ca.pem", "confirmed"), ("another.pem", "refused")):
            url = (
                f"amqps://guest:guest@localhost:{stage.broker.tls_port}/"
                f"?exchange={stage.exchange}&cafile={authority / file}"
            )
            async with stage.publisher(url) as to:
                found = await publish(to)
                assert outcome_of(found) == outcome
        assert "certificate of localhost could not be verified" in found.text
        async with stage.publisher(url.replace("another", "missing")) as to:
            assert "cannot be read" in (await publish(to)).text

    stage.play(story)


def test_only_addresses_that_the_gate_allows_are_connected_to(stage: Stage) -> None:
    class Closed(AddressGate):
        def lets(self, address: str, port: int) -> bool:
            return address != "127.0.0.1"

    async def story() -> None:
        async with stage.publisher(gate=Closed()) as to:
            assert "not public" in (await publish(to)).text

    stage.play(story)


def test_an_address_that_does_not_answer_is_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lookup(*_: object) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(brokers, "lookup", lookup)
    monkeypatch.setattr(addresses, "TRY", 0.1)

    async def story() -> None:
        with ExitStack() as sockets:
            silent = sockets.enter_context(socket.socket())
            silent.bind(("127.0.0.2", stage.broker.port))
            silent.listen(0)
            for _ in range(3):  # when its queue is full, the system drops what wants to connect
                one = sockets.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(("127.0.0.2", stage.broker.port))
            async with stage.publisher() as to:
                assert await publish(to, patience=8) == answer("confirmed")

    stage.play(story)


def test_what_was_in_flight_when_the_connection_was_cut_is_published_again(stage: Stage) -> None:
    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            async with stage.publisher(stage.url(port=line.port)) as to:
                assert await publish(to) == answer("confirmed")
                line.hold_answers()
                flying = [asyncio.create_task(publish(to, id=str(n))) for n in range(100)]
                await stage.arrived(2)
                line.cut()
                assert {outcome_of(one) for one in await asyncio.gather(*flying)} == {"confirmed"}
                assert line.connections == 2
        got = {(await stage.receive()).message_id for _ in range(await stage.count())}
        assert got == {"m1", *map(str, range(100))}

    stage.play(story)


def test_a_half_open_connection_is_given_up(stage: Stage) -> None:
    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            async with stage.publisher(stage.url(port=line.port)) as to:
                assert await publish(to) == answer("confirmed")
                line.freeze()
                found = await publish(to, patience=0.5)
                assert (outcome_of(found), "in time" in found.text) == ("away", True)
                assert await publish(to) == answer("confirmed")

    stage.play(story)


@pytest.mark.full
def test_missed_heartbeats_end_a_connection(stage: Stage) -> None:
    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            async with stage.publisher(stage.url("&heartbeat=1", port=line.port)) as to:
                assert await publish(to) == answer("confirmed")
                line.freeze()
                assert await publish(to) == answer("confirmed")
                assert line.connections == 2

    stage.play(story)


DISK = 'rabbit_disk_monitor:set_disk_free_limit("%dMB"), '
MEMORY = "vm_memory_monitor:set_vm_memory_high_watermark({absolute, %d})."


@pytest.mark.full
def test_while_the_broker_lacks_memory_or_disk_messages_wait_and_intakes_go_on(
    stage: Stage,
) -> None:
    away = stage.engine.fail(StoreFull("no space"), when=lambda c: isinstance(c, Put), times=None)

    async def limit(memory: int, disk: int) -> None:
        await asyncio.to_thread(stage.broker.ctl, "eval", DISK % disk + MEMORY % memory)

    async def story() -> None:
        async with stage.intake() as intake, stage.publisher() as to:
            assert await publish(to) == answer("confirmed")
            await stage.send(message_id="in", headers={"x-delay": 60_000})
            await until(lambda: away.struck)
            try:
                await limit(memory=1_000_000, disk=10)
                while not await to.blocked():  # the broker says so at the next message
                    await publish(to, patience=0.2)
                assert await publish(to, patience=0.2) == answer("away", publishers.BLOCKED)
                waiting = asyncio.create_task(publish(to))
                await limit(memory=1_000_000_000, disk=1_000_000_000)
                stage.engine.heal()
                await stage.stored(1)
                await until(lambda: intake.taken.stored == 1)
                assert not waiting.done()
            finally:
                await limit(memory=1_000_000_000, disk=10)
            assert await waiting == answer("confirmed")

    stage.play(story)


def test_a_broker_that_is_not_there_is_waited_for(stage: Stage) -> None:
    async def story() -> None:
        async with proxy(stage.broker.port) as line:
            url = stage.url(port=line.port)
        async with stage.publisher(url) as to:
            found = await publish(to, patience=2)
            assert (outcome_of(found), found.text[:18]) == ("away", "the broker is away")

    stage.play(story)
