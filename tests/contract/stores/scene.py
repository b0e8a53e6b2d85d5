"""Every kind of message, in a store: what a release leaves behind, for the next ones to open."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import bide
from bide.model.commands import Purge
from bide.observing.recorder import PastRecorder
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing import FakeClock, ManualWorker, ScratchStore
from tests.system.server.client import Client
from tests.system.server.conftest import running

__all__ = ["START", "app", "fill"]

START = datetime(2030, 1, 1, tzinfo=UTC)

HOLDER = "web1:4711"

LONG = "é" * 250
"""An id of 500 bytes."""

RECEIVER = "https://shop.example/hooks/bide?key=secret"

app = bide.App()
"""Leaves the messages of schedules and sources in the store."""

ticks: list[str] = []


@app.schedule("hourly", cron="0 * * * *")
def hourly(tick: bide.Tick) -> None:
    ticks.append("hourly")


@app.source("reminders", every="1h", window="2h")
def reminders(after: datetime, before: datetime) -> list[bide.NewMessage]:
    """Return the one that is due at three o'clock."""
    at = START.replace(hour=3)
    return [bide.NewMessage("remind", id="r3", at=at)] if after <= at < before else []


@app.handler("reminders")
def remind(body: Any) -> None:
    ticks.append(body)


def fill(url: str, clock: FakeClock) -> dict[str, str]:
    """Fill an empty store; return a token of its server, and the one that takes a change back."""
    with ScratchStore(url, clock) as store:
        with ManualWorker(app, store) as worker:
            worker.advance("1m")
        _orders(store)
        _dead(store)
        _remembered(store)
        _repeating()
        _running(store)
        _closed(store)
        _debounced(store)
        _limited(store)
        asyncio.run(PastRecorder(store.lane.acall, clock).record())
        token = Tokens(store.lane, clock).create(None, ["read", "admin"], name="ann")[0]
        taken = bide.Queue("taken", holder=HOLDER)
        taken.put_many([bide.NewMessage(n, id=f"t{n}", delay="1h", group="g") for n in range(3)])
        undo = taken.cancel(group="g", undo=True).undo
    _subscribe(url, clock, token)
    return {"token": token, "undo": undo}


def _orders(store: ScratchStore) -> None:
    """Messages that wait, of every form, and some that workers hold."""
    orders, clock = bide.Queue("orders", holder=HOLDER, actor="ann"), store.clock
    orders.put({"n": 1, "text": "große Straße", "none": None}, id="plain", delay="1h")
    orders.put(b"\x00\xff bytes", id="bytes", delay="2h", headers={"content-type": "image/png"})
    orders.put(
        [1, 2],
        id="all",
        delay="3h",
        priority=200,
        attempts=3,
        group="customer:7",
        expires="1d",
        headers={"trace": "af12"},
    )
    orders.put("long id", id=LONG, delay="90d", group=LONG)
    orders.put(12345678901234567890, id="replaced", delay=1)
    orders.put(1.5, id="replaced", delay="4h", on_conflict="replace")
    orders.put("x" * 100_000, id="large", delay="5h")
    orders.put("moved", id="moved", delay="1h")
    orders.reschedule("moved", delay="6h")
    orders.put("edited", id="edited", delay="1h", group="customer:8")
    orders.edit("edited", body={"edited": True}, priority=9, group=None)
    orders.put("gone", id="cancelled", delay="1h")
    orders.cancel("cancelled")
    orders.put_many([bide.NewMessage(n, id=f"hour-{n}", delay=3600 * n) for n in range(1, 50)])

    orders.put("tried", id="retried", expires="1d")
    (one,) = orders.claim(1)
    one.retry(delay="7h", reason="the shop is closed")
    orders.put("lost", id="lapsed", attempts=5)
    orders.claim(1, lease="5s")
    clock.advance(6)
    orders.put_many([bide.NewMessage(n, id=f"due-{n}", priority=n % 3) for n in range(9)])
    clock.advance(1)
    held = orders.claim(3, lease="10m")
    orders.extend(held[:1], lease="20m")
    orders.release(held[2:])
    paused = bide.Queue("paused", actor="ann")
    paused.put("waits", id="waits")
    paused.pause()
    paused.resume()
    clock.advance(1)
    paused.pause()
    bide.Queue("paused-for-a-week").pause(lasting="7d")
    bide.Queue("shop/orders").put("of a namespace", id="plain", delay="1h")


def _dead(store: ScratchStore) -> None:
    """Dead letters, of each cause."""
    mail = bide.Queue("mail", holder=HOLDER)
    mail.put_many([bide.NewMessage(n, id=f"mail-{n}", group="g") for n in range(3)])
    for one in mail.claim(3):
        one.bury(f"ValueError: {one.id} is no address\n" + "  a line\n" * 30)
    mail.put("often", id="often", attempts=25)
    for _ in range(25):
        store.clock.advance(1)
        (one,) = mail.claim(1)
        one.retry(reason=f"attempt {one.attempt}")
    mail.put("silent", id="silent", attempts=1)
    mail.claim(1, lease=1)
    store.clock.advance(2)
    mail.claim(1)
    mail.revive(["mail-2"], delay="8h")


