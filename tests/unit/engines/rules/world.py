"""A queue of two messages as plain data, and all that can happen to it next.

Nothing here decides what a command does: that do the rules of `bide.engines.rules`. All workers
have one name, at which only the end of a lease looks: each is a lease that was given, whether it is
good or not.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from bide.engines.rules import change as changes
from bide.engines.rules import decide as deciding
from bide.engines.rules.change import Change, Facts
from bide.engines.rules.leases import lapse
from bide.engines.rules.record import Record
from bide.model import commands as cmd
from bide.model.message import Failure, Item, Progress
from bide.model.replies import Outcome

QUEUE = "q"
IDS = ("a", "b")
GROUPS = {"a": "g", "b": "h"}
START = 1_000
STEP = 10
"""How far the clock goes at a time, in milliseconds; leases and delays are as long."""
LAST = START + 2 * STEP
"""The last of the three times."""
FOREVER = START + 100 * STEP
RULE = "rule"
RUNS = ("run-1", "run-2")
WORKER, OTHER_WORKER = "w", "v"
"""The name of the workers, and one that holds nothing."""
LEASES_KEPT = 2
"""How many leases of a message are remembered: the good one, and one that is over."""


class Given(NamedTuple):
    """A lease that a worker got."""

    id: str
    token: int


class State(NamedTuple):
    """All that the rules and their users know."""

    now: int = START
    records: tuple[Record | None, Record | None] = (None, None)
    closed: tuple[int, int] = (0, 0)
    """Until when the group of each message is closed."""
    token: int = 0
    """Of the last claim."""
    given: tuple[Given, ...] = ()
    """The last leases that workers got, whether they are good or not; the oldest first."""
    final: tuple[bool, bool] = (False, False)
    """Whether a cancel of each message has said that it is done, or will not run again."""
    keep: int = 0
    """How long acked messages are kept, and ends are remembered."""

    @property
    def facts(self) -> Facts:
        """What the rules need to know of the queue."""
        return _facts(self.now, self.keep, self.closed)

    def record(self, id: str) -> Record | None:
        """Return the record of a message."""
        return self.records[IDS.index(id)]


@lru_cache
def _facts(now: int, keep: int, closed: tuple[int, int]) -> Facts:
    """Return what the rules need to know of a queue."""
    closings = dict(zip(GROUPS.values(), closed, strict=True))
    return Facts(now, keep, keep, keep, closings.get)


class Event(NamedTuple):
    """Something that happens, and what comes of it."""

    what: str
    """For people."""
    after: State
    changes: tuple[Change, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    command: Any = None
    name: str | cmd.Lease = ""
    """With which the command names its message."""
    delivered: tuple[Record, ...] = ()
    """What a claim has delivered, as it was before."""


PUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "put {id}": ({}, {}),
    "put {id} for later, once and not too late": (
        {"delay": STEP, "attempts": 1, "expires": 0},
        {},
    ),
    "put {id}, which repeats": (
        {"rule": RULE, "run": RUNS[0], "attempts": 2, "expires": STEP},
        {},
    ),
    "put {id} with a rule alone": ({"rule": RULE, "group": None}, {}),
    "put {id} again": ({"delay": STEP, "latest": STEP}, {"on_conflict": "replace"}),
    "put {id}, reviving it": ({}, {"on_conflict": "revive"}),
    "replace {id} if it is there": ({}, {"on_conflict": "replace", "if_version": "0" * 16}),
    "import {id} as a dead letter": (
        {"died": START, "attempt": 1, "created": 0},
        {"on_conflict": "replace"},
    ),
}

BY_ID: dict[str, Any] = {
    "cancel {id}": lambda ids: cmd.Cancel(QUEUE, ids),
    "cancel {id} if it is due later": lambda ids: cmd.Cancel(QUEUE, ids, if_due=START + STEP),
    "stop {id}": lambda ids: cmd.Cancel(QUEUE, ids, running=True),
    "stop {id} if it is another one": lambda ids: cmd.Cancel(
        QUEUE, ids, running=True, if_version="0" * 16
    ),
    "reschedule {id}": lambda ids: cmd.Reschedule(QUEUE, ids, delay=STEP),
    "postpone {id}": lambda ids: cmd.Postpone(QUEUE, ids, [START + STEP], priority=1),
    "edit {id}": lambda ids: cmd.Edit(QUEUE, ids, expires=STEP, data=b"2"),
    "edit {id}: when": lambda ids: cmd.Edit(QUEUE, ids, at=START + STEP, expires=None),
    "edit {id}: it repeats": lambda ids: cmd.Edit(QUEUE, ids, rule="other", run=RUNS[1]),
    "edit {id}: its own time": lambda ids: cmd.Edit(
        QUEUE, ids, times=[cmd.NewTime(START + STEP, RULE, RUNS[0])]
    ),
    "edit {id}: it repeats no more": lambda ids: cmd.Edit(QUEUE, ids, rule=None, run=None),
    "end the lease of {id}": lambda ids: cmd.Release(QUEUE, ids),
    "end the lease of {id} that another worker has": lambda ids: cmd.Release(
        QUEUE, ids, holder=OTHER_WORKER
    ),
    "revive {id}": lambda ids: cmd.Revive(QUEUE, ids),
    "purge {id}": lambda ids: cmd.Purge(QUEUE, "dead", ids=ids),
    "delete {id}, which another store has": lambda ids: cmd.Purge(
        QUEUE, "dead", ids=ids, moved=True
    ),
    "set {id} aside": lambda ids: cmd.BuryCommand(QUEUE, ids=ids),
}

NEXT = cmd.NextRun(START + STEP, RUNS[1])

BY_LEASE: dict[str, Any] = {
    "ack {id}": lambda leases: cmd.Ack(QUEUE, leases),
    "ack {id} with a result": lambda leases: cmd.Ack(QUEUE, leases, [b"1"]),
    "ack {id}; then its next run": lambda leases: cmd.Renew(QUEUE, leases, [NEXT]),
    "ack {id}; it was the last run": lambda leases: cmd.Renew(QUEUE, leases, [None]),
    "the run of {id} is dead": lambda leases: cmd.Renew(QUEUE, leases, [NEXT], "dead"),
    "the last run of {id} is dead": lambda leases: cmd.Renew(QUEUE, leases, [None], "dead"),
    "the run of {id} is too late": lambda leases: cmd.Renew(QUEUE, leases, [NEXT], "expired"),
    "the last run of {id} is too late": lambda leases: cmd.Renew(QUEUE, leases, [None], "expired"),
    "the run of {id} has ended before": lambda leases: cmd.Renew(QUEUE, leases, [NEXT], "ended"),
    "retry {id}": lambda leases: cmd.RetryCommand(QUEUE, leases, STEP),
    "release {id}": lambda leases: cmd.RetryCommand(QUEUE, leases, release=True),
    "release {id} for later": lambda leases: cmd.RetryCommand(
        QUEUE, leases, STEP, "not now", release=True
    ),
    "bury {id}": lambda leases: cmd.BuryCommand(QUEUE, leases),
    "extend {id}": lambda leases: cmd.Extend(QUEUE, leases, 2 * STEP),
    "report on {id}": lambda leases: cmd.Extend(QUEUE, leases, None, [Progress(1)]),
}


def events(state: State) -> Iterator[Event]:
    """Yield all that can happen next."""
    if state.now < LAST:
        yield Event("time passes", _kept(state._replace(now=state.now + STEP)))
    yield claim(state, 1)
    yield claim(state, 2)
    for id in IDS:
        for what, (fields, options) in PUTS.items():
            yield put(state, id, what.format(id=id), fields, options)
        for what, command in BY_ID.items():
            yield change(state, command([id]), id, what.format(id=id))
        yield from _group(state, id)
    for record in state.records:
        if record is not None and record.state in ("acked", "expired"):
            step = changes.finished(record, "purged", None, state.facts)
            what = f"purge {record.id}, which has ended"
            yield Event(what, _kept(_applied(state, [step])), (step,))
    for given in state.given:
        record = state.record(given.id)
        is_good = record is not None and record.token == given.token
        whose = "" if is_good else " by a lease that is over"
        lease = cmd.Lease(given.id, given.token)
        for what, command in BY_LEASE.items():
            if is_good or "ack" in what:
                yield change(state, command([lease]), lease, what.format(id=given.id) + whose)


def put(state: State, id: str, what: str, fields: dict[str, Any], options: dict[str, Any]) -> Event:
    """Put a message."""
    item = Item(id, b"1", **{"group": GROUPS[id], **fields})
    command = cmd.Put(QUEUE, [item], **options)
    record = state.record(id)
    if record is not None:
        decision = deciding.decide_put(record, command, item, state.facts)
    elif command.stores_new:
        decision = deciding.decide_new(item, IDS.index(id) + 1, state.facts)
    else:
        decision = deciding.Decision([], Outcome(id, False))
    return _event(state, what, decision, command, id)


def change(state: State, command: Any, name: str | cmd.Lease, what: str) -> Event:
    """Execute a command that names a message by its id or by a lease."""
    id = name if isinstance(name, str) else name.id
    record = state.record(id)
    there = {} if record is None else {id: record}
    (decision,) = deciding.decide_each(there, command, [name], 0, state.facts)
    return _event(state, what, decision, command, name)


def claim(state: State, count: int) -> Event:
    """Let a worker claim messages."""
    applied = [step for record in state.records if record for step in lapse(record, state.facts)]
    after = _applied(state, applied)
    due = [
        record
        for record in after.records
        if record is not None
        and (record.state == "ready" or (record.state == "delayed" and record.due <= state.now))
    ]
    taken: list[Record] = []
    for record in sorted(due, key=lambda record: (record.priority, record.due, record.seq)):
        if state.facts.closed_until(record.group) is not None:
            applied.append(changes.finished(record, "cancelled", None, state.facts))
        elif record.is_late(state.now):
            applied.append(changes.expired(record, state.facts))
        elif len(taken) < count:
            taken.append(record)
    token = state.token + bool(taken)
    applied += [
        Change(record, changes.leased(record, WORKER, token, state.now, state.now + STEP))
        for record in taken
    ]
    leases = tuple(Given(record.id, token) for record in taken)
    after = _applied(state._replace(token=token, given=state.given + leases), applied)
    names = " and ".join(record.id for record in taken) or "nothing"
    what = f"a worker claims {names}"
    return Event(what, _kept(after), tuple(applied), delivered=tuple(taken))


def _group(state: State, id: str) -> Iterator[Event]:
    """Close the group of a message, cancel what waits in it, or open it."""
    place = IDS.index(id)
    closed = list(state.closed)
    if state.closed[place] <= state.now:
        closed[place] = state.now + STEP
        after = state._replace(closed=(closed[0], closed[1]))
        yield Event(f"close the group of {id}", _kept(after))
        return
    closed[place] = 0
    after = state._replace(closed=(closed[0], closed[1]))
    yield Event(f"reopen the group of {id}", _kept(after))
    record = state.record(id)
    if record is not None and record.state in changes.WAITING and record.group is not None:
        step = changes.finished(record, "cancelled", None, state.facts)
        what = f"cancel {id}, which waits in a closed group"
        yield Event(what, _kept(_applied(state, [step])), (step,))


def _event(
    state: State, what: str, decision: deciding.Decision, command: Any, name: str | cmd.Lease
) -> Event:
    """Return what comes of a decision."""
    id = name if isinstance(name, str) else name.id
    outcome = decision.outcome
    final = list(state.final)
    if isinstance(command, cmd.Put):
        final[IDS.index(id)] = final[IDS.index(id)] and not outcome.done
    elif isinstance(command, cmd.Cancel):
        final[IDS.index(id)] = final[IDS.index(id)] or outcome.done or outcome.state == "stopping"
    after = state
    is_changed = any(step.after is not step.before for step in decision.changes)
    if is_changed or final != list(state.final):
        after = _applied(state._replace(final=(final[0], final[1])), decision.changes)
        after = _kept(after)
    return Event(what, after, tuple(decision.changes), (outcome,), command, name)


def _applied(state: State, applied: list[Change]) -> State:
    """Return a state after changes."""
    records = list(state.records)
    for step in applied:
        record = step.after or step.before
        assert record is not None
        records[IDS.index(record.id)] = step.after
    return state._replace(records=(records[0], records[1]))


def _kept(state: State) -> State:
    """Return a state without what no rule looks at, so that equal ones are found.

    Tokens are numbered anew: rules only ask whether two of them are equal.
    """
    given = state.given
    for id in IDS:
        own = [lease for lease in given if lease.id == id]
        given = tuple(lease for lease in given if lease not in own[:-LEASES_KEPT])
    tokens = sorted({lease.token for lease in given} | {state.token})
    numbers = {token: number for number, token in enumerate(tokens, 1)}
    records = tuple(
        None if record is None else _plain(record, numbers, state) for record in state.records
    )
    closed = tuple(until if until > state.now else 0 for until in state.closed)
    return state._replace(
        records=(records[0], records[1]),
        closed=(closed[0], closed[1]),
        token=numbers[state.token],
        given=tuple(Given(lease.id, numbers[lease.token]) for lease in given),
    )


def _plain(record: Record, numbers: dict[int, int], state: State) -> Record | None:
    """Return a record without what no rule looks at; `None`: it is not kept any longer."""
    if record.ended is not None and record.state in ("acked", "expired"):
        return None if record.ended + state.keep <= state.now else record
    return replace(
        record,
        token=None if record.token is None else numbers.get(record.token, 0),
        failures=tuple(Failure(1, START, WORKER, "no") for _ in record.failures[:1]),
        since=None,
        extended=0,
        progress=None,
        created=None if record.created is None else START,
        successor=None if record.successor is None else replace(record.successor, created=START),
    )
