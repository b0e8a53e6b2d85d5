"""Two stores to move between, and a way to have anything happen before and after each command."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import bide
from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine, Identities
from bide.engines.sqlite import SqliteEngine
from bide.lane.lane import Lane
from bide.lane.shared import _open
from bide.model.commands import Command
from bide.model.replies import Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine

__all__ = ["Killed", "Stores", "WatchedEngine"]


class Killed(BaseException):
    """Stands for kill -9: from here on the process does nothing any more."""


class WatchedEngine(FlakyEngine):
    """Calls somebody before and after each batch; reads go the same way as the rest."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.before: Callable[[Sequence[Command]], None] = lambda commands: None
        self.after: Callable[[Sequence[Command]], None] = lambda commands: None

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        self.before(commands)
        replies = super().execute(commands, now, identities)
        self.after(commands)
        return replies

    def reader(self) -> Engine | None:
        return None


class Stores:
    """Two stores by name, "old" and "new", on one clock."""

    def __init__(self, kinds: tuple[str, str], folder: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.engines: dict[str, WatchedEngine] = {}
        self._lanes: list[Lane] = []
        self._keys: list[tuple[str, int, int]] = []
        for name, kind in zip(("old", "new"), kinds, strict=True):
            inner: Engine
            if kind == "memory":
                inner = MemoryEngine()
            else:
                inner = SqliteEngine(folder / f"{name}.db", durability="normal")
            engine = self.engines[name] = WatchedEngine(inner)
            key = self.url(name), id(clock), os.getpid()
            lane = Lane(lambda engine=engine: engine, clock)  # type: ignore[misc]
            _open[key], lane.users = lane, [None]
            self._lanes.append(lane)
            self._keys.append(key)

    def url(self, name: str) -> str:
        return f"memory://{name}"

    def queue(self, store: str, name: str = "orders") -> bide.Queue:
        """Return a queue by which a mover, or anybody else, sees the store."""
        return bide.Queue(name, self.url(store), clock=self.clock)

    def ask(self, store: str, command: Command) -> Reply:
        """Carry out a command of somebody else's, past everything that is watched."""
        (reply,) = self.engines[store].engine.execute([command], self.clock.now())
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        for key in self._keys:
            _open.pop(key, None)
        for lane in self._lanes:
            lane.close()
        for engine in self.engines.values():
            engine.close()  # a lane that was never asked has none to close
