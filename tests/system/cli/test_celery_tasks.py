"""Tasks that are written as for Celery, on the command line: they are tasks of bide."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

import bide

Bide = Callable[..., Result]

MODULE = """
from bide.contrib.celery import Celery

app = Celery("shop")

@app.task(queue="orders", max_retries=5)
def expire(order, force=False): ...

@app.task(queue="orders", bind=True)
def total(self, text: str, *orders): ...
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Provide the name of the module above."""
    (tmp_path / "celery_shop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the folder
    yield "celery_shop"
    sys.modules.pop("celery_shop", None)


def test_they_are_listed_with_every_queue_that_they_may_be_sent_to(run: Bide, module: str) -> None:
    lines = [line.split("\t") for line in run("tasks", f"{module}:app").stdout.splitlines()]
    assert [(line[:4], line[7]) for line in lines] == [
        (["task", f"{module}.{name}", queue, takes], attempts)
        for queue in ("orders", "celery")
        for name, takes, attempts in (
            ("expire", "(order, force=False)", "6"),
            ("total", "(text: str, *orders)", "4"),
        )
    ]


def test_they_are_called(run: Bide, module: str, orders: bide.Queue) -> None:
    result = run("call", f"{module}:expire", "42", "force=true", "--id", "a")
    assert (result.output, result.exit_code) == ("a\n", 0)
    run("call", f"{module}:total", "1", "2", "3", "--id", "b")
    a, b = orders.get("a"), orders.get("b")
    assert a is not None
    assert b is not None
    assert a.body == {"task": f"{module}.expire", "args": {"order": 42, "force": True}}
    assert a.attempts == 6  # of the task
    assert b.body["args"] == {"text": "1", "orders": [2, 3]}
    assert "missing a required argument" in run("call", f"{module}:expire").output


def test_what_new_code_would_refuse(run: Bide, module: str, orders: bide.Queue) -> None:
    expire = f"{module}.expire"
    orders.put({"task": expire, "args": {"order": 1}})
    orders.put({"task": expire, "args": [1, True], "kwargs": {}})
    orders.put({"task": expire, "text": "[[1], {}, {}]"}, headers={"bide-job": expire})
    assert run("check-deploy", f"{module}:app").exit_code == 0
    orders.put({"task": expire, "args": {"order": 1, "reason": "late"}})
    orders.put({"task": expire, "args": [], "kwargs": {}})
    orders.put({"task": expire, "text": '[[1], {}, {"chain": [1]}]'})
    orders.put({"task": f"{module}.gone", "args": {}})
    result = run("check-deploy", f"{module}:app", "--json")
    kinds = sorted(refusal["kind"] for refusal in json.loads(result.stdout)["refusals"])
    assert (kinds, result.exit_code) == (
        ["body", "missing argument", "no task", "unknown argument"],
        1,
    )
