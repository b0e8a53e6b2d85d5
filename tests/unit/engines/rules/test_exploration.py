"""The rules of messages: no sequence of events breaks an invariant, and a broken rule is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bide.engines.rules import change as changes
from bide.engines.rules import decide as deciding
from bide.engines.rules import leases, unheld
from bide.engines.rules.change import Change, Facts
from bide.engines.rules.record import Record
from bide.model import commands as cmd
from bide.model.replies import Outcome
from tests.unit.engines.rules.exploration import FIRST_STATES, RULES, branches, explore
from tests.unit.engines.rules.invariants import NAMES

DEPTHS = dict(zip(FIRST_STATES, (5, 4), strict=True))
DEEP_ENOUGH = 5
"""To break each invariant."""
GUARANTEES = Path("docs/guarantees.md")


def test_no_sequence_of_events_breaks_an_invariant() -> None:
    examples: dict[Any, Any] = {}
    for first_state, depth in DEPTHS.items():
        explored = explore(depth, first_state)
        assert not explored.broken, explored.story
        examples |= {(first_state.keep, kind): state for kind, state in explored.examples.items()}
    entered = branches(examples)
    assert {module: counts.missing for module, counts in entered.items() if counts.missing} == {}
    assert len(entered) == len(RULES)


Break = Callable[[pytest.MonkeyPatch], None]


def _rule(table: dict[Any, Any], command: type, broken: Callable[..., Change]) -> Break:
    """Return what puts a rule in the place of another one; it gets that one first."""
    rule = table[command]

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(table, command, lambda *given: broken(rule, *given))

    return apply


def _ack_uncounted(rule: Any, *given: Any) -> Change:
    change: Change = rule(*given)
    return replace(change, counts=())


def _reschedule_denied(rule: Any, record: Record, *given: Any) -> Change:
    change: Change = rule(record, *given)
    return replace(change, outcome=Outcome(record.id, False, "delayed"))


def _reschedule_ready(rule: Any, *given: Any) -> Change:
    change: Change = rule(*given)
    if change.after is None or change.after.state != "delayed":
        return change
    return replace(change, after=replace(changes.ready(change.after), rank=1))


def _cancel_forgotten(rule: Any, record: Record, *given: Any) -> Change:
    change: Change = rule(record, *given)
    return replace(change, after=record, counts=()) if change.after is None else change


def _any_lease_ended(rule: Any, record: Record, command: cmd.Release, *given: Any) -> Change:
    change: Change = rule(record, replace(command, holder=None), *given)
    return change


def _never_purged(rule: Any, record: Record, command: cmd.Purge, _: int, facts: Facts) -> Change:
    return changes.unchanged(record, facts.now)


def _nothing_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "with_consequences", lambda change, facts: [change])


def _nothing_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "repeats", lambda record, facts: False)


def _acked_by_the_same_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(record: Record, state: str, moment: int) -> Record:
        return replace(changes.ended(record, state, moment), token=record.token)

    monkeypatch.setattr(leases, "ended", ended)


def _old_leases_count(monkeypatch: pytest.MonkeyPatch) -> None:
    is_named = deciding._is_named

    def named(record: Record, command: Any, name: Any, place: int) -> bool:
        is_lease = not isinstance(name, str) and record.state == "leased"
        return is_lease or is_named(record, command, name, place)

    monkeypatch.setattr(deciding, "_is_named", named)


def _one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    leased = changes.leased
    monkeypatch.setattr(
        changes,
        "leased",
        lambda record, holder, token, now, until: leased(record, holder, 1, now, until),
    )


def _nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Change, "moves", False)


BROKEN: dict[str, tuple[Break, int]] = {
    "conservation": (_rule(deciding.BY_LEASE, cmd.Ack, _ack_uncounted), 3),
    "honest_answers": (_rule(deciding.BY_ID, cmd.Reschedule, _reschedule_denied), 2),
    "no_early_delivery": (_rule(deciding.BY_ID, cmd.Reschedule, _reschedule_ready), 3),
    "final_cancels": (_rule(deciding.BY_ID, cmd.Cancel, _cancel_forgotten), 3),
    "closed_groups": (_nothing_follows, 3),
    "one_series": (_nothing_repeats, 3),
    "named_holders": (_rule(deciding.BY_ID, cmd.Release, _any_lease_ended), 3),
    "acks_count_once": (_acked_by_the_same_token, 3),
    "true_places": (_nothing_moves, 2),
    "growing_tokens": (_one_token, 2),
    "one_holder": (_old_leases_count, 4),
    "ways_out": (_rule(deciding.BY_ID, cmd.Purge, _never_purged), 1),
}
"""For each invariant what breaks it, and after how many events that can be seen at the earliest."""


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_rule_is_found_with_a_shortest_story(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it, events = BROKEN[name]
    break_it(monkeypatch)
    remembers = name == "acks_count_once"  # what is acked is deleted else
    explored = explore(DEEP_ENOUGH, FIRST_STATES[remembers])
    assert explored.broken == name, explored.story
    assert len(explored.story.splitlines()) == events + 1, explored.story


def test_a_story_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    _rule(deciding.BY_ID, cmd.Cancel, _cancel_forgotten)(monkeypatch)
    assert explore(DEEP_ENOUGH).story.splitlines() == [
        "  0 ms  put a",
        "  0 ms  cancel a",
        "  0 ms  a worker claims a",
        "   =>   a was delivered after its cancel was confirmed",
    ]


def test_each_invariant_is_named_by_a_guarantee() -> None:
    text = GUARANTEES.read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []


def test_the_rules_of_this_test_are_those_of_the_engines() -> None:
    assert deciding.BY_ID[cmd.Cancel] is unheld.cancel
    assert deciding.BY_LEASE[cmd.Ack] is leases.ack