def _remembered(store: ScratchStore) -> None:
    """What has ended, and is remembered."""
    kept = bide.Queue(
        "kept", keep="30d", history="30d", result_ttl="30d", holder=HOLDER, actor="ann"
    )
    kept.put({"n": 1}, id="acked", group="g", headers={"a": "b"})
    (one,) = kept.claim(1)
    store.clock.advance(2)
    one.retry(reason="once")
    (one,) = kept.claim(1)
    one.ack(result={"total": 3})
    kept.put("late", id="expired", expires=1)
    store.clock.advance(5)
    kept.claim(1)
    kept.put("x", id="cancelled", delay="1h")
    kept.cancel("cancelled")
    kept.put("x", id="purged")
    kept.claim(1)[0].bury("no")
    kept.purge(state="dead")
    kept.put("x", id="moved")
    kept.claim(1)[0].bury("no")
    store.lane.call(Purge("kept", "dead", ids=["moved"], moved=True))
    kept.put("x", id="buried")
    kept.claim(1)[0].bury("no")
    results = bide.Queue("results", result_ttl="30d", holder=HOLDER)
    for n in range(3):
        results.put(n, id="again")
        results.claim(1)[0].ack(result=n)


def _repeating() -> None:
    """Messages with rules of time: they repeat, have local dates, or wait for their windows."""
    repeating = bide.Queue("repeating", holder=HOLDER)
    repeating.put("weekly", id="cron", repeat=bide.Cron("0 9 * * MON", "Europe/Berlin"))
    repeating.put("often", id="period", repeat=bide.Every("15m", times=3))
    repeating.put("holiday", id="on hold", repeat=bide.Every("1h"))
    repeating.hold("on hold")
    repeating.put("local", id="date", at="2030-06-01 09:00", timezone="Europe/Paris")
    office = bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin")
    repeating.put("office", id="window", delay="12h", window=office)


def _running(store: ScratchStore) -> None:
    """Messages that workers hold: one says how far it has come, one is to stop, one repeats."""
    running = bide.Queue("running", holder=HOLDER, actor="ann")
    running.configure(overdue="spread 10m")
    running.put("half", id="reports")
    running.put("x", id="stops")
    running.put("now", id="repeats", delay=0, repeat=bide.Every("1h"))
    for delivery in running.claim(3, lease="10m"):
        if delivery.id == "reports":
            delivery.report(40, of=100, text="rows")
    running.cancel("stops", running=True)


def _closed(store: ScratchStore) -> None:
    """A group into which nothing may be put."""
    closed = bide.Queue("closed", holder=HOLDER)
    closed.put("x", id="paid", group="order:42", delay="1h")
    closed.put("y", id="unpaid", group="order:43", delay="1h")
    closed.close_group("order:42", keep="300d")


def _debounced(store: ScratchStore) -> None:
    """A message that puts have delayed, and one whose successor waits for the end of its lease."""
    edits = bide.Queue("edits", holder=HOLDER)
    for n in range(3):
        edits.put(n, id="typed", delay="5m", latest="30m", on_conflict="replace")
        store.clock.advance(60)
    edits.put("first", id="held")
    edits.claim(1, lease="10m")
    edits.put("second", id="held", delay="1h", latest="2h", on_conflict="replace")


def _limited(store: ScratchStore) -> None:
    """A queue with limits: some messages are leased, others wait in their groups."""
    limited = bide.Queue("limited", holder=HOLDER)
    limited.put_many([bide.NewMessage(n, id=f"old-{n}", group=f"g{n % 3}") for n in range(6)])
    limited.configure(limit=3, rate="6000/m", group_limit=1, group_rate=50)
    limited.put_many([bide.NewMessage(n, id=f"new-{n}", group=f"g{n % 3}") for n in range(6)])
    limited.put("alone", id="alone")
    for _ in range(5):
        store.clock.advance(1)
        limited.claim(1, lease="10m")
    limited.put("later", id="later", delay="1h", group="g0")


def _subscribe(url: str, clock: FakeClock, token: str) -> None:
    server = ServerApp(Settings(store=url, push=False), clock)
    with running(server) as port, Client(port, server, token) as client:
        hook = {"queue": "hooked", "url": RECEIVER, "headers": {"authorization": "secret"}}
        assert client.put("/v1/subscriptions/hooks", hook).status == 201
        assert client.post("/v1/subscriptions/hooks/pause", {"reason": "moving"}).status == 200
