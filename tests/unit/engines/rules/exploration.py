"""Every sequence of events of a small queue, up to a depth, checked against the invariants.

The search is breadth first, and states that are equal are one, so the first sequence that breaks an
invariant is a shortest one. It is what TLC does with a specification in TLA+ (Yu, Manolios and
Lamport 1999); here the specification is the code itself.
"""

import inspect
import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

from coverage import Coverage
from msgspec.structs import replace

import bide.engines.rules.change
import bide.engines.rules.closing
import bide.engines.rules.decide
import bide.engines.rules.leases
import bide.engines.rules.putting
import bide.engines.rules.record
import bide.engines.rules.unheld
from bide.engines.rules.record import Record
from tests.unit.engines.rules.invariants import violation
from tests.unit.engines.rules.world import GROUPS, IDS, START, STEP, Event, Given, State, events

RULES: tuple[ModuleType, ...] = (
    bide.engines.rules.change,
    bide.engines.rules.closing,
    bide.engines.rules.decide,
    bide.engines.rules.leases,
    bide.engines.rules.putting,
    bide.engines.rules.record,
    bide.engines.rules.unheld,
)
FIRST_STATES = (State(), State(keep=STEP))
"""Of a queue that remembers nothing, and of one that does."""


class Branches(NamedTuple):
    """Branches of a module."""

    entered: int
    number: int
    missing: list[tuple[int, int]]
    """Those that were not entered: from which line to which; a negative one: out of a function."""


@dataclass
class Explored:
    """What an exploration has found."""

    states: int = 0
    events: int = 0
    broken: str = ""
    """The name of the invariant that was broken first; empty: none was."""
    story: str = ""
    """How, as a sequence of events."""
    examples: dict[Any, State] = field(default_factory=dict)
    """Of each kind of event, a state in which it happens."""


def explore(depth: int, first_state: State = FIRST_STATES[0]) -> Explored:
    """Return what comes of all sequences of so many events, or of one that breaks an invariant."""
    explored = Explored(states=1)
    came_by: dict[State, tuple[State, str] | None] = {first_state: None}
    layer = [first_state]
    for _ in range(depth):
        following: list[State] = []
        for before in layer:
            for event in events(before):
                explored.events += 1
                after = event.after
                is_new = after not in came_by and _mirrored(after) not in came_by
                broken = violation(before, event, is_new=is_new)
                if broken is not None:
                    explored.broken, problem = broken
                    explored.story = _story(came_by, before, event, problem)
                    return explored
                explored.examples.setdefault(_kind(before, event), before)
                if is_new:
                    came_by[after] = before, event.what
                    following.append(after)
        layer = following
        explored.states = len(came_by)
    return explored


def branches(examples: dict[Any, State]) -> dict[str, Branches]:
    """Return which branches of each module of the rules are entered by what follows some states."""
    files = [str(inspect.getsourcefile(module)) for module in RULES]
    coverage = Coverage(branch=True, data_file=None, include=files, config_file=False)
    coverage.start()
    try:
        for state in dict.fromkeys(examples.values()):
            for event in events(state):
                violation(state, event, is_new=True)
    finally:
        coverage.stop()
    with TemporaryDirectory() as folder:
        report_file = Path(folder, "report.json")
        coverage.json_report(outfile=str(report_file))
        reports = json.loads(report_file.read_text())["files"]
    entered: dict[str, Branches] = {}
    for file, report in reports.items():
        summary = report["summary"]
        missing = [tuple(branch) for branch in report["missing_branches"]]
        name = Path(file).stem
        entered[name] = Branches(summary["covered_branches"], summary["num_branches"], missing)
    return entered


def _kind(before: State, event: Event) -> Any:
    """Return what kind of event it is: what happens, to a message in which state."""
    id = event.name if isinstance(event.name, str) else event.name.id
    record = before.record(id) if id else None
    if record is None:
        return event.what, before.keep > 0, bool(before.closed[0])
    traits = (
        record.state,
        record.run is not None,
        record.rule is not None,
        record.successor is not None,
        record.stopping is not None,
        record.attempt >= record.attempts - 1,
        record.until is not None and record.until <= before.now,
        bool(record.failures),
        record.expires is not None and record.planned is not None,
    )
    place = IDS.index(id)
    closed = before.closed[place] > before.now
    return event.what, before.keep > 0, closed, traits


def _mirrored(state: State) -> State:
    """Return a state with its two messages exchanged."""
    first, second = (_renamed(record) for record in state.records)
    given = tuple(Given(IDS[1 - IDS.index(lease.id)], lease.token) for lease in state.given)
    return state._replace(
        records=(second, first),
        closed=state.closed[::-1],
        final=state.final[::-1],
        given=given,
    )


def _renamed(record: Record | None) -> Record | None:
    """Return the record of one message as that of the other."""
    if record is None:
        return None
    place = 1 - IDS.index(record.id)
    id = IDS[place]
    group = None if record.group is None else GROUPS[id]
    successor = record.successor
    if successor is not None:
        successor = replace(successor, id=id, group=None if successor.group is None else group)
    return replace(record, id=id, seq=place + 1, group=group, successor=successor)


def _story(
    came_by: dict[State, tuple[State, str] | None], state: State, event: Event, problem: str
) -> str:
    """Return how a queue came to an event that breaks an invariant."""
    steps = [(state, event.what)]
    origin = came_by[state]
    while origin is not None:
        steps.append(origin)
        origin = came_by[origin[0]]
    lines = [f"{before.now - START:3} ms  {what}" for before, what in reversed(steps)]
    return "\n".join([*lines, f"   =>   {problem}"])
