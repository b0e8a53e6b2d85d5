"""Crash tests of handlers: what is wrong is found, and what is right is left alone."""

import asyncio
import os
import sqlite3
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

import bide
from bide.testing import CrashReport, Effect, ManualWorker, ScratchStore, crash_points

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="crash tests need fork"),
]


@pytest.fixture
def app() -> bide.App:
    return bide.App()


@pytest.fixture
def others() -> Iterator[bide.Queue]:
    with bide.Queue("others", "memory://") as queue:
        yield queue


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A file with accounts, and a table of what was handled."""
    path = str(tmp_path / "shop.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, points INTEGER)")
        connection.execute("CREATE TABLE handled (message TEXT PRIMARY KEY)")
    return path


def reset_of(shop: str) -> Callable[[], None]:
    def reset() -> None:
        with closing(sqlite3.connect(shop)) as connection, connection:
            connection.execute("DELETE FROM accounts")
            connection.execute("INSERT INTO accounts VALUES ('ada', 0)")
            connection.execute("DELETE FROM handled")

    return reset


def add_points(connection: sqlite3.Connection, points: int) -> None:
    connection.execute("UPDATE accounts SET points = points + ?", (points,))


def opener_of(shop: str) -> Callable[[], Any]:
    @contextmanager
    def opened() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(shop)) as connection, connection:
            yield connection

    return opened


def send(order: int) -> None:
    """Send a mail."""


def charge(order: int, idempotency_key: str = "") -> str:
    return f"receipt of {order}"


async def ship(order: int) -> None:
    await asyncio.sleep(0)


class Mailer:
    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, order: int) -> None:
        self.sent.append(order)


mailer = Mailer()


class Unconfigured:
    """A proxy, as Django's settings are: it stands for nothing yet, and so has no class."""

    def __getattribute__(self, name: str) -> object:
        raise LookupError(f"{name} of settings that are not configured")


def found(report: CrashReport) -> set[tuple[str, str]]:
    """Return what is reported, with the kind: without the points."""
    twice = {("twice", finding.effect) for finding in report.twice}
    never = {("never", finding.effect) for finding in report.never}
    return twice | never | {("dead", finding.effect) for finding in report.dead}


# Handlers that are wrong.


def test_an_effect_before_the_ack_happens_twice(
    app: bide.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.handler("orders")
    def confirm(order: int) -> None:
        send(order)

    proxies = ModuleType("proxies")
    proxies.settings = Unconfigured()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "proxies", proxies)  # all modules are searched for `send`
    report = crash_points(app, 42, effects=[send])
    assert not report
    line = confirm.__code__.co_firstlineno + 2
    assert report.points == (
        "before tests.system.testing.test_crash_points."
        "test_an_effect_before_the_ack_happens_twice.<locals>.confirm",
        f"before test_crash_points.send (test_crash_points.py:{line})",
        f"after test_crash_points.send (test_crash_points.py:{line})",
        "before the ack of the worker",
        "after the ack of the worker",
    )
    assert [str(finding) for finding in report.twice] == [
        "test_crash_points.send(42), if the process dies after test_crash_points.send "
        f"(test_crash_points.py:{line})",
        "test_crash_points.send(42), if the process dies before the ack of the worker",
    ]
    assert report.never == report.dead == ()


@pytest.mark.full
def test_an_effect_after_a_commit_never_happens(app: bide.App, shop: str) -> None:
    @app.handler("points")
    def add(points: int, delivery: bide.Handling) -> None:
        with closing(sqlite3.connect(shop)) as connection:
            with connection:
                add_points(connection, points)
                delivery.ack(within=connection)
            send(points)

    report = crash_points(app, 5, effects=[send, add_points], reset=reset_of(shop))
    assert found(report) == {("never", "test_crash_points.send(5)")}
    assert {finding.point.partition(" (")[0] for finding in report.never} == {
        "before test_crash_points.send",
    }


