"""Checks that each change of each message is a transition of the lifecycle."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.lifecycle import TRANSITIONS, Transition
from bide.model.message import EXPIRED_KEEP, Message, State
from bide.model.replies import Counts, GroupsClosed, Outcomes, Page, Reply, expect

R = TypeVar("R", bound=Reply)

EVERYTHING = 100_000
"""How many messages a queue of a test may have."""

_KNOWN = {
    (transition.cause, transition.before, transition.after): transition
    for transition in TRANSITIONS
}


def reply_of(engine: Engine, command: cmd.Command, reply_type: type[R], now: int) -> R:
    """Execute one command, and return its reply, which must be of a type."""
    (reply,) = engine.execute([command], now)
    return expect(reply_type, reply)


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
    # Each message that was put has left the queue, or is in it.
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
        """The messages of each queue after the last command that changed something."""

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
        self._see_time_pass(queue, before)
        counts_before = audit(self.engine, queue, now)
        listed = reply_of(self.engine, cmd.ClosedGroups(queue, limit=EVERYTHING), GroupsClosed, now)
        closed = {each.group for each in listed.groups}
        (reply,) = self.engine.execute([command], now)
        after = self._last[queue] = dump(self.engine, queue, now)
        counts_after = audit(self.engine, queue, now)
        gives_priority = isinstance(command, cmd.Postpone) and command.priority is not None
        if not (isinstance(command, (cmd.Put, cmd.Edit, cmd.Reschedule)) or gives_priority):
            for id in before.keys() & after.keys():
                followed = before[id].successor is not None and after[id].successor is None
                # A cancel of a leased message that repeats takes its run.
                repeats_no_more = before[id].repeats and not after[id].repeats
                is_same = before[id].version == after[id].version
                is_explained = is_same or followed or repeats_no_more
                assert is_explained, f"{command} changed the version of {id}"
        if _distinct(command):
            expected: Counter[str] = Counter()
            stored: set[str] = set()
            if isinstance(command, cmd.Put) and isinstance(reply, Outcomes):
                stored = {outcome.id for outcome in reply.outcomes if outcome.done}
            for id in sorted(before.keys() | after.keys()):
                old, new = before.get(id), after.get(id)
                if old != new or id in stored:  # it may be replaced by an equal one
                    # The `keep` from before the command decides what it forgets.
                    for step in _steps(
                        command, old, new, counts_before.keep, now, closed, stored=id in stored
                    ):
                        expected.update(self._see(step).counts)
            flow_before = msgspec.structs.asdict(counts_before.flow)
            flow_after = msgspec.structs.asdict(counts_after.flow)
            # The plus sign leaves out the counters that did not change.
            counted = +Counter({name: flow_after[name] - flow_before[name] for name in flow_after})
            assert counted == expected, f"{command} counted {counted}, its changes are {expected}"
        return reply

    def _see_time_pass(self, queue: str, messages: dict[str, Message]) -> None:
        """Check what time alone has changed since the last command: delayed to ready."""
        for id, message in messages.items():
            last = self._last.get(queue, {}).get(id)
            if last is not None and last.state != message.state:
                self._see(_Step("time", last.state, message.state))

    def _see(self, step: "_Step") -> Transition:
        """Return the transition of a step, and note that it has happened.

        Raises:
            AssertionError: the lifecycle has none.
        """
        cause, before, after = step
        transition = _KNOWN.get((cause, before, after))
        assert transition is not None, f"{cause} led from {before} to {after}: not in the lifecycle"
        self.seen.add(transition)
        return transition


class _Step(NamedTuple):
    """A change of one message's state; `None`: it is not in the queue."""

    cause: str
    before: State | None
    after: State | None


def _steps(
    command: cmd.Command,
    old: Message | None,
    new: Message | None,
    keep: int,
    now: int,
    closed: set[str],
    *,
    stored: bool,
) -> Iterator[_Step]:
    """Yield the steps by which a command changed a message.

    Args:
        command: the command. What is over by now ends first: a lease, or the time for which a
            message is kept.
        old: the message before it; `None`: it was not there.
        new: the message after it; `None`: it is not there.
        keep: for how many milliseconds the queue keeps acked messages.
        now: the time of the command.
        closed: the groups that were closed before it.
        stored: whether the command has put it, which it may do without a difference.
    """
    state = None if old is None else old.state
    state_after = None if new is None else new.state
    successor = None if old is None else old.successor
    waits_in = None if old is None else old.group  # if its lease ends
    if successor is not None:
        waits_in = successor.group
        if waits_in in closed:  # it is removed with the lease
            successor = None
    has_ended_by_time = False
    if old is not None and old.until is not None and old.until <= now:
        has_ended_by_time = True
        state = "dead" if old.attempt >= old.attempts and not old.repeats else "ready"
        would_wait_closed = state == "ready" and successor is None and waits_in in closed
        if old.stopping is not None or would_wait_closed:  # it is cancelled
            state = None
        yield _Step("lapse", old.state, state)
        if successor is not None and successor.at is not None:
            lapsed, state = state, "ready" if successor.at <= now else "delayed"
            successor = None
            yield _Step("succeed", lapsed, state)
    elif old is not None and old.ended is not None and old.state in ("acked", "expired"):
        kept_for = keep if old.state == "acked" else max(keep, EXPIRED_KEEP)
        if old.ended + kept_for <= now:
            has_ended_by_time, state = True, None
            yield _Step("forget", old.state, None)
    if has_ended_by_time and state == state_after and not stored:
        return  # time alone explains the change
    keeps_lease = isinstance(command, (cmd.Put, cmd.Cancel, cmd.Extend))
    if old is not None and new is not None and successor is not None and not keeps_lease:
        between = _between(command, old)
        yield _Step(_cause(command, state), state, between)
        yield _Step("succeed", between, state_after)
    else:
        yield _Step(_cause(command, state), state, state_after)


def _between(command: cmd.Command, old: Message) -> State | None:
    """Return the state of a message whose lease a command ends, before its successor follows."""
    if isinstance(command, (cmd.Ack, cmd.Renew)) or old.stopping is not None:
        return None
    is_release = isinstance(command, cmd.RetryCommand) and command.release  # counts no attempt
    is_used_up = old.attempt >= old.attempts and not is_release
    if isinstance(command, cmd.BuryCommand) or is_used_up:
        return "ready" if old.repeats else "dead"
    return "delayed" if isinstance(command, cmd.RetryCommand) and command.delay else "ready"


def _cause(command: cmd.Command, state: State | None) -> str:
    """Return what the lifecycle calls a command on a message in a state."""
    if isinstance(command, cmd.Put):
        return "replace" if state is not None else "put"
    if isinstance(command, cmd.RetryCommand) and command.release:
        return "release"
    if isinstance(command, cmd.Release):
        return "end lease"
    if isinstance(command, cmd.Purge) and command.moved:
        return "move"
    if isinstance(command, cmd.Renew):
        return "ack" if command.how == "acked" else f"renew {command.how}"
    return str(command.__struct_config__.tag)


def _distinct(command: cmd.Command) -> bool:
    """Whether it names no message twice: only then its changes can be distinguished."""
    ids = [item.id for item in getattr(command, "items", ())]
    ids += getattr(command, "ids", None) or ()
    ids += [lease.id for lease in getattr(command, "leases", ())]
    return len(set(ids)) == len(ids)
