"""Commands, and which queues are internal."""

import ast
import operator
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bide
from bide.model import commands as cmd
from bide.model import replies
from bide.model.identity import SERVER_NAMESPACE
from bide.model.internal_queues import INTERNAL_PREFIX, InternalQueue, is_internal, is_listed
from bide.model.message import Item
from bide.model.replies import Counts, Flow, Outcome, Sizes
from bide.server.limits.decoding import BatchCommand
from bide.server.validate import RULES

EXAMPLES: list[Any] = [
    cmd.Put("q", [Item("a", b"1"), Item("b", b"\xff", json=False, delay=5)], "replace"),
    cmd.Cancel("q", ["a"], if_due=5),
    cmd.Cancel("q", where=cmd.Where("g", 1, 2), dry_run=True),
    cmd.Reschedule("q", ["a"], at=5),
    cmd.Postpone("q", ["a"], [9], [5], 0),
    cmd.Edit("q", ["a"], data=b"2", priority=3, group=None, delay=0),
    cmd.Edit("q", ["a"], rule='{"every":"1h"}', run="2026-01-01T00:00:00.000Z"),
    cmd.Claim("q", 5, 1_000, "w"),
    cmd.Explain("q", "a"),
    cmd.History("q", "a"),
    cmd.ListEnded("q", "acked", 1, 2, "1.a", 5),
    cmd.Extend("q", [cmd.Lease("a", 1)], 5),
    cmd.Ack("q", [cmd.Lease("a", 1)]),
    cmd.Renew("q", [cmd.Lease("a", 1)], [cmd.NextRun(5, "2026-01-01T00:00:00.000Z")], "dead"),
    cmd.RetryCommand("q", [cmd.Lease("a", 1)], 5, "no", release=True),
    cmd.BuryCommand("q", [cmd.Lease("a", 1)], "bad"),
    cmd.Release("q", ["a"], "hangs"),
    cmd.Revive("q", ["a"], 5),
    cmd.Find("q", ["a"]),
    cmd.Scan("q", "next", cmd.Where("g"), "0.1.2", 5),
    cmd.Count("q", recount=True),
    cmd.ForecastCommand("q", 60_000, 10),
    cmd.Configure("q", paused=True, keep=5),
    cmd.Purge("q", "dead", 5),
    cmd.CloseGroup("q", "g", 5),
    cmd.ReopenGroup("q", "g"),
    cmd.ClosedGroups("q", replies.ClosedGroup(5, "g")),
    cmd.Delete("q"),
    cmd.Queues("q"),
]


def name(command: Any) -> str:
    return type(command).__name__


@pytest.mark.parametrize("command", EXAMPLES, ids=name)
def test_a_command_travels_as_json_and_says_what_it_is(command: Any) -> None:
    data = msgspec.json.encode(command)
    tag = msgspec.json.decode(data)["command"].replace("_", "")
    assert tag == name(command).lower().removesuffix("command")
    assert msgspec.json.decode(data, type=cmd.Command) == command


def test_every_command_is_among_the_examples() -> None:
    assert {type(command) for command in EXAMPLES} == set(cmd.Command.__args__)
    assert len(cmd.Command.__args__) == 27


@pytest.mark.parametrize("command", EXAMPLES, ids=name)
def test_what_only_reads_says_so(command: Any) -> None:
    reads = {"Find", "Scan", "Count", "Explain", "ForecastCommand", "History", "Queues"}
    reads |= {"ClosedGroups", "ListEnded"}
    dry = isinstance(command, cmd.Cancel) and command.dry_run
    assert command.only_reads == (name(command) in reads or dry)


@pytest.mark.parametrize(
    ("command", "weight"),
    [
        (cmd.Put("q", [Item("a", b"1")] * 3), 3),
        (cmd.Put("q", []), 0),
        (cmd.Cancel("q", ["a", "b"]), 2),
        (cmd.Cancel("q", where=cmd.Where("g")), cmd.BULK),
        (cmd.Reschedule("q", ["a"]), 1),
        (cmd.Claim("q", 7, 1, "w"), 7),
        (cmd.Ack("q", [cmd.Lease("a", 1)] * 4), 4),
        (cmd.Renew("q", [cmd.Lease("a", 1)] * 4, [None] * 4), 4),
        (cmd.Revive("q", ["a"] * 2), 2),
        (cmd.Find("q", ["a"] * 2), 2),
        (cmd.Purge("q", "dead"), cmd.BULK),
        (cmd.Count("q"), 1),
    ],
)
def test_the_weight_is_how_many_messages_it_names(command: Any, weight: int) -> None:
    assert command.weight == weight