def test_a_put_without_an_id_happens_twice(app: bide.App, others: bide.Queue) -> None:
    @app.handler("orders")
    def remind(order: int) -> None:
        others.put({"order": order}, delay="1d")

    report = crash_points(app, 42, effects=[])
    assert found(report) == {("twice", "others.put({'order': 42})")}


@pytest.mark.full
def test_of_two_effects_the_second_never_happens(app: bide.App) -> None:
    paid: set[int] = set()

    @app.handler("orders")
    async def fulfil(order: int) -> None:
        if order in paid:
            return
        charge(order, idempotency_key=str(order))
        paid.add(order)
        await ship(order)

    keyed = Effect(charge, key="idempotency_key")
    report = crash_points(app, 42, effects=[keyed, ship], outside=[paid])
    assert found(report) == {("never", "test_crash_points.ship(42)")}
    assert "before await" in {finding.point.partition(" (")[0] for finding in report.never}
    assert paid == set()


@pytest.mark.full
def test_what_depends_on_a_cancel_never_happens(app: bide.App, others: bide.Queue) -> None:
    @app.handler("orders")
    def withdraw(order: int) -> None:
        if others.cancel("reminder"):
            send(order)

    report = crash_points(
        app, 42, effects=[send], reset=lambda: others.put(1, id="reminder", delay="1d")
    )
    assert found(report) == {("never", "test_crash_points.send(42)")}


def test_an_effect_before_a_cancel_happens_twice(app: bide.App, others: bide.Queue) -> None:
    @app.handler("orders")
    def withdraw(order: int) -> None:
        mailer.send(order)
        others.cancel("reminder")

    report = crash_points(
        app, 42, effects=[mailer.send], reset=lambda: others.put(1, id="reminder", delay="1d")
    )
    assert found(report) == {("twice", "mailer.send(42)")}
    assert "after mailer.send (test_crash_points.py" in str(report)
    assert mailer.sent == []


def test_a_key_that_each_attempt_makes_anew_is_none(app: bide.App) -> None:
    @app.handler("orders")
    def pay(order: int) -> None:
        charge(order, idempotency_key=uuid.uuid4().hex)

    report = crash_points(app, 42, effects=[Effect(charge, key="idempotency_key")])
    assert [kind for kind, _ in found(report)] == ["twice"] * len(found(report))
    assert report.twice


@pytest.mark.full
def test_a_mark_after_the_effect_is_late(app: bide.App) -> None:
    sent: set[int] = set()

    @app.task
    def confirm(order: int) -> None:
        if order not in sent:
            send(order)
            others_see(order)
            sent.add(order)

    def others_see(order: int) -> None:
        """Give the test a point between the effect and its mark."""

    report = crash_points(app, confirm.message(42), effects=[send, others_see], outside=[sent])
    assert ("twice", "test_crash_points.send(42)") in found(report)
    assert report.never == ()


def test_a_mark_before_the_effect_is_early(app: bide.App) -> None:
    sent: dict[int, bool] = {}

    @app.task
    async def confirm(order: int) -> None:
        if not sent.setdefault(order, False):
            sent[order] = True
            await ship(order)

    report = crash_points(app, confirm.message(order=42), effects=[ship], outside=[sent])
    assert found(report) == {("never", "test_crash_points.ship(42)")}


def test_what_a_process_remembers_is_lost_with_it(app: bide.App) -> None:
    sent = set()

    @app.handler("orders")
    def confirm(order: int) -> None:
        if order not in sent:
            sent.add(order)
            send(order)
            send(order + 1)

    report = crash_points(app, 42, effects=[send])
    assert found(report) == {
        ("twice", "test_crash_points.send(42)"),
        ("twice", "test_crash_points.send(43)"),
    }


