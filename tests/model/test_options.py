"""The options of a message are declared once, and every face takes the same of them."""

import json

import pytest

import bide
from bide.cli.messages.put import put
from bide.exports import to_line
from bide.model.message import Options
from bide.model.options import OPTIONS
from bide.server.openapi import Description
from bide.server.problem import would_fit
from bide.server.routes import OPERATIONS
from bide.server.wire import Given

WRONG = [
    ("priority", -1),
    ("priority", 256),
    ("priority", "high"),
    ("priority", True),
    ("attempts", 0),
    ("attempts", 10_001),
    ("attempts", 1.5),
    ("group", ""),
    ("group", "a\nb"),
    ("group", "x" * 513),
]
RIGHT = [
    ("priority", 0),
    ("priority", 255),
    ("attempts", 1),
    ("attempts", 10_000),
    ("group", "é" * 256),
]


def test_every_field_has_a_rule_and_a_help_text() -> None:
    assert tuple(OPTIONS) == Options.__struct_fields__
    assert all(option.help.endswith((".", "255.")) for option in OPTIONS.values())


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_is_out_of_bounds_is_refused_by_name_in_python_and_by_import(
    name: str, value: object
) -> None:
    with bide.Queue("orders", "memory://options") as orders:
        with pytest.raises(bide.InvalidArgument, match=f"^{name}"):
            orders.put(1, **{name: value})  # type: ignore[arg-type]
        with pytest.raises(bide.InvalidArgument, match=f"^{name}"):
            orders.put_many([bide.NewMessage(1, **{name: value})])  # type: ignore[arg-type]
        line = json.dumps({"id": "a", "due": 1, "body": 1, name: value})
        with pytest.raises(bide.InvalidArgument, match=f"line 1 .*{name}"):
            orders.load([line])
        assert orders.counts().flow.put == 0


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_the_bounds_themselves_survive_an_export(name: str, value: object) -> None:
    with bide.Queue("orders", "memory://options2") as orders:
        outcome = orders.put(1, **{name: value})  # type: ignore[arg-type]
        found = orders.get(outcome.id)
        assert found is not None
        assert getattr(found, name) == value
        with bide.Queue("copies", "memory://options2") as copies:
            copies.load([to_line(found)])
            copied = copies.get(outcome.id)
            assert copied is not None
            assert getattr(copied, name) == value


def test_the_command_line_and_openapi_have_what_is_declared() -> None:
    offered = {parameter.name: parameter for parameter in put.params}
    schema = Description(OPERATIONS).document["components"]["schemas"]["Given"]["properties"]
    for name, option in OPTIONS.items():
        assert getattr(offered[name], "help", None) == option.help
        told = schema[name]
        if option.least is None:
            assert option.help in json.dumps(told)
            continue
        limits = offered[name].type
        assert (getattr(limits, "min", 0), getattr(limits, "max", 0)) == (option.least, option.most)
        assert (told["minimum"], told["maximum"]) == (option.least, option.most)
        assert told["description"] == f"{option.help} Default: `{option.default}`."
        assert offered[name].default == option.default


def test_a_similar_name_is_looked_for_only_for_short_names() -> None:
    assert would_fit(Given, "Object contains unknown field `prority`") == "did you mean priority?"
    long = "priority" * 9
    assert would_fit(Given, f"Object contains unknown field `{long}`").startswith("there are ")
