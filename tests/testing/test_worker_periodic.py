"""Sources and schedules in the hands of a test: asked and run as the clock is moved."""

from collections.abc import Iterator
from datetime import datetime

import pytest

import bide
from bide.testing import ManualWorker, ScratchStore


def test_a_source_fills_the_queue_while_time_passes(store: ScratchStore) -> None:
    app = bide.App()
    start = store.clock.now() / 1000
    orders = {f"o{number}": start + number * 600 for number in range(1, 4)}
    expired: list[tuple[str, float]] = []

    @app.source("orders", every="1m", window="10m")
    def unpaid(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
        for id, due in orders.items():
            if after.timestamp() <= due < before.timestamp():
                yield bide.NewMessage(id, at=due, id=id)

    @app.handler("orders")
    def expire(order: str) -> None:
        expired.append((order, store.clock.now() / 1000 - start))

    with ManualWorker(app, store) as worker:
        worker.run_due()
        assert expired == []
        worker.advance("20m")
        assert expired == [("o1", 600), ("o2", 1200)]
        asked = [one for one in worker.handled if one.queue == "bide:source:orders:unpaid"]
        assert len(asked) == 21


def test_what_a_source_raises_comes_out(store: ScratchStore) -> None:
    app = bide.App()

    @app.source("orders", every="1m", window="10m")
    def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
        raise OSError("the database is down")

    with ManualWorker(app, store) as worker:
        with pytest.raises(OSError, match="the database is down"):
            worker.run_due()


def test_a_schedule_ticks_while_time_passes(store: ScratchStore) -> None:
    app = bide.App()
    seen: list[str] = []

    @app.schedule("reports", cron="0 9 * * MON-FRI", timezone="Asia/Shanghai")
    async def report(tick: bide.Tick) -> None:
        assert store.clock.now() == tick.due.timestamp() * 1000
        seen.append(f"{tick.due:%a %H:%M}")

    with ManualWorker(app, store) as worker:
        worker.advance("7d")
    assert sorted(seen) == ["Fri 09:00", "Mon 09:00", "Thu 09:00", "Tue 09:00", "Wed 09:00"]