def test_a_handler_that_refuses_what_it_has_begun_makes_dead_letters(
    app: bide.App, shop: str
) -> None:
    @app.handler("orders", retry=bide.Backoff(attempts=3))
    def open_account(name: str) -> None:
        with closing(sqlite3.connect(shop)) as connection, connection:
            connection.execute("INSERT INTO accounts VALUES (?, 0)", (name,))
        send(1)

    report = crash_points(app, "eve", effects=[send], reset=reset_of(shop))
    error = "IntegrityError: UNIQUE constraint failed: accounts.name"
    assert ("dead", f"sqlite3.{error}") in found(report)
    assert ("never", "test_crash_points.send(1)") in found(report)


def test_a_message_with_one_attempt_is_not_delivered_again(app: bide.App) -> None:
    @app.handler("orders")
    def confirm(order: int) -> None:
        send(order)

    report = crash_points(app, bide.NewMessage(42, attempts=1), effects=[send])
    assert {kind for kind, _ in found(report)} == {"never", "dead"}


@pytest.mark.full
def test_a_put_before_the_commit_happens_though_the_commit_does_not(
    app: bide.App, shop: str, others: bide.Queue
) -> None:
    @app.handler("points", within=opener_of(shop))
    def add(points: int, within: sqlite3.Connection) -> None:
        add_points(within, points)
        others.put(points)

    report = crash_points(app, 5, effects=[add_points], reset=reset_of(shop))
    assert found(report) == {("twice", "others.put(5)")}


# Handlers that are right.


def test_an_idempotency_key(app: bide.App) -> None:
    @app.handler("orders")
    def pay(order: int, delivery: bide.Handling) -> None:
        charge(order, idempotency_key=delivery.id)

    report = crash_points(app, 42, effects=[Effect(charge, key="idempotency_key")])
    assert report, report
    assert len(report.points) == 5
    assert str(report).startswith(
        "5 crash points, no finding; effects: test_crash_points.charge(42"
    )


def test_the_effect_and_the_ack_in_one_transaction(app: bide.App, shop: str) -> None:
    @app.handler("points", within=opener_of(shop))
    def add(points: int, within: sqlite3.Connection) -> None:
        add_points(within, points)

    report = crash_points(app, 5, effects=[add_points], reset=reset_of(shop))
    assert report, report
    assert any(point.startswith("after points.ack") for point in report.points)


@pytest.mark.full
def test_an_ack_in_a_transaction_of_the_handler(app: bide.App, shop: str) -> None:
    @app.handler("points")
    def add(points: int, delivery: bide.Handling) -> None:
        with closing(sqlite3.connect(shop)) as connection, connection:
            add_points(connection, points)
            delivery.ack(within=connection)

    report = crash_points(app, 5, effects=[add_points], reset=reset_of(shop))
    assert report, report


@pytest.mark.full
def test_a_put_in_the_transaction(app: bide.App, shop: str, others: bide.Queue) -> None:
    @app.handler("points", within=opener_of(shop))
    def add(points: int, within: sqlite3.Connection) -> None:
        others.put(points, within=within)
        add_points(within, points)

    report = crash_points(app, 5, effects=[add_points], reset=reset_of(shop))
    assert report, report
    assert report.effects == (
        "others.put(5)",
        "test_crash_points.add_points(<sqlite3.Connection>, 5)",
    )


def test_a_put_with_an_id(app: bide.App, others: bide.Queue) -> None:
    @app.handler("orders")
    def remind(order: int) -> None:
        others.put(order, delay="1d", id=f"remind-{order}")

    assert crash_points(app, 42)


@pytest.mark.full
def test_a_check_of_the_state_before(app: bide.App) -> None:
    states = {42: "unpaid"}

    def time_out(order: int) -> None:
        states[order] = "cancelled"

    @app.handler("orders")
    def expire(order: int) -> None:
        if states[order] == "unpaid":
            time_out(order)

    report = crash_points(app, 42, effects=[time_out], outside=[states])
    assert report, report
    assert report.effects == ("time_out(42)",)
    assert states == {42: "unpaid"}


