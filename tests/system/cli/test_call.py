"""`bide call`."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import bide

Bide = Callable[..., Result]
Shell = Callable[..., Any]
Terminal = Callable[..., tuple[str, int]]

MODULE = """
import datetime, decimal, enum, uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal
import bide, msgspec

app = bide.App()
other = bide.App()
memory = bide.App("memory://lost")

class Color(enum.Enum):
    RED = "red"

@dataclass
class Mail:
    to: str

@app.task(queue="orders", retry=bide.Backoff(attempts=5))
def expire(order: int, *, reason: str = "unpaid") -> None: ...

@app.task(name="orders.renamed", queue="orders")
def _hidden(order: int) -> None: ...

@app.task(name="twice", queue="a")
def first() -> None: ...

@other.task(name="twice", queue="b")
def second() -> None: ...

@memory.task
def lost() -> None: ...

@app.task(queue="typed")
def typed(
    text: str = "",
    named: Annotated[str, msgspec.Meta(max_length=9)] = "",
    number: int = 0,
    price: decimal.Decimal = decimal.Decimal(0),
    optional: str | None = "",
    either: int | str = 0,
    flag: bool = False,
    day: datetime.date | None = None,
    key: uuid.UUID | None = None,
    color: Color = Color.RED,
    word: Literal["1", "yes"] = "yes",
    mail: Mail | None = None,
    lines: list[int] = (),
    anything: Any = None,
    bare=None,
    id: int = 0,
) -> None: ...

@app.task(queue="typed")
def more(**extra: int) -> None: ...

