"""The rules lead from state to state as the documentation says, and in no other way."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, get_args

import pytest
from msgspec.structs import replace

from bide.engines.rules import unheld
from bide.engines.rules.change import Change, Facts, delayed, ended, expired, leased, ready
from bide.engines.rules.decide import BY_ID, BY_LEASE, Decision, decide, decide_new, decide_put
from bide.engines.rules.record import Record
from bide.model import commands as cmd
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import Item, State

NOW = 1_700_000_000_000
LATER = 60_000
TOKEN = 7

CAUSES = {cmd.Release: "end lease"}
"""The causes that are not called as their command."""


class Step(NamedTuple):
    cause: str
    before: State | None
    after: State | None
    counts: tuple[str, ...]


def records() -> Iterator[Record]:
    """Yield a message in every state, with and without what the rules look at."""
    for attempts, successor in product((1, 2), (False, True)):
        due = Record.of(Item("a", b"1", at=NOW - 10, attempts=attempts), NOW - 10, 1, NOW)
        yield due
        yield delayed(due, NOW + LATER)
        yield ready(due)
        for until in (NOW - 1, NOW + LATER):
            held = leased(due, "w1", TOKEN, NOW - 5, until)
            for at in (NOW, NOW + LATER):
                item = Item("a", b"2", at=at, latest=LATER)
                yield replace(held, successor=item.follow(None, NOW) if successor else None)
        for state in ("dead", "acked", "expired"):
            yield ended(due, state, NOW - 1)


def named_commands() -> Iterator[tuple[Any, str | cmd.Lease]]:
    """Yield commands that name the message, in each form in which a rule tells them apart."""
    lease = cmd.Lease("a", TOKEN)
    for delay in (0, LATER):
        yield cmd.RetryCommand("q", [lease], delay=delay), lease
        yield cmd.RetryCommand("q", [lease], delay=delay, release=True), lease
        yield cmd.Reschedule("q", ["a"], delay=delay), "a"
        yield cmd.Revive("q", ["a"], delay=delay), "a"
        yield cmd.Edit("q", ["a"], delay=delay), "a"
    yield cmd.Ack("q", [lease]), lease
    yield cmd.BuryCommand("q", [lease]), lease
    yield cmd.BuryCommand("q", ids=["a"]), "a"
    yield cmd.Extend("q", [lease], lease=LATER), lease
    yield cmd.Cancel("q", ["a"]), "a"
    yield cmd.Release("q", ["a"]), "a"
    yield cmd.Edit("q", ["a"], priority=3), "a"
    yield cmd.Purge("q", "dead", ids=["a"]), "a"


def puts() -> Iterator[tuple[cmd.Put, Item]]:
    for at, died, latest in product((NOW, NOW + LATER), (None, NOW - 3), (None, LATER)):
        item = Item("a", b"2", at=at, died=died, latest=latest)
        policies: tuple[cmd.OnConflict, ...] = ("keep", "replace", "revive")
        for policy in policies:
            yield cmd.Put("q", [item], policy), item


def seen(record: Record | None) -> State | None:
    return None if record is None else record.seen(NOW)


def step(cause: str, change: Change) -> Step:
    return Step(cause, seen(change.before), seen(change.after), change.counts)


def steps_of(decision: Decision, cause: str) -> Iterator[Step]:
    """Yield the steps of a decision; a lapse and a successor are causes of their own."""
    for change in decision.changes:
        is_replaced = cause == "replace" and change is decision.changes[-1]
        if change.after is change.before:
            continue
        if "lapsed" in change.counts:
            yield step("lapse", change)
        elif change.renewed and not is_replaced:
            succession = step("succeed", change)
            # What was acked has left the queue, whether it is kept or not.
            gone = None if succession.before == "acked" else succession.before
            yield succession._replace(before=gone)
        else:
            yield step(cause, change)


def all_steps() -> Iterator[Step]:
    for keep, record in product((0, LATER), records()):
        facts = Facts(NOW, keep)
        for command, name in named_commands():
            cause = CAUSES.get(type(command), command.__struct_config__.tag)
            if isinstance(command, cmd.RetryCommand) and command.release:
                cause = "release"
            yield from steps_of(decide(record, command, name, 0, facts), cause)
        for command, item in puts():
            yield from steps_of(decide_put(record, command, item, facts), "replace")
            yield from steps_of(decide_new(item, 1, facts), "put")
        if record.seen(NOW) == "ready":
            yield step("claim", Change(record, leased(record, "w1", TOKEN, NOW, NOW + LATER)))
            yield step("claim", expired(record, facts))
        if record.state != "leased":
            yield step("purge", unheld.finished(record, "purged", None, facts))


def test_the_rules_make_the_transitions_of_the_lifecycle_and_no_others() -> None:
    elsewhere = {"time", "forget"}  # no rule: a state that is seen, and the housekeeping of a store
    wanted = {
        Step(transition.cause, transition.before, transition.after, transition.counts)
        for transition in TRANSITIONS
        if transition.cause not in elsewhere
    }
    assert set(all_steps()) == wanted


def test_what_a_step_counts_keeps_the_sum() -> None:
    """put = acked + cancelled + expired + purged + what is in the queue."""
    inside = {"delayed", "ready", "leased", "dead"}
    for taken in set(all_steps()):
        before, after = int(taken.before in inside), int(taken.after in inside)
        entered = taken.counts.count("put")
        left = sum(taken.counts.count(name) for name in ("acked", "cancelled", "expired", "purged"))
        assert after - before == entered - left, taken


def test_every_command_that_names_messages_has_a_rule() -> None:
    named = {
        command
        for command in get_args(cmd.Command)
        if command.named_by in ("ids", "leases") and command is not cmd.Find
    }
    assert {*BY_ID, *BY_LEASE} == {*named, cmd.BuryCommand, cmd.Cancel, cmd.Purge}


@pytest.mark.parametrize("command", [command for command, _ in named_commands()], ids=repr)
def test_a_message_that_is_not_there_is_not_changed(command: Any) -> None:
    name = command.ids[0] if getattr(command, "ids", None) else command.leases[0]
    decision = decide(None, command, name, 0, Facts(NOW))
    assert (decision.changes, bool(decision.outcome)) == ([], False)


def test_an_old_token_changes_nothing() -> None:
    record = leased(Record.of(Item("a", b"1"), NOW, 1, NOW), "w1", TOKEN, NOW, NOW + LATER)
    old = cmd.Lease("a", TOKEN - 1)
    commands: list[Any] = [
        cmd.Ack("q", [old]),
        cmd.RetryCommand("q", [old]),
        cmd.BuryCommand("q", [old]),
        cmd.Extend("q", [old], lease=LATER),
    ]
    assert {type(command) for command in commands} == {*BY_LEASE}
    for command in commands:
        decision = decide(record, command, old, 0, Facts(NOW))
        assert (decision.changes, bool(decision.outcome)) == ([], False)
