"""What calls of tasks look like that are written as for Celery and run in bide."""

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
