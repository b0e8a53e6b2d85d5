"""Checks that each change of each message is a transition of the lifecycle."""

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.lifecycle import TRANSITIONS, Transition
from bide.model.message import EXPIRED_KEEP, Message, State
from bide.model.replies import Counts, Outcomes, Page, Reply, expect

R = TypeVar("R", bound=Reply)

EVERYTHING = 100_000

_KNOWN = {(t.cause, t.before, t.after): t for t in TRANSITIONS}


def reply_of(engine: Engine, command: cmd.Command, kind: type[R], now: int) -> R:
    """Execute one command, and return its reply, which must be of a kind."""
    (reply,) = engine.execute([command], now)
    return expect(kind, reply)


def dump(engine: Engine, queue: str, now: int) -> dict[str, Message]:
    """Return all messages of a queue by id."""
    page = reply_of(engine, cmd.Scan(queue, limit=EVERYTHING), Page, now)
    assert page.cursor is None, "a test has more than 100,000 messages"
    messages = {message.id: message for message in page.messages}
    assert len(messages) == len(page.messages), "a scan returned a message twice"
    return messages


def audit(engine: Engine, queue: str, now: int) -> Counts:
    """Return the counts of a queue, and fail unless they account for every message."""
    counts = reply_of(engine, cmd.Count(queue, recount=True), Counts, now)
    assert counts.recount == counts.sizes, "the counters are not what a recount finds"
    assert counts.strays == 0, "a message is in no state, or in two"
    assert counts.flow.put == counts.flow.gone + counts.sizes.total, "conservation"
    return counts


class StoreWatch:
    """Executes commands one at a time, and checks each against the lifecycle.

    Args:
        engine: that executes them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: set[Transition] = set()
        """Every transition that has happened."""
        self._last: dict[str, dict[str, Message]] = {}

    def execute(self, command: cmd.Command, now: int) -> Reply:
        """Execute a command; one that changes something is checked.

        Raises:
            AssertionError: a transition is not in the lifecycle, or the counters changed otherwise
                than it says, or do not account for every message; or a version changed with
                something else than a put, an edit or a reschedule.
        """
        if command.only_reads:
            return self.engine.execute([command], now)[0]
        queue = command.queue
        before = dump(self.engine, queue, now)
        for id, message in before.items():
            old = self._last.get(queue, {}).get(id)
            if old is not None and old.state != message.state:
                self._see("time", old.state, message.state)
        first = audit(self.engine, queue, now)  # its `keep` decides what is forgotten
        (reply,) = self.engine.execute([command], now)
        after = self._last[queue] = dump(self.engine, queue, now)
        counts = audit(self.engine, queue, now)
        if not isinstance(command, (cmd.Put, cmd.Edit, cmd.Reschedule)):
            for id in before.keys() & after.keys():
                follows = before[id].successor is not None and after[id].successor is None
                same = before[id].version == after[id].version
                assert same or follows, f"{command} changed the version of {id}"
        moved: Counter[str] = Counter()
        stored: set[str] = set()
        if isinstance(command, cmd.Put) and isinstance(reply, Outcomes):
            stored = {outcome.id for outcome in reply.outcomes if outcome.done}
        if _distinct(command):
            for id in sorted(before.keys() | after.keys()):
                old, new = before.get(id), after.get(id)
                if old != new or id in stored:  # it may be replaced by an equal one
                    for step in _steps(command, old, new, first.keep, now, stored=id in stored):
                        moved.update(self._see(*step).counts)
            flow, later = msgspec.structs.asdict(first.flow), msgspec.structs.asdict(counts.flow)
            counted = +Counter({name: later[name] - flow[name] for name in later})
            assert counted == moved, f"{command} counted {counted}, its changes are {moved}"
        return reply

    def _see(self, cause: str, before: State | None, after: State | None) -> Transition:
        transition = _KNOWN.get((cause, before, after))
        assert transition is not None, f"{cause} led from {before} to {after}: not in the lifecycle"
        self.seen.add(transition)
        return transition


_Step = tuple[str, State | None, State | None]


def _steps(
    op: cmd.Command, old: Message | None, new: Message | None, keep: int, now: int, *, stored: bool
) -> Iterator[_Step]:
    """Return the steps by which a command changed a message, which it may have `stored`."""
    state, after = (None if message is None else message.state for message in (old, new))
    item = None if old is None else old.successor
    by_time = False
    if old is not None and old.until is not None and old.until <= now:
        by_time, state = True, "dead" if old.attempt >= old.attempts else "ready"
        if old.stopping is not None:
            state = None
        yield "lapse", old.state, state
        if item is not None and item.at is not None:
            before, state = state, "ready" if item.at <= now else "delayed"
            item = None
            yield "succeed", before, state
    elif old is not None and old.ended is not None and old.state in ("acked", "expired"):
        kept = keep if old.state == "acked" else max(keep, EXPIRED_KEEP)
        if old.ended + kept <= now:
            by_time, state = True, None
            yield "forget", old.state, None
    if by_time and state == after and not stored:
        return
    kept_lease = isinstance(op, (cmd.Put, cmd.Cancel, cmd.Extend))
    if old is not None and new is not None and item is not None and not kept_lease:
        between = _between(op, old)
        yield _cause(op, state), state, between
        yield "succeed", between, after
    else:
        yield _cause(op, state), state, after


def _between(command: cmd.Command, old: Message) -> State | None:
    """Return the state of a message whose lease a command ends, before its successor follows."""
    if isinstance(command, cmd.Ack) or old.stopping is not None:
        return None
    untouched = isinstance(command, cmd.RetryCommand) and command.release
    if isinstance(command, cmd.BuryCommand) or (old.attempt >= old.attempts and not untouched):
        return "dead"
    return "delayed" if isinstance(command, cmd.RetryCommand) and command.delay else "ready"


def _cause(command: cmd.Command, state: State | None) -> str:
    if isinstance(command, cmd.Put):
        return "replace" if state is not None else "put"
    if isinstance(command, cmd.RetryCommand) and command.release:
        return "release"
    if isinstance(command, cmd.Release):
        return "end lease"
    return str(command.__struct_config__.tag)


def _distinct(command: cmd.Command) -> bool:
    """Whether it names no message twice: only then its changes can be distinguished."""
    named = [item.id for item in getattr(command, "items", ())]
    named += getattr(command, "ids", None) or ()
    named += [lease.id for lease in getattr(command, "leases", ())]
    return len(set(named)) == len(named)
