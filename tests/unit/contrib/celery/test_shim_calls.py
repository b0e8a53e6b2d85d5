"""What calls of tasks look like that are written as for Celery and run in bide."""

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from kombu.utils import json

import bide
from bide.contrib.celery import Celery
from bide.testing import ScratchStore, WorkerFactory

kombu_json: Any = json  # it has no annotations

VALUES = [
    datetime(2026, 1, 1, 9, tzinfo=UTC),
    datetime.fromisoformat("2026-01-01"),
    date(2026, 1, 1),
    time(9, 30),
    Decimal("4.50"),
    UUID(int=42),
    b"text",
    b"\xff",
    {"__type__": "order"},
    {"a": [1, None]},
]


def test_arguments_and_results_have_the_types_of_celerys_json(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    app = Celery("shop", store="memory://shop", result_ttl="1d")

    @app.task(name="same")
    def same(values: Any, **named: Any) -> Any:
        return values, named

    ours = same.delay(VALUES, one=VALUES[0])
    text = kombu_json.dumps([[VALUES], {"one": VALUES[0]}, {"chain": None}])
    bide_store.queue("celery").put(
        {"task": "same", "text": text}, id="theirs", headers={"bide-job": "same"}
    )
    bide_worker(app).run_due()
    for result in (ours, app.AsyncResult("theirs")):
        assert result.get(0) == [VALUES, {"one": VALUES[0]}]
    assert same.result("theirs") == [VALUES, {"one": VALUES[0]}]


def test_a_task_that_is_called_as_a_function_has_no_request_and_is_not_retried() -> None:
    app = Celery("shop", store="memory://shop")

    @app.task(bind=True)
    def charge(self: Any, asks: bool) -> None:
        if asks:
            assert self.request.id
        self.retry(exc=OSError("bank"))

    with pytest.raises(OSError, match="bank"):
        charge(False)
    with pytest.raises(bide.WrongContext, match=r"called as a function.* charge\.delay\("):
        charge(True)


def shop_of(calls: list[Any]) -> Celery:
    """Return an app whose tasks note what they are called with."""
    app = Celery("shop", store="memory://shop")

    @app.task(name="total")
    def total(order: int, /, *rest: int, note: str = "", **more: Any) -> None:
        calls.append((order, rest, note, more))

    @app.task(name="bound", bind=True, queue="slow")
    def bound(self: Any, order: int, until: Any = None) -> None:
        calls.append((self.name, order, until, self.request.args, self.request.kwargs))

    return app


DAY = {"__type__": "date", "__value__": "2030-01-01"}


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ({"task": "total", "args": {"order": 1}}, (1, (), "", {})),
        ({"task": "total", "args": {"order": 1, "rest": [2, 3]}}, (1, (2, 3), "", {})),
        ({"task": "total", "args": {"order": 1, "to": DAY}}, (1, (), "", {"to": date(2030, 1, 1)})),
        ({"task": "total", "args": [1, 2], "kwargs": {"note": "x"}}, (1, (2,), "x", {})),
        ({"task": "total", "args": [1]}, (1, (), "", {})),
        (
            {"task": "bound", "args": {"until": DAY, "order": 1}},
            ("bound", 1, date(2030, 1, 1), [1, date(2030, 1, 1)], {}),
        ),
        (
            {"task": "bound", "text": '[[1], {"until": 2}, {}]'},
            ("bound", 1, 2, [1], {"until": 2}),
        ),
    ],
)
def test_a_body_has_arguments_by_name_or_as_celery_gives_them(
    body: Any, call: Any, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    calls: list[Any] = []
    bide_store.queue("celery").put(body)
    bide_worker(shop_of(calls)).run_due()
    assert calls == [call]


def test_bodies_of_former_checkouts_name_their_task_in_a_header(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    calls: list[Any] = []
    body = {"args": [1, 2], "kwargs": {"note": "x"}}
    bide_store.queue("slow").put(body, headers={"bide-job": "total"})
    bide_worker(shop_of(calls)).run_due()
    assert calls == [(1, (2,), "x", {})]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"task": "total", "args": {}}, "missing a required"),
        ({"task": "total", "args": {"order": 1, "rest": "23"}}, "rest= of .* must be a list"),
        ({"task": "bound", "args": {"order": 1, "mail": 2}}, "unexpected keyword argument 'mail'"),
        ({"task": "bound", "args": [1, 2, 3]}, "too many positional arguments"),
        ({"task": "bound", "args": 7}, "not a call of a task"),
        ({"task": "bound", "args": {"order": {"__type__": "x", "__value__": 1}}}, "the type x"),
    ],
)
def test_a_body_that_does_not_fit_is_a_dead_letter_at_once(
    body: Any, why: str, bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    calls: list[Any] = []
    bide_store.queue("celery").put(body)
    bide_worker(shop_of(calls), errors="collect").run_due()
    [letter] = bide_store.queue("celery").dead()
    assert letter.error is not None
    assert re.match(f"Unfit: .*{why}", letter.error)
    assert calls == []


def test_a_task_is_one_of_bide_too(bide_worker: WorkerFactory, bide_store: ScratchStore) -> None:
    calls: list[Any] = []
    app = shop_of(calls)
    total = app.tasks["total"]
    total.later("30m", id="a").put(1, 2, note="x")
    total.put_many([(4,), (5,)])
    assert total.cancel("a")
    bide_worker(app).advance("1h")
    assert calls == [(4, (), "", {}), (5, (), "", {})]


def test_two_arguments_of_one_name_are_refused(bide_store: ScratchStore) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"rest= is also the name of another parameter"):
        shop_of([]).send_task("total", (1, 2), {"rest": 3})


def test_a_task_of_another_app_is_sent_by_position(bide_store: ScratchStore) -> None:
    Celery("web", store="memory://shop").send_task("total", (1,), {"to": date(2030, 1, 1)})
    bide_store.assert_put("celery", {"task": "total", "args": [1], "kwargs": {"to": DAY}})


def test_a_task_that_this_worker_does_not_know_waits_for_one_that_does(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    calls: list[Any] = []
    old = Celery("shop", store="memory://shop")
    for name in ("first", "second"):
        old.task(name=name)(calls.append)
    shop_of([]).send_task("total", (1,))
    bide_worker(old, errors="collect").run_due()
    [message] = bide_store.pending("celery")
    assert (message.state, calls) == ("delayed", [])
    assert str(message.error).startswith("unknown work: the task 'total'")
    bide_worker(shop_of(calls)).advance("10s")
    assert calls == [(1, (), "", {})]