def test_a_table_of_handled_messages(app: bide.App, shop: str) -> None:
    @app.handler("points")
    def add(points: int, delivery: bide.Handling) -> None:
        with closing(sqlite3.connect(shop)) as connection, connection:
            new = connection.execute("INSERT OR IGNORE INTO handled VALUES (?)", (delivery.id,))
            if new.rowcount:
                add_points(connection, points)

    report = crash_points(app, 5, effects=[add_points], reset=reset_of(shop))
    assert "twice" not in {kind for kind, _ in found(report)}, report


@pytest.mark.full
def test_a_task_that_puts_the_next_one(app: bide.App) -> None:
    @app.task(queue="steps")
    async def step(number: int) -> None:
        await asyncio.sleep(0)
        await step.later("1h", id=f"step-{number + 1}").aput(number + 1)

    report = crash_points(app, step.message(1))
    assert report, report
    assert any(point.startswith("after await") for point in report.points)


def test_a_cancel_and_a_put_with_ids(app: bide.App, others: bide.Queue) -> None:
    @app.handler("orders")
    async def move(order: int, delivery: bide.Handling) -> None:
        async with bide.AsyncQueue("others", "memory://") as queue:
            delivery.report(1, of=2)
            await queue.cancel("reminder")
            await queue.put(order, id="other-reminder")

    report = crash_points(app, 42, reset=lambda: others.put(1, id="reminder", delay="1d"))
    assert report, report
    assert report.effects == ("others.cancel('reminder')", "others.put(42)")


@pytest.mark.full
def test_effects_with_keys_side_by_side(app: bide.App) -> None:
    async def notify(order: int, key: str) -> None:
        await asyncio.sleep(0)

    @app.handler("orders", batch=10)
    async def fulfil(orders: list[int], deliveries: list[bide.Handling]) -> None:
        keys = [delivery.id for delivery in deliveries]
        await asyncio.gather(
            *(notify(order, f"a/{key}") for order, key in zip(orders, keys, strict=True)),
            *(notify(order, f"b/{key}") for order, key in zip(orders, keys, strict=True)),
        )

    report = crash_points(app, 42, effects=[Effect(notify, key="key")])
    assert report, report
    assert len(report.effects) == 2


def test_a_job_with_a_key(app: bide.App) -> None:
    @app.job("orders")
    class Pay(bide.Job):
        order: int

        def key(self) -> str:
            return f"pay-{self.order}"

        def run(self) -> None:
            charge(self.order, idempotency_key=self.key())

    @app.handler("mails")
    def unused(body: Any) -> None: ...

    report = crash_points(app, Pay(42), effects=[Effect(charge, key="idempotency_key")])
    assert report, report


# How the process dies, and what it finds.


