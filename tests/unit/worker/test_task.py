"""Tasks: functions that messages call."""

import asyncio
import copy
import enum
import functools
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pydantic
import pytest

import bide
from bide import InvalidArgument
from bide.consuming.unknown_work import GIVEN_UP
from bide.testing import ManualWorker, ScratchStore

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Color(enum.Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    price: Decimal


class Address(pydantic.BaseModel):
    city: str


@pytest.fixture
def app() -> bide.App:
    return bide.App("memory://tasks")


@pytest.fixture
def store() -> Iterator[ScratchStore]:
    with ScratchStore() as store:
        yield store


def body_of(task: bide.Task[..., Any], id: str) -> Any:
    message = task.get(id)
    assert message is not None
    return message.body


# What a put takes.


def test_arguments_travel_by_name(app: bide.App, store: ScratchStore) -> None:
    @app.task(queue="orders")
    def expire(order: int, *, reason: str = "unpaid") -> None: ...

    assert expire.queue.name == "orders"
    assert expire.later("30m", id="a").put(42).state == "delayed"
    assert body_of(expire, "a") == {"task": "expire", "args": {"order": 42}}
    expire.later(id="b").put(order=43, reason="late")
    assert body_of(expire, "b") == {"task": "expire", "args": {"order": 43, "reason": "late"}}


def test_a_task_without_a_queue_has_one_of_its_name(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def greet(name: str) -> None: ...

    outcome = greet.put("Ann")
    assert greet.queue.name == greet.name == "greet"
    assert outcome.done
    assert app.tasks == {"greet": greet}


def test_a_name_outlasts_the_function(app: bide.App, store: ScratchStore) -> None:
    @app.task(name="greet", queue="mails")
    def say_hello(name: str) -> None: ...

    say_hello.later(id="a").put("Ann")
    assert body_of(say_hello, "a")["task"] == "greet"
    assert repr(say_hello) == "<Task greet(name: str) of queue 'mails'>"


def test_options_are_those_of_a_put(app: bide.App, store: ScratchStore) -> None:
    @app.task(retry=bide.Backoff(attempts=3))
    def remind(priority: int) -> None: ...

    options: dict[str, Any] = {"group": "g", "headers": {"a": "b"}, "expires": "1h"}
    remind.later(at=NOON, id="a", priority=7, **options).put(priority=1)
    message = remind.get("a")
    assert message is not None
    assert (message.due_at, message.priority, message.group) == (NOON, 7, "g")
    assert (message.attempts, message.headers, message.expires) == (3, {"a": "b"}, 3_600_000)
    remind.later(id="b", attempts=9).put(1)
    assert remind.get("b").attempts == 9  # type: ignore[union-attr]
    remind.later("1h", id="a", on_conflict="replace").put(2)
    assert body_of(remind, "a")["args"] == {"priority": 2}
    with pytest.raises(bide.AlreadyExists):
        remind.later(id="a", on_conflict="raise").put(2)


def test_calls_are_spread(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def remind(user: int) -> None: ...

    spread = remind.later(at=NOON, spread="15m", id="user-1").put(1)
    assert spread.due == NOON.timestamp() * 1000 + 698_765
    outcomes = remind.later(at=NOON, spread="15m").put_many([(2,), (3,)])
    assert len({outcome.due for outcome in outcomes}) == 2


def test_many_calls_are_put_at_once(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def expire(order: int, *, reason: str = "unpaid") -> None: ...

    outcomes = expire.put_many([(44,), {"order": 45, "reason": "x"}])
    assert [body_of(expire, outcome.id)["args"] for outcome in outcomes] == [
        {"order": 44},
        {"order": 45, "reason": "x"},
    ]
    (outcome,) = expire.later("1h", group="g").put_many([(46,)])
    assert expire.get(outcome.id).group == "g"  # type: ignore[union-attr]
    assert expire.put_many([]) == []
    with pytest.raises(InvalidArgument, match=r"id='x' is for one call"):
        expire.later(id="x").put_many([(1,)])
    with pytest.raises(InvalidArgument, match=r"1 is neither a tuple .* write \(1,\)"):
        expire.put_many([1])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match=r"are for one call"):
        expire.later(on_conflict="raise").put_many([(1,)])


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (("x",), {}, r"order= of .*expire does not fit: Expected `int`, got `str`"),
        ((), {}, "missing a required argument: 'order'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"order": 1}, "multiple values for argument 'order'"),
        ((1,), {"color": 1}, "unexpected keyword argument 'color'"),
        ((1,), {"delivery": None}, "gets delivery= from its worker; leave it out"),
        ((object(),), {}, r"body\['args'\]\['order'\] is of type object"),
        ((1,), {"price": float("nan")}, r"body\['args'\]\['price'\] is nan"),
    ],
    ids=range(8),
)
def test_a_put_refuses_what_the_function_does_not_take(
    app: bide.App, store: ScratchStore, args: Any, kwargs: Any, text: str
) -> None:
    @app.task
    def expire(order: int, *, price: float = 0, delivery: bide.Delivery | None = None) -> None: ...

    with pytest.raises(InvalidArgument, match=text):
        expire.put(*args, **kwargs)
    assert expire.queue.counts().flow.put == 0


def test_what_only_a_worker_gives_is_none_of_the_other_arguments(
    app: bide.App, store: ScratchStore
) -> None:
    seen: list[Any] = []

    @app.task
    def expire(order: int, delivery: bide.Handling | None = None, **more: str) -> None:
        seen.append((order, more))

    with pytest.raises(InvalidArgument, match="gets delivery= from its worker; leave it out"):
        expire.put(1, delivery="express")  # type: ignore[arg-type]
    call = {"task": "expire", "args": {"order": 1, "delivery": "express"}}
    expire.queue.put(call, id="of another program")
    expire.put(1, reason="late")
    with ManualWorker(app, store, errors="collect") as worker:
        handled = worker.run_due()
    assert "has no parameter delivery" in handled[0].reason
    assert seen == [(1, {"reason": "late"})]


def test_a_parameter_may_be_called_delivery(app: bide.App, store: ScratchStore) -> None:
    seen: list[Any] = []

    @app.task
    def ship(order, delivery="post"):  # type: ignore[no-untyped-def]
        seen.append((order, delivery))

    @app.task
    def trace(delivery=None):  # type: ignore[no-untyped-def]
        seen.append(delivery.message.queue)

    with ManualWorker(app, store) as worker:
        ship.put(1)
        ship.put(2, delivery="express")
        worker.run_due()
        trace.put()
        worker.run_due()
    assert seen == [(1, "post"), (2, "express"), "trace"]


def test_calls_are_moved_cancelled_and_explained(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def expire(order: int) -> None: ...

    expire.later("30m", id="order-42").put(42)
    moved = expire.reschedule("order-42", "1h")
    assert moved.due == store.clock.now() + 3_600_000
    assert expire.explain("order-42").reasons == ("delayed",)
    assert expire.cancel("order-42").done
    assert expire.get("order-42") is None
    assert not expire.cancel("order-42").done


def test_a_call_that_runs_is_cancelled(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def expire(order: int) -> None: ...

    expire.later(id="a").put(1)
    expire.later(id="b").put(2)
    deliveries = expire.queue.claim(2)
    assert not expire.cancel("a").done
    assert expire.cancel("a", running=True).state == "stopping"
    assert expire.cancel("a", running=True, wait=0).state == "stopping"
    assert asyncio.run(expire.acancel("b", running=True, wait=0)).state == "stopping"
    for delivery in deliveries:
        delivery.release()
    assert expire.get("a") is None
    assert expire.queue.counts().flow.cancelled == 2


def test_calling_a_task_calls_the_function(app: bide.App) -> None:
    @app.task
    def double(number: int) -> int:
        """Return twice the number."""
        return 2 * number

    @app.task
    async def half(number: int) -> float:
        return number / 2

    assert double(21) == 42
    assert asyncio.run(half(3)) == 1.5
    assert double.__doc__ == "Return twice the number."
    assert repr(double) == "<Task double(number: int) -> int of queue 'double'>"


def test_a_parameter_may_be_named_self(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def clone(self: int, id: int, delay: int = 0) -> int:
        return self

    assert clone(self=1, id=2) == 1
    clone.later(id="a").put(self=1, id=2, delay=3)
    clone.put(self=1, id=2)
    assert clone.message(self=1, id=2).body == {"task": "clone", "args": {"self": 1, "id": 2}}
    assert body_of(clone, "a")["args"] == {"self": 1, "id": 2, "delay": 3}


def test_attributes_of_a_function_are_not_those_of_its_task(app: bide.App) -> None:
    def refund(order: int) -> None: ...

    for name in (
        "backoff",
        "name",
        "put",
        "parameters",
    ):  # as decorators of other packages set them
        setattr(refund, name, "of the function")
    task = app.task(refund)
    assert (task.name, task.backoff) == ("refund", bide.Backoff())
    assert task.put(1).done


PICKLED = bide.App("memory://pickled")


@PICKLED.task
def pickled(order: int) -> None: ...


def test_a_task_is_pickled_by_its_name(app: bide.App) -> None:
    assert pickle.loads(pickle.dumps(pickled)) is pickled
    assert copy.deepcopy({"task": pickled})["task"] is pickled
    hidden = app.task(name="pickled")(pickled)
    with pytest.raises(pickle.PicklingError, match="pickled"):
        pickle.dumps(hidden)


class Shop:
    def close(self, day: int) -> None: ...

    @staticmethod
    def open(day: int) -> None: ...


def test_methods_of_objects_and_static_ones_are_tasks(app: bide.App) -> None:
    close = app.task(Shop().close)
    assert close.put(1).done
    assert app.task(Shop.open).put(1).done
    assert str(close.parameters) == "(day: int)"


def test_what_has_no_name_needs_one(app: bide.App) -> None:
    partial = functools.partial(by_name, reason="late")
    with pytest.raises(InvalidArgument, match=r"functools.partial.* give it one: @app.task\(name="):
        app.task(partial)
    with pytest.raises(InvalidArgument, match=r"<lambda> .* has no name that messages could carry"):
        app.task(lambda: None)
    task = app.task(name="late")(partial)
    assert task.put(1).done
    assert str(task.parameters) == "(order: int, *, reason: str = 'late')"


def test_annotations_are_shown_as_types(app: bide.App) -> None:
    def bill(order: "int", lines: "list[Line] | None" = None) -> "None": ...

    text = "(order: int, lines: list[tests.unit.worker.test_task.Line] | None = None)"
    assert str(app.task(bill).parameters) == text


# What cannot be a task.


def by_name(order: int, *, reason: str) -> None: ...


def by_position(*orders: int) -> None: ...


def only_by_position(order: int, /) -> None: ...


def needs_delivery(order: int, delivery: bide.Delivery) -> None: ...


def generates(order: int) -> Iterator[int]:
    yield order


class Plain: ...


def takes_a_class(order: Plain) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (by_position, r"by_position takes \*orders by position; messages carry arguments by name"),
        (only_by_position, r"takes order by position;.*remove the /"),
        (needs_delivery, r"write delivery: bide.Handling \| None = None"),
        (generates, "is a generator: calling it runs nothing"),
        (Plain, "is not a function; classes are for @app.job"),
        (Shop.close, "Shop.close is a method, and a message carries no self; .*@staticmethod"),
        (takes_a_class, r"order= of .* takes Plain, which no body can be decoded into"),
        ("orders", r"'orders' is not a function; a queue is named .* @app.task\(queue=...\)"),
    ],
    ids=range(8),
)
def test_what_is_refused_at_the_decorator(app: bide.App, function: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        app.task(function)
    assert app.tasks == {}
    assert not app.queue_handlers


def test_names_are_given_once(app: bide.App) -> None:
    @app.task(queue="orders")
    def expire() -> None: ...

    def again() -> None: ...

    with pytest.raises(InvalidArgument, match="there is already a task named 'expire'"):
        app.task(name="expire")(again)
    with pytest.raises(InvalidArgument, match=r"queue 'orders' is handled by .*expire already"):
        app.handler("orders")(print)
    app.handler("mails")(lambda body: None)
    with pytest.raises(InvalidArgument, match="queue 'mails' has a plain handler already"):
        app.task(queue="mails")(again)
    assert list(app.tasks) == ["expire"]


# What a worker does.


def test_each_argument_has_its_type(app: bide.App, store: ScratchStore) -> None:
    seen: list[Any] = []

    @app.task
    def everything(
        line: Line,
        address: Address,
        when: datetime,
        small: Annotated[int, pydantic.Field(lt=10)],
        *,
        id: UUID | None = None,
        color: Color = Color.RED,
        data: bytes = b"",
        extra: Any = None,
        **others: int,
    ) -> None:
        seen.append((line, address, when, small, id, color, data, extra, others))

    line, address, id = Line("tea", Decimal("2.50")), Address(city="Oslo"), UUID(int=7)
    with ManualWorker(app, store) as worker:
        everything.put(line, address, NOON, 3, id=id, color=Color.RED, data=b"\0", other=4)
        everything.put(line, address, when=NOON, small=4, extra=[1])
        worker.run_due()
    assert seen == [
        (line, address, NOON, 3, id, Color.RED, b"\0", None, {"other": 4}),
        (line, address, NOON, 4, None, Color.RED, b"", [1], {}),
    ]
    with pytest.raises(InvalidArgument, match=r"(?s)small= of .* less than 10"):
        everything.put(line, address, NOON, 10)
    with pytest.raises(InvalidArgument, match=r"other= of .* does not fit"):
        everything.put(line, address, NOON, 1, other="x")  # type: ignore[arg-type]


def test_tasks_share_a_queue_with_jobs(app: bide.App, store: ScratchStore) -> None:
    seen: list[Any] = []

    @app.task(queue="orders")
    def expire(order: int, delivery: bide.Delivery | None = None) -> None:
        assert delivery is not None
        seen.append(("expire", order, delivery.id))

    @app.task(queue="orders", concurrency=16)
    async def remind(order: int) -> None:
        seen.append(("remind", order))

    @app.job("orders")
    class Bill(bide.Job):
        order: int

        def run(self) -> None:
            seen.append(("bill", self.order))

    with ManualWorker(app, store) as worker:
        expire.later(id="a").put(1)
        remind.put(2)
        expire.queue.put(Bill(3))
        worker.run_due()
    assert sorted(seen) == [("bill", 3), ("expire", 1, "a"), ("remind", 2)]


def test_a_call_that_fails_is_retried(app: bide.App, store: ScratchStore) -> None:
    attempts: list[int] = []

    @app.task(retry=bide.Backoff(attempts=2, first="10s", jitter=0))
    def fail(number: int, delivery: bide.Delivery | None = None) -> None:
        assert delivery is not None
        attempts.append(delivery.attempt)
        raise OSError("no")

    with ManualWorker(app, store, errors="collect") as worker:
        fail.later(id="a").put(1)
        worker.advance("1m")
    assert attempts == [1, 2]
    assert fail.get("a").state == "dead"  # type: ignore[union-attr]


def test_a_result_has_the_type_of_the_annotation(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def price(article: str) -> Line:
        return Line(article, Decimal("2.50"))

    price.queue.configure(result_ttl="1h")
    price.later(id="a").put("tea")
    with ManualWorker(app, store) as worker:
        with pytest.raises(bide.NotEnded):
            price.result("a")
        worker.run_due()
    assert price.result("a") == Line("tea", Decimal("2.50"))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"task": "expire", "args": {}}, "needs order, which the arguments lack"),
        ({"task": "expire", "args": {"order": "x"}}, "order= of .*expire does not fit: Expected"),
        ({"task": "expire", "args": {"order": 1, "x": 2}}, "has no parameter x"),
        ({"task": "expire", "args": [1]}, "the body calls no task"),
        ({"order": 1}, "the body calls no task, as .* does: .* missing required field `task`"),
        (b"x", "the body is bytes; a task takes"),
    ],
    ids=range(6),
)
def test_arguments_that_do_not_fit_die_at_once(
    app: bide.App, store: ScratchStore, body: Any, text: str
) -> None:
    @app.task
    def expire(order: int) -> None:
        raise AssertionError("it must not run")

    expire.queue.put(body, id="a")
    with ManualWorker(app, store, errors="collect") as worker:
        (handled,) = worker.run_due()
    assert handled.outcome == "dead"
    message = expire.get("a")
    assert message is not None
    assert message.error is not None
    assert message.error.startswith("Unfit: ")
    assert re.search(text, message.error)


def test_a_parameter_with_a_default_may_be_new(app: bide.App, store: ScratchStore) -> None:
    seen: list[Any] = []
    old = bide.App("memory://tasks")

    @old.task(name="expire")
    def expire_before(order: int) -> None: ...

    @app.task
    def expire(order: int, *, reason: str = "unpaid") -> None:
        seen.append((order, reason))

    expire_before.put(1)
    with ManualWorker(app, store) as worker:
        worker.run_due()
    assert seen == [(1, "unpaid")]


# A rolling deploy.


def test_a_task_that_this_worker_does_not_know_waits_for_a_newer_one(
    app: bide.App, store: ScratchStore, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    newer = bide.App("memory://tasks")

    @app.task(queue="orders")
    def expire(order: int) -> None: ...

    @newer.task(queue="orders", retry=bide.Backoff(attempts=1))
    def charge(order: int) -> None:
        seen.append(order)

    charge.later(id="a").put(1)
    with ManualWorker(app, store) as worker:
        (handled,) = worker.run_due()
        assert handled.outcome == "released"
        worker.advance("50m")
    message = charge.get("a")
    assert message is not None
    assert message.error == "unknown work: the task 'charge'; this worker knows expire"
    assert (message.state, message.attempt) == ("delayed", 0)
    assert "released, again in 10s: unknown work: the task 'charge'" in caplog.text
    with ManualWorker(newer, store) as worker:
        worker.advance("10m")
    assert seen == [1]


def test_what_nobody_knows_for_an_hour_dies(app: bide.App, store: ScratchStore) -> None:
    newer = bide.App("memory://tasks")

    @app.task(queue="orders")
    def expire(order: int) -> None: ...

    @newer.task(queue="orders", retry=bide.Backoff(attempts=1))
    def charge(order: int) -> None: ...

    charge.later(id="a").put(1)
    store.clock.advance(5 * 3_600)  # late for another reason: that does not count
    began = store.clock.now()
    with ManualWorker(app, store) as worker:
        deliveries = worker.advance("3h")
    message = charge.get("a")
    assert message is not None
    assert message.ended is not None
    assert message.state == "dead"
    assert GIVEN_UP <= message.ended - began < 2 * GIVEN_UP
    assert message.error is not None
    assert message.error.startswith("no worker has known this work for an hour: the task 'charge'")
    assert len(deliveries) < 20  # what a message remembers of its failures
    charge.queue.revive("a")
    with ManualWorker(app, store) as worker:  # an old worker, while new ones start
        (handled,) = worker.run_due()
    assert handled.outcome == "released"


def test_the_name_of_an_unknown_task_may_be_long(
    app: bide.App, store: ScratchStore, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def expire(order: int) -> None: ...

    store.queue("expire").put({"task": "n" * 100_000, "args": {}}, id="a")
    with ManualWorker(app, store) as worker:
        worker.run_due()
    message = expire.get("a")
    assert message is not None
    assert message.error is not None
    assert message.error.endswith("n'; this worker knows expire")
    assert max(len(record.getMessage()) for record in caplog.records) < 1_000


def test_an_app_opens_a_queue_once() -> None:
    app = bide.App("memory://opened")
    assert app.queue("a") is app.queue("a")
    assert app.async_queue("a") is app.async_queue("a")
    assert isinstance(app.queue("a"), bide.Queue)
    app.queue("a").put(1)
    first = app.queue("a")
    app.close()
    with pytest.raises(bide.Closed):
        first.put(2)
    assert app.queue("a").put(2).done
    app.close()


def test_a_day_is_no_delay_of_a_number(app: bide.App, store: ScratchStore) -> None:
    @app.task
    def expire(order: int) -> None: ...

    expire.later(timedelta(days=1), id="a").put(1)
    assert expire.get("a").due == store.clock.now() + 86_400_000  # type: ignore[union-attr]
