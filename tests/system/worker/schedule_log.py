"""What the tests of schedules write down, and where they look."""

from datetime import datetime
from typing import Any

import bide
from bide.model.commands import Scan
from bide.model.message import Message
from bide.model.replies import Page
from bide.worker.periodic.ticks import SCHEDULE_ID
from tests.system.worker.worker_app import Scene, until

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

    async def put(self, count: int = 1, queue: str = "reports") -> None:
        """Wait until a process has put the message of the schedule."""
        scene = self.scene
        await until(lambda: scene.counts_in_file(queue).flow.put == count)

    async def pending(self, queue: str = "reports") -> list[Message]:
        reply = await self.scene.lane.acall(Scan(queue, "next"))
        assert isinstance(reply, Page)
        return reply.messages

    async def next_times(self, queue: str = "reports") -> list[str]:
        """The time of the next run, in the zone of the schedule."""
        zone = self.scene.app.schedules[queue].recurrence.zone
        return [
            f"{message.run_at.astimezone(zone):%H:%M}"
            for message in await self.pending(queue)
            if message.id == SCHEDULE_ID and message.run_at is not None
        ]


def _time(moment: datetime | None) -> Any:
    return None if moment is None else f"{moment:%H:%M}"
