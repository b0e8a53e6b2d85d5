"""A shop with a database of its own, and how tests of its source look at what it does."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

import bide
from bide.model.commands import Command, Count, Put, RetryCommand, Scan
from bide.model.message import Message
from bide.model.replies import Counts, Page
from bide.worker.periodic.chain import moment_of
from bide.worker.periodic.source import WindowBody
from tests.system.worker.worker_app import PATIENCE, Scene

MINUTE = 60.0
HOME = "bide:source:orders:unpaid"


class Shop:
    """A database of the user's own: orders by the moment at which they time out."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.orders: dict[str, float] = {}
        self.asked: list[tuple[float, float]] = []
        self.start = scene.clock.now() / 1000

    def place(self, id: str, after: float) -> None:
        """Place an order that times out so many seconds after the start."""
        self.orders[id] = self.start + after

    def unpaid(self, after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
        assert after.tzinfo is UTC
        self.asked.append((after.timestamp() - self.start, before.timestamp() - self.start))
        for id, due in self.orders.items():
            if after.timestamp() <= due < before.timestamp():
                yield bide.NewMessage({"id": id}, at=due, id=id)

    @property
    def asks(self) -> int:
        return len(self.asked)


def changes(command: Command) -> bool:
    return isinstance(command, (Put, RetryCommand))


async def waiting(scene: Scene, home: str = HOME) -> Message:
    """Return the window that waits; the last, if one before it was handed back on leaving."""

    async def look() -> list[Message]:
        page = await scene.lane.acall(Scan(home, "next"))
        assert isinstance(page, Page)
        return page.messages

    deadline = time.monotonic() + PATIENCE
    while True:
        if found := await look():
            return max(found, key=lambda window: moment_of(window.id) or 0)
        assert time.monotonic() < deadline, "no window waits"
        await asyncio.sleep(0.001)


def body(window: Message) -> WindowBody:
    return msgspec.json.decode(window.data, type=WindowBody)


async def found(scene: Scene, queue: str = "orders") -> set[str]:
    page = await scene.lane.acall(Scan(queue))
    assert isinstance(page, Page)
    return {message.id for message in page.messages}


def ask(scene: Scene, shop: Shop, every: str = "1m", window: str = "10m", **options: Any) -> None:
    scene.app.source("orders", every=every, window=window, **options)(shop.unpaid)


async def found_all(scene: Scene) -> set[str]:
    reply = await scene.lane.acall(Count("orders"))
    assert isinstance(reply, Counts)
    page = await scene.lane.acall(Scan("orders", limit=10_000))
    assert isinstance(page, Page)
    assert reply.sizes.total == len(page.messages)
    return {message.id for message in page.messages}


async def progress(scene: Scene) -> WindowBody:
    while True:
        window = await waiting(scene)
        if (progress := body(window)).last is not None:
            return progress
        await asyncio.sleep(0.001)