def test_nothing_of_the_handler_runs_after_a_crash(app: bide.App, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def write(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    @app.handler("orders")
    async def confirm(order: int) -> None:
        try:
            write("begin ")
            await asyncio.sleep(0)
        except BaseException:
            write("except ")
            raise
        else:
            write("end ")
        finally:
            write("finally ")

    starts: list[str] = []

    def reset() -> None:
        if log.exists():
            starts.append(log.read_text())
            log.unlink()

    report = crash_points(app, 42, reset=reset)
    starts.append(log.read_text())
    ends = dict(zip(["no crash", *report.points], starts, strict=True))
    line = confirm.__code__.co_firstlineno + 4
    whole = "begin end finally "
    assert ends["no crash"] == whole
    assert ends[f"before await (test_crash_points.py:{line})"] == f"begin {whole}"
    assert ends[f"after await (test_crash_points.py:{line})"] == f"begin {whole}"
    assert ends["before the ack of the worker"] == whole * 2
    assert ends["after the ack of the worker"] == whole


@pytest.mark.full
def test_a_report_of_progress_and_a_read_of_a_library_are_told_apart(app: bide.App) -> None:
    @app.handler("orders")
    async def confirm(order: int, delivery: bide.Handling) -> None:
        delivery.report(1)
        await asyncio.gather(ship(order), ship(order + 1))

    report = crash_points(app, 42, effects=[ship])
    names = [point.partition(" (")[0] for point in report.points]
    assert names[1:3] == ["before report", "after report"]
    # The await of gather, and of each call that of sleep.
    assert names.count("before await") == names.count("after await") == 3
    assert names.count("after test_crash_points.ship") == 2
    assert {effect for _, effect in found(report)} == {
        "test_crash_points.ship(42)",
        "test_crash_points.ship(43)",
    }


@pytest.mark.full
def test_a_handler_that_raises_is_tried_again_without_a_crash(app: bide.App) -> None:
    @app.handler("orders", retry=bide.Backoff(attempts=5, first="10s"))
    def confirm(order: int, delivery: bide.Handling) -> None:
        if delivery.message.attempt == 1:
            raise TimeoutError
        charge(order, idempotency_key=delivery.id)

    report = crash_points(app, 42, effects=[Effect(charge, key="idempotency_key")])
    assert report, report
    assert "before the retry of the worker" in report.points


@pytest.mark.full
def test_other_messages_are_left_alone(app: bide.App) -> None:
    seen: list[int] = []

    def see(order: int) -> None:
        seen.append(order)

    @app.handler("orders", limit=1)
    def confirm(order: int, delivery: bide.Handling) -> None:
        app.queue("orders").put(order + 1, id="next", priority=9)
        see(order)

    report = crash_points(
        app,
        bide.NewMessage(1, delay="1h", id="mine"),
        effects=[see],
        reset=lambda: app.queue("orders").put(7),
        outside=[seen],
    )
    assert {effect for _, effect in found(report)} == {"see(1)"}
    assert report.effects == ("orders.put(2)", "see(1)")


@pytest.mark.full
def test_effects_are_counted_by_whatever_name_the_handler_has(app: bide.App) -> None:
    class Shop:
        notify = staticmethod(send)

        @classmethod
        def announce(cls, order: int) -> None:
            """Tell everybody."""

        def __init__(self) -> None:
            self.call = charge

    shop, names = Shop(), {"ship": ship}

    @app.handler("orders")
    async def confirm(order: int) -> None:
        shop.notify(order)
        shop.announce(order)
        shop.call(order)
        await names["ship"](order)
        mailer.send(order)

    report = crash_points(app, 42, effects=[send, Shop.announce, charge, ship, mailer.send])
    assert {effect for _, effect in found(report)} == {
        "test_crash_points.send(42)",
        "Shop.announce(42)",
        "test_crash_points.charge(42)",
        "test_crash_points.ship(42)",
        "mailer.send(42)",
    }
    assert Shop.notify is send
    assert vars(mailer) == {"sent": []}
    assert isinstance(vars(Shop)["announce"], classmethod)


@pytest.mark.full
def test_a_mock_is_an_effect(app: bide.App) -> None:
    provider = Mock()

    @app.handler("orders")
    def confirm(order: int) -> None:
        provider.refund(order)

    report = crash_points(app, 42, effects=[provider.refund])
    assert {kind for kind, _ in found(report)} == {"twice"}
    assert provider.mock_calls == []


@pytest.mark.full
def test_what_a_fake_has_noted_outlives_the_process(app: bide.App) -> None:
    fake = Mailer()

    @app.handler("orders")
    def confirm(order: int) -> None:
        if order not in fake.sent:
            fake.send(order)

    assert crash_points(app, 42, effects=[fake.send], outside=[fake])
    assert not crash_points(app, 42, effects=[fake.send])
    assert fake.sent == []


@pytest.mark.full
def test_the_lifespan_of_the_app_lasts_for_each_process(tmp_path: Path) -> None:
    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        app.state.charge = charge
        yield

    app = bide.App(lifespan=lifespan)

    @app.middleware
    async def around(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        await go_on()

    @app.handler("orders")
    def confirm(order: int, delivery: bide.Handling) -> None:
        charge(order, idempotency_key=delivery.id)

    report = crash_points(app, 42, effects=[Effect(charge, key="idempotency_key")])
    assert report, report
    assert not hasattr(app.state, "charge")


@pytest.mark.full
def test_a_batch_handler_has_threads_though_the_test_has_used_it(app: bide.App) -> None:
    @app.handler("orders", batch=10)
    def confirm(orders: list[int]) -> None:
        for order in orders:
            send(order)

    with ScratchStore() as store, ManualWorker(app, store) as worker:
        store.queue("orders").put(41)
        assert len(worker.run_due()) == 1
    assert {kind for kind, _ in found(crash_points(app, 42, effects=[send]))} == {"twice"}


# What a test may have got wrong.


@pytest.fixture
def orders(app: bide.App) -> bide.App:
    @app.handler("orders")
    def confirm(order: int) -> None:
        if order == 42:
            send(order)
        if order == 1:
            raise ValueError("no such order")
        if order == 2:
            os._exit(3)
        if order == 3:
            threading.Event().wait()

    return app


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"effects": [charge]}, "names test_crash_points.charge, which the handler does not call"),
        ({"effects": [[].append]}, "append, which cannot be replaced"),
        ({"effects": [lambda: None]}, "which cannot be replaced: no module has it"),
        ({"queue": "nosuch"}, "queue 'nosuch' has no handler in the app; it has: orders"),
        ({"outside": [5]}, "outside= has an object of type int; it takes a dict"),
        ({"outside": [[threading.Lock()]]}, "must be picklable: cannot pickle"),
    ],
)
def test_arguments_that_do_not_fit(orders: bide.App, options: dict[str, Any], error: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=error):
        crash_points(orders, 42, **options)


