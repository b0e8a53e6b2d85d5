"""How an intake begins at a broker, and goes on when a connection is lost."""

import asyncio
from pathlib import Path

import pytest

from bide.clock import SYSTEM_CLOCK
from bide.consuming.store_client import StoreClient
from bide.model.errors import InvalidArgument
from bide.targets.amqp import parse
from bide.targets.rabbitmq.intake import Intake
from tests.rabbitmq.environment import Stage, until
from tests.rabbitmq.proxy import proxy


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
