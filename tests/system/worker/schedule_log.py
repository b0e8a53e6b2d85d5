"""What the tests of schedules write down, and where they look."""

from datetime import datetime
from typing import Any

import bide
from bide.model.commands import Scan
from bide.model.message import Message
from bide.model.replies import Page
from bide.model.times import to_datetime
from bide.worker.periodic.schedule import TickBody, read
from tests.system.worker.worker_app import Scene

START = 1_772_442_000_000  # 2026-03-02 09:00:00 UTC, a Monday


class Diary:
    """The function of a schedule, which writes down its ticks."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.ticks: list[bide.Tick] = []
        self.late: list[float] = []
        scene.clock.set_wall(START)

    def write(self, tick: bide.Tick) -> None:
        self.ticks.append(tick)
        self.late.append(self.scene.clock.now() / 1000 - tick.due.timestamp())

    def add(self, queue: str = "reports", **options: Any) -> None:
        # The clock moves while a tick is on its way, and is not to outrun its lease.
        self.scene.app.schedule(queue, **{"lease": "12h", **options})(self.write)

    @property
    def count(self) -> int:
        return len(self.ticks)

    @property
    def times(self) -> list[str]:
        return [f"{tick.due:%H:%M}" for tick in self.ticks]

    @property
    def told(self) -> list[tuple[str, str | None, bool]]:
        """The moment of each tick, that of the one before it, and whether it was missed."""
        return [(_time(one.due), _time(one.previous), one.missed) for one in self.ticks]

    async def reach(self, count: int, step: float = 20) -> None:
        await self.scene.pass_calmly(lambda: self.count >= count, step)

    async def pending(self, queue: str = "reports") -> list[tuple[Message, TickBody]]:
        reply = await self.scene.lane.acall(Scan(queue, "next"))
        assert isinstance(reply, Page)
        return [(one, tick) for one in reply.messages if (tick := read(one)) is not None]

    async def next_times(self, queue: str = "reports") -> list[str]:
        zone = self.scene.app.schedules[queue].recurrence.zone
        return [
            f"{to_datetime(tick.due).astimezone(zone):%H:%M}"
            for _, tick in await self.pending(queue)
        ]


def _time(moment: datetime | None) -> Any:
    return None if moment is None else f"{moment:%H:%M}"
