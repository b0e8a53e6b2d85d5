"""Messages: their options, life cycle and rank."""

import json
from datetime import UTC, datetime
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

import bide
from bide.cli.messages.put import put
from bide.exports import to_line
from bide.model.commands import Command, Renew
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import (
    KEPT_FAILURES,
    STATES,
    Failure,
    Item,
    Message,
    NewMessage,
    Options,
    remember,
)
from bide.model.options import OPTIONS
from bide.model.rank import delayed_rank, delayed_reach, ready_rank
from bide.model.replies import Flow
from bide.model.times import LATEST
from bide.server.openapi import Description
from bide.server.problem import would_fit
from bide.server.routes import OPERATIONS
from bide.server.wire import Given


def message(**fields: object) -> Message:
    given = {"id": "a", "queue": "q", "data": b"[1]", "json": True, "due": 1_000, "priority": 0}
    return Message(**{**given, "attempt": 0, "attempts": 3, "state": "ready", **fields})  # type: ignore[arg-type]


def test_the_body_is_decoded_anew_at_each_access() -> None:
    one = message()
    assert one.body == [1]
    assert one.body is not one.body
    assert message(data=b"[1]", json=False).body == b"[1]"


def test_due_as_a_datetime_is_aware() -> None:
    assert message(due=1_893_456_000_000).due_at == datetime(2030, 1, 1, tzinfo=UTC)


def test_the_error_is_the_reason_of_the_last_failure() -> None:
    failures = (Failure(1, 5, "w", "first"), Failure(2, 6, "w", "last"))
    assert message().error is None
    assert message(failures=failures).error == "last"


@pytest.mark.parametrize("count", [0, 1, KEPT_FAILURES - 1, KEPT_FAILURES, KEPT_FAILURES + 5])
def test_the_last_failures_are_remembered(count: int) -> None:
    failures: tuple[Failure, ...] = ()
    for number in range(count):
        failures = remember(failures, Failure(number, 0, "", ""))
    kept = range(max(0, count - KEPT_FAILURES), count)
    assert [failure.attempt for failure in failures] == list(kept)


def test_messages_travel_as_json() -> None:
    item = Item("a", b"\xff", json=False, failures=(Failure(1, 2, "w", "r"),), headers={"a": "b"})
    assert msgspec.json.decode(msgspec.json.encode(item), type=Item) == item
    seen = message(failures=(Failure(1, 2, "w", "r"),), group="g")
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Message) == seen


def test_a_new_message_takes_its_body_by_name_only_as_struct_but_reads_like_put() -> None:
    new = NewMessage(body={"order": 42}, delay="30m", id="order-42")
    assert (new.id, new.delay, new.attempts) == ("order-42", "30m", 10)


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


def test_every_way_stands_there_once() -> None:
    ways = [(t.cause, t.before, t.after) for t in TRANSITIONS]
    assert len(set(ways)) == len(ways)


def test_states_causes_and_counters_exist() -> None:
    states = {*STATES, None}
    commands = {command.__struct_config__.tag for command in Command.__args__}
    how_runs_end = get_args({field.name: field.type for field in fields(Renew)}["how"])
    causes = {*(commands - {"renew"}), *(f"renew {how}" for how in how_runs_end if how != "acked")}
    causes |= {"replace", "release", "end lease", "time", "lapse", "succeed", "forget", "move"}
    for transition in TRANSITIONS:
        assert {transition.before, transition.after} <= states
        assert transition.cause in causes
        assert set(transition.counts) <= set(Flow.__struct_fields__)


def test_two_ways_from_one_place_say_when() -> None:
    for one in TRANSITIONS:
        rivals = [t for t in TRANSITIONS if (t.cause, t.before) == (one.cause, one.before)]
        unsaid = [t for t in rivals if not t.when]
        assert len(unsaid) <= 1, f"{one.cause} from {one.before}: when which?"


def test_each_state_can_be_entered_and_left() -> None:
    for state in STATES:
        assert any(t.after == state != t.before for t in TRANSITIONS)
        assert any(t.before == state != t.after for t in TRANSITIONS)


def test_what_leaves_is_counted_and_what_is_counted_leaves() -> None:
    """The table itself keeps the law: put = gone + what is there."""
    there = {"delayed", "ready", "leased", "dead"}
    gone = {"acked", "cancelled", "expired", "purged", "moved"}
    for t in TRANSITIONS:
        enters = (t.after in there) - (t.before in there)
        assert enters == ("put" in t.counts) - len(gone & set(t.counts)), t


dues = st.integers(0, LATEST)
priorities = st.integers(0, 255)


@given(dues, priorities)
def test_a_rank_is_held_exactly_by_a_double(due: int, priority: int) -> None:
    for rank in (delayed_rank(due, priority), ready_rank(due, priority), delayed_reach(due)):
        assert 0 <= rank < 2**53
        assert int(float(rank)) == rank


@given(dues, priorities, dues, priorities)
def test_delayed_goes_by_due_and_then_by_weight(d1: int, p1: int, d2: int, p2: int) -> None:
    assert (delayed_rank(d1, p1) < delayed_rank(d2, p2)) == ((d1, -p1) < (d2, -p2))


@given(dues, priorities, dues, priorities)
def test_ready_goes_by_weight_and_then_by_age(d1: int, p1: int, d2: int, p2: int) -> None:
    assert (ready_rank(d1, p1) < ready_rank(d2, p2)) == ((-p1, d1) < (-p2, d2))


@given(dues, priorities, dues)
def test_the_reach_of_a_moment_is_all_that_is_due_at_it(due: int, priority: int, now: int) -> None:
    assert (delayed_rank(due, priority) <= delayed_reach(now)) == (due <= now)