def plain() -> None: ...
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Provide the name of the module above."""
    (tmp_path / "called_shop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the folder
    yield "called_shop"
    sys.modules.pop("called_shop", None)


def args_of(queue: bide.Queue, id: str) -> Any:
    message = queue.get(id)
    assert message is not None
    return message.body["args"]


def test_puts_a_call_with_the_options_of_a_put(run: Bide, module: str, orders: bide.Queue) -> None:
    line = f"call {module}:expire 42 reason=late --delay 30m --id a --priority 5 --group c:7"
    result = run(*line.split(), "--expires", "1h", "--header", "trace=x")
    assert (result.stdout, result.stderr, result.exit_code) == ("a\n", "", 0)
    message = orders.get("a")
    assert message is not None
    assert message.body == {"task": "expire", "args": {"order": 42, "reason": "late"}}
    assert (message.state, message.priority, message.group) == ("delayed", 5, "c:7")
    assert (message.expires, message.headers) == (3_600_000, {"trace": "x"})
    assert message.attempts == 5  # of the task
    run("call", f"{module}:expire", "42", "--attempts", "2", "--id", "b")
    other = orders.get("b")
    assert other is not None
    assert (other.attempts, other.state) == (2, "ready")


def test_a_call_has_a_local_date_and_a_window(run: Bide, module: str, orders: bide.Queue) -> None:
    day = ("--at", "2096-10-06 12:00", "--timezone", "Europe/Berlin")
    result = run("call", f"{module}:expire", "42", "--id", "a", *day, "--window", "mon-fri 9-18")
    assert result.exit_code == 0
    message = orders.get("a")
    assert message is not None
    assert message.window == bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin")
    assert message.local_date is not None


def test_a_call_is_spread(run: Bide, module: str, orders: bide.Queue) -> None:
    span = "--at 4000000000 --spread 15m --id user-1"
    assert run(*f"call {module}:expire 42 {span}".split()).exit_code == 0
    message = orders.get("user-1")
    assert message is not None
    assert message.due == 4_000_000_698_765


def test_prints_the_outcome_as_put_does(
    run: Bide, module: str, orders: bide.Queue, terminal: Terminal
) -> None:
    task = f"{module}:expire"
    found = json.loads(run("call", task, "1", "--id", "a", "--at", "4000000000", "--json").output)
    assert found == {"id": "a", "done": True, "state": "delayed", "due": 4_000_000_000_000}
    again = run("call", task, "2", "--id", "a")
    assert (again.stdout, again.exit_code) == ("a\n", 0)
    assert again.stderr.startswith("kept the existing message: a is delayed, due ")
    assert run("call", task, "2", "--id", "a", "--on-conflict", "raise").exit_code == 1
    version = orders.get("a").version  # type: ignore[union-attr]
    replace = ("--id", "a", "--on-conflict", "replace", "--if-version")
    assert run("call", task, "3", *replace, version).exit_code == 0
    assert run("call", task, "4", *replace, version).exit_code == 1
    assert args_of(orders, "a") == {"order": 3}
    assert "kept the existing message: a is ready" in terminal("call", task, "5", "--id", "a")[0]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("text=42", "42"),
        ('text="42"', '"42"'),
        ("text=null", "null"),
        ("text=a=b", "a=b"),
        ("text=", ""),
        ("named=42", "42"),
        ("number=42", 42),
        ("number=-1", -1),
        ("number=123456789012345678901234567890", 123456789012345678901234567890),
        ("price=9.90", "9.90"),
        ("price=0.12345678901234567890123", "0.12345678901234567890123"),
        ("optional=42", "42"),
        ("optional=null", None),
        ('optional="null"', "null"),
        ("optional=word", "word"),
        ("either=42", 42),
        ("either=word", "word"),
        ("flag=true", True),
        ("day=2030-01-01", "2030-01-01"),
        ("day=null", None),
        ("key=12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-567812345678"),
        ("color=red", "red"),
        ("word=1", "1"),
        ('mail={"to": "ann"}', {"to": "ann"}),
        ("lines=[1, 2]", [1, 2]),
        ("anything=42", 42),
        ("anything=word", "word"),
        ("bare=[1]", [1]),
        ("id=7", 7),
    ],
)
def test_the_annotation_says_how_a_value_is_read(
    run: Bide, module: str, url: str, argument: str, value: object
) -> None:
    result = run("call", f"{module}:typed", argument, "--id", "a")
    assert (result.stderr, result.exit_code) == ("", 0)
    with bide.Queue("typed", url) as typed:
        assert args_of(typed, "a") == {argument.partition("=")[0]: value}


def test_arguments_by_position(run: Bide, module: str, url: str) -> None:
    task = f"{module}:typed"
    assert run("call", task, "42", "--id", "a", "43", "44", "price=1").exit_code == 0
    assert run("call", task, "--id", "b", "--", "-1", "-2", "-3").exit_code == 0
    assert run("call", f"{module}:more", "a=1", "b=2", "--id", "c").exit_code == 0
    with bide.Queue("typed", url) as typed:
        assert args_of(typed, "a") == {"text": "42", "named": "43", "number": 44, "price": "1"}
        assert args_of(typed, "b") == {"text": "-1", "named": "-2", "number": -3}
        assert args_of(typed, "c") == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("expire forty", r"order= of \w+\.expire does not fit: Expected `int`, got `str`"),
        ("expire", "cannot be called like this: missing a required argument: 'order'"),
        ("expire 1 2", "cannot be called like this: too many positional arguments"),
        (
            "expire 1 raeson=x",
            "cannot be called like this: got an unexpected keyword argument 'raeson'",
        ),
        ("expire 1 order=1", "cannot be called like this: multiple values for argument 'order'"),
        ("expire order=1 order=2", "order= is given twice"),
        ("typed id=x", r"id= of \w+\.typed does not fit: Expected `int`, got `str`"),
        ("typed number=1.5", "number= of .* does not fit: Expected `int`, got `float`"),
        ("more a=x", "a= of .* does not fit: Expected `int`, got `str`"),
    ],
)
def test_arguments_that_the_task_refuses(
    run: Bide, module: str, tmp_path: Path, arguments: str, why: str
) -> None:
    result = run("call", *f"{module}:{arguments}".split())
    assert (result.stdout, result.exit_code) == ("", 2)
    assert re.search(why, result.stderr)
    assert not (tmp_path / "test.db").exists()


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("{}:nothing", r"has no task 'nothing'; it has: \w+:expire, \w+:_hidden, \w+:first, "),
        ("{}:app", r"has no task 'app'; it has: "),
        ("{}:plain", "plain is not a task; decorate it with @app.task"),
        ("{}:twice", "several apps of .* have a task 'twice'; write the name of its function"),
        ("{}", "names no task; write module:task, as in: bide call shop:expire"),
        ("shop/tasks.py:expire", "names no task"),
        ("nowhere:expire", "there is no module 'nowhere'"),
        ("json:dumps", "json:dumps is not a task"),
        ("{}:lost", "memory://lost exists only while this command runs"),
    ],
)
def test_a_task_that_is_not_there(run: Bide, module: str, target: str, why: str) -> None:
    result = run("call", target.format(module))
    assert (result.stdout, result.exit_code) == ("", 2)
    assert re.search(why, result.stderr)


def test_a_task_by_its_name(run: Bide, module: str, orders: bide.Queue) -> None:
    assert run("call", f"{module}:orders.renamed", "1", "--id", "a").exit_code == 0
    assert run("call", f"{module}:_hidden", "2", "--id", "b").exit_code == 0
    for id in ("a", "b"):
        message = orders.get(id)
        assert message is not None
        assert message.body["task"] == "orders.renamed"


def test_the_store_is_that_of_the_app_unless_another_is_named(
    run: Bide, module: str, tmp_path: Path, shell: Shell
) -> None:
    place = f"sqlite:///{tmp_path}/place.db"
    (tmp_path / "placed.py").write_text(
        MODULE.replace("app = bide.App()", f"app = bide.App({place!r})")
    )
    assert shell("bide call placed:expire 1 --id a").returncode == 0
    assert shell("bide call placed:expire 1 --id b --url sqlite:///third.db").returncode == 0
    assert not (tmp_path / "test.db").exists()  # that of BIDE_URL
    with bide.Queue("orders", place) as orders:
        assert orders.get("a") is not None
        assert orders.get("b") is None
    with bide.Queue("orders", f"sqlite:///{tmp_path}/third.db") as orders:
        assert orders.get("b") is not None