def test_what_may_be_sent_again_says_so() -> None:
    again = {name(command) for command in EXAMPLES if command.repeatable}
    assert again == {"Extend", "History", "Configure", "CloseGroup"}


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome("a", False), "a is not in the queue"),
        (Outcome("a", True, "delayed", 0), "a is delayed, due 1970-01-01 00:00:00 UTC"),
        (Outcome("a", True, "ready", 0), "a is ready, due 1970-01-01 00:00:00 UTC"),
        (
            Outcome("a", False, "leased", 0, until=1_000, holder="w"),
            "a is held by w until 1970-01-01 00:00:01 UTC",
        ),
        (Outcome("a", False, "dead", 0, 1_000), "a is dead since 1970-01-01 00:00:01 UTC"),
        (Outcome("a", False, "acked", 0, 0), "a is acked since 1970-01-01 00:00:00 UTC"),
    ],
)
def test_an_outcome_in_words(outcome: Outcome, text: str) -> None:
    assert str(outcome) == text
    assert bool(outcome) is outcome.done


def test_what_was_asked_for_is_no_part_of_an_outcome() -> None:
    plain = Outcome("a", False, "leased", 0, until=1, holder="w")
    answer = cmd.Cancel("q", ["a"]).worded_outcome(plain)
    assert str(answer) != str(plain)
    assert answer == plain
    assert plain == answer
    assert not operator.ne(answer, plain)
    assert not operator.ne(plain, answer)
    assert answer != Outcome("a", True)
    assert hash(answer) == hash(plain)
    assert msgspec.json.encode(answer) == msgspec.json.encode(plain)
    assert msgspec.structs.asdict(answer) == msgspec.structs.asdict(plain)
    assert pickle.loads(pickle.dumps(answer)) == plain


def test_the_outcomes_of_each_command_say_what_was_asked_for() -> None:
    silent = {name(command) for command in EXAMPLES if command.outcome_type is Outcome}
    assert silent == {
        name(command) for command in EXAMPLES if "`Outcomes`" not in (type(command).__doc__ or "")
    }


def test_sums() -> None:
    assert Sizes(1, 2, 3, 4).total == 10
    assert Flow(put=99, acked=1, cancelled=2, expired=3, purged=4, died=50, moved=5).gone == 15


@pytest.mark.parametrize(
    "reply",
    [
        replies.Outcomes([Outcome("a", True, "ready", 5)], 5),
        replies.Claimed([], 0, 5, 7),
        replies.Found([None]),
        replies.Page([], "0.1.2"),
        replies.Affected(5, more=True),
        Counts(Sizes(1), Flow(1), recount=Sizes(1), strays=0),
        replies.Forecasted(5, 1, [1, 2], 3),
        replies.QueueSettings(paused=True, keep=5),
        replies.GroupsClosed([replies.ClosedGroup(5, "g")], more=True),
        replies.Names(["q"]),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_a_reply_travels_as_json(reply: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(reply), type=replies.Reply) == reply


def test_every_field_of_a_command_that_is_not_a_choice_is_bounded_on_the_wire() -> None:
    own_rules = {"queue", "cursor", "priority", "attempts", "group"}  # see `validate`
    any_text = {"prefix", "reason"}
    for kind in msgspec.inspect.type_info(BatchCommand).types:  # type: ignore[attr-defined]
        for field in kind.fields:
            if field.name in {*RULES, *own_rules, *any_text}:
                continue
            for part in getattr(field.type, "types", (field.type,)):
                match part:
                    case msgspec.inspect.IntType():
                        assert None not in (part.ge, part.le), f"{kind.cls}.{field.name}"
                    case msgspec.inspect.ListType():
                        assert part.max_length is not None, f"{kind.cls}.{field.name}"
                    case msgspec.inspect.StrType():
                        assert part.max_length is not None, f"{kind.cls}.{field.name}"


SOURCE = Path(bide.__file__).parent

KEYS_OF_REDIS = {"engines/redis/layout.py", "importing/transit.py"}
"""Files with names of keys, which are no queues, and begin with the same prefix."""


@pytest.mark.parametrize("queue", InternalQueue)
def test_an_internal_queue_is_recognized_and_not_listed(queue: InternalQueue) -> None:
    assert is_internal(queue.value)
    assert not is_listed(queue.value)
    assert [other for other in InternalQueue if other.matches(queue.value)] == [queue]


@pytest.mark.parametrize("queue", InternalQueue)
def test_only_those_of_servers_are_not_in_namespaces(queue: InternalQueue) -> None:
    of_servers = queue.value.startswith(SERVER_NAMESPACE)
    assert queue.matches(f"shop/{queue.value}") is not of_servers
    if not of_servers:
        assert queue.matches(queue.beside("shop/orders"))
        assert is_internal(queue.beside("shop/orders"))


def texts_of(code: str) -> Iterator[str]:
    """Yield the texts in the code of a file, also those in f-strings, without docstrings."""
    tree = ast.parse(code)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text


def test_no_other_file_spells_an_internal_name() -> None:
    prefixes = INTERNAL_PREFIX, f"{SERVER_NAMESPACE}/"
    codes = {
        path.relative_to(SOURCE).as_posix(): path.read_text("utf-8")
        for path in SOURCE.rglob("*.py")
    }
    spelling = {
        name
        for name, code in codes.items()
        if name not in KEYS_OF_REDIS
        and any(prefix in code for prefix in prefixes)  # else it is not worth parsing
        and any(text.startswith(prefixes) for text in texts_of(code))
    }
    assert spelling == {"model/internal_queues.py"}
