"""What the tests of push speak with: a store, a clock of its own, a receiver and a pusher."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bide.engines.sqlite import SqliteEngine
from bide.lane.lane import Lane
from bide.model import body as bodies
from bide.model.commands import Command, Count, Find, Put
from bide.model.message import Item, Message
from bide.model.replies import Counts, Found
from bide.targets.http.addresses import AddressGate
from bide.targets.http.client import HttpClient
from bide.targets.http.peers import CIRCUITS
from bide.targets.http.receiver import Circuit
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription
from bide.targets.http.subscription_worker import SubscriptionWorker
from bide.targets.pusher import Pusher
from bide.testing import FakeClock, FlakyEngine
from tests.system.targets.http.receiver import Receiver, receiver
from tests.system.worker.worker_app import step as step_on

PATIENCE = 60.0

LOOPBACK = ("127.0.0.0/8", "::1/128")


class Stage:
    def __init__(self, path: Path, now: int | None = None) -> None:
        self.path = path
        self.clock = FakeClock(round(time.time() * 1000) if now is None else now)
        self.engine = FlakyEngine(SqliteEngine(path, durability="normal", timeout=0.05))
        self.lane = Lane(lambda: self.engine, self.clock)
        self.records = Records(self.lane, self.clock)
        self.secret = ""

    def play(self, story: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            try:
                await asyncio.wait_for(story, 90)
            finally:
                self.lane.close()
                self.engine.close()  # a lane that was never asked has none to close

        asyncio.run(whole())

    async def subscribe(self, url: str, **fields: Any) -> Subscription:
        given = {"name": "shop", "queue": "q", "url": url, **fields}
        kept, secret, _ = await self.records.put(Subscription(**given))
        self.secret = secret or self.secret
        return kept

    @asynccontextmanager
    async def pushing(self, grace: float = 0.0, **options: Any) -> AsyncIterator[Pusher]:
        gate = options.pop("gate", AddressGate(LOOPBACK))
        others = {name: options.pop(name) for name in ("lookup", "tls", "limit") if name in options}
        client = HttpClient(self.clock, gate, **others)
        pusher = Pusher(self.lane, self.clock, gate=gate, client=client, **options)
        task = asyncio.create_task(pusher.run(grace))
        try:
            await until(lambda: task.done() or pusher.looked)
            yield pusher
        finally:
            task.cancel()
            while not (await asyncio.wait([task], timeout=0.05))[0]:
                self.clock.advance(1)
            if not task.cancelled():
                task.result()

    @asynccontextmanager
    async def at_work(
        self, *, options: dict[str, Any] | None = None, **fields: Any
    ) -> AsyncIterator[tuple[Receiver, SubscriptionWorker]]:
        """A receiver, a subscription to it, and a pusher that is at work."""
        async with receiver() as it:
            await self.subscribe(it.url, **fields)
            async with self.pushing(**(options or {})) as pusher:
                yield it, pusher.workers["shop"]

    async def put(self, *values: Any, queue: str = "q", **options: Any) -> None:
        items = []
        for number, value in enumerate(values):
            data, is_json = bodies.encode(value)
            id = options.get("id") or f"m{number}"
            more = {key: value for key, value in options.items() if key != "id"}
            items.append(Item(id, data, is_json, **more))
        await self.lane.acall(Put(queue, items))

    async def find(self, id: str, queue: str = "q") -> Message:
        reply = await self.lane.acall(Find(queue, [id]))
        assert isinstance(reply, Found)
        assert reply.messages[0] is not None
        return reply.messages[0]

    def counts(self, queue: str = "q") -> Counts:
        reader = SqliteEngine(self.path, read_only=True)
        (reply,) = reader.execute([Count(queue)], self.clock.now())
        reader.close()
        assert isinstance(reply, Counts)
        return reply

    def circuit(self) -> Circuit:
        """Return the circuit of the subscription that other servers see."""
        reader = SqliteEngine(self.path, read_only=True)
        (reply,) = reader.execute([Find(CIRCUITS, ["shop"])], self.clock.now())
        reader.close()
        assert isinstance(reply, Found)
        (found,) = reply.messages
        return Circuit() if found is None else msgspec.json.decode(found.data, type=Circuit)

    async def acked(self, count: int, queue: str = "q") -> None:
        await until(lambda: self.counts(queue).flow.acked == count)

    async def dead(self, count: int, queue: str = "q") -> None:
        await until(lambda: self.counts(queue).sizes.dead == count)

    async def delayed(self, count: int, queue: str = "q") -> None:
        await until(lambda: self.counts(queue).sizes.delayed == count)

    async def ready(self, count: int, queue: str = "q") -> None:
        await until(lambda: self.counts(queue).sizes.ready == count)

    async def pass_time(
        self, condition: Callable[[], object], step: float = 0.1, pause: float = 0.002
    ) -> None:
        """Move the clock on until something comes to pass, however late others begin to wait.

        Where it must not take longer than so by this clock, a `pause` between two steps leaves a
        slow machine the time for what takes none.
        """
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            await step_on(self.clock, self.lane, step, pause)

    def sent(self, kind: type[Command]) -> list[Any]:
        """Return the commands of a kind that have reached the store."""
        return [one for batch in list(self.engine.batches) for one in batch if type(one) is kind]


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.001)


async def error_of(stage: Stage) -> str:
    await stage.delayed(1)
    error = (await stage.find("m0")).error
    assert error is not None
    return error
