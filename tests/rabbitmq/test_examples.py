"""The programs of `examples/rabbitmq`, on the broker of the tests."""

import asyncio

import pytest

from bide.engines.memory import MemoryEngine
from bide.lane.lane import Lane
from bide.targets.amqp import parse
from bide.targets.pusher import Pusher
from examples.rabbitmq import four_ways, shop
from tests.rabbitmq.broker import Broker
from tests.rabbitmq.environment import until


def test_an_order_times_out_once_and_at_no_other_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shop, "BROKER", broker.url)
    printed: list[str] = []

    def has_printed() -> bool:
        printed.append(capsys.readouterr().out)
        return any(printed)

    async def story() -> None:
        await shop.declare()
        lane = Lane(MemoryEngine)
        pusher = Pusher(lane, intakes=[parse(f"{broker.url}?exchange=shop")])
        enough = asyncio.Event()
        pushing = asyncio.create_task(pusher.run(5))
        consuming = asyncio.create_task(shop.consume(enough))
        await until(lambda: any(one.connected for one in pusher.sent.taken.values()))
        await shop.order(41, 0.3)
        await shop.order(42, 3600)
        await until(has_printed)
        pushing.cancel()
        enough.set()
        await asyncio.gather(pushing, consuming, return_exceptions=True)
        lane.close()

    asyncio.run(story())
    assert [text for text in printed if text] == ['order-41 timed out: {"order": 41}\n']


def test_the_four_ways_differ_as_the_documentation_says(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER", broker.url)
    monkeypatch.setattr(four_ways, "FAR", 3.0)
    monkeypatch.setattr(four_ways, "NEAR", 0.7)
    ttl, cascade, ours = asyncio.run(four_ways.main())
    assert ttl.overtaken == 0  # blocked by the message at the head of the queue
    assert cascade.overtaken == ours.overtaken == four_ways.COUNT
    assert min(cascade.late) > 0.25  # rounded up to whole seconds
    assert min(ours.late) >= 0