def test_the_queue_is_named_if_there_are_several(orders: bide.App) -> None:
    orders.handler("others")(send)
    with pytest.raises(bide.InvalidArgument, match="several queues, or none: orders, others"):
        crash_points(orders, 42)
    with pytest.raises(bide.InvalidArgument, match=r"takes a bide\.App, not str"):
        crash_points("shop:app", 42)  # type: ignore[arg-type]


def test_a_handler_that_fails_by_itself(orders: bide.App) -> None:
    with pytest.raises(RuntimeError, match="fails without a crash: ValueError: no such order"):
        crash_points(orders, bide.NewMessage(1, attempts=2))
    with pytest.raises(RuntimeError, match="the process of the handler has ended by itself"):
        crash_points(orders, 2)
    with pytest.raises(RuntimeError, match=r"did not end within 0.2 s of real time"):
        crash_points(orders, 3, patience=0.2)


def test_a_transaction_that_nothing_shows(app: bide.App, others: bide.Queue) -> None:
    @app.handler("orders", retry=bide.Backoff(attempts=1))
    def confirm(order: int) -> None:
        others.put(order, within=object())

    with pytest.raises(
        RuntimeError, match="cannot see whether the handler commits a transaction on object"
    ):
        crash_points(app, 42)


def test_it_needs_fork_and_no_event_loop(orders: bide.App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        crash_points(orders, 42)

    with pytest.raises(bide.WrongContext, match="call it in a plain test"):
        asyncio.run(test())
    monkeypatch.delattr(os, "fork")
    with pytest.raises(bide.Unsupported, match="has no fork"):
        crash_points(orders, 42)


@pytest.mark.full
def test_a_transaction_is_rolled_back_by_hand(app: bide.App, shop: str, others: bide.Queue) -> None:
    @app.handler("points")
    def add(points: int) -> None:
        with closing(sqlite3.connect(shop)) as connection:
            add_points(connection, points)
            others.put("rolled back", within=connection)
            connection.rollback()
            others.put("kept", within=connection, id="kept")
            connection.commit()

    report = crash_points(app, 5, reset=reset_of(shop))
    assert report, report
    assert report.effects == ("others.put('kept')",)
