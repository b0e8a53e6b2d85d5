"""What must hold of every event and every state, however the queue came there.

Each invariant is a function that returns what is wrong, or `None`. The promises of
docs/guarantees.md name them.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from bide.engines.rules import decide as deciding
from bide.engines.rules.change import WAITING
from bide.engines.rules.leases import lapse
from bide.model import commands as cmd
from tests.unit.engines.rules.world import (
    IDS,
    OTHER_WORKER,
    QUEUE,
    Event,
    Given,
    State,
)

GONE = ("acked", "cancelled", "expired", "purged", "moved")
"""The counters of messages that have left the queue."""
SETTLING = (cmd.Ack, cmd.Renew, cmd.RetryCommand, cmd.BuryCommand)


def conservation(before: State, event: Event) -> str | None:
    """Return what is wrong with the counters: what was put is gone, or in the queue."""
    counts = Counter(name for change in event.changes for name in change.counts)
    more = _total(event.after) - _total(before)
    gone = sum(counts[name] for name in GONE)
    if counts["put"] - gone == more:
        return None
    return f"{counts['put']} were put and {gone} have gone, but there are {more:+} in the queue"


def honest_answers(before: State, event: Event) -> str | None:
    """Return what is wrong with the answer: false means that nothing was changed."""
    for outcome in event.outcomes:
        says_more = outcome.state in ("stopping", "ending", "closed") or outcome.successor
        if outcome.done or says_more or isinstance(event.command, cmd.Put):
            continue
        id = outcome.id
        record = before.record(id)
        lapses = [] if record is None else lapse(record, before.facts)
        if len(event.changes) > len(lapses) + 1 or any(
            change.after != change.before for change in event.changes[len(lapses) :]
        ):
            return f"the answer about {id} is false, but it was changed"
    return None


def no_early_delivery(before: State, event: Event) -> str | None:
    """Return what is wrong with the due times of what a worker gets."""
    for record in event.delivered:
        if record.due > before.now:
            return f"{record.id} was delivered {record.due - before.now} ms early"
    return None


def final_cancels(before: State, event: Event) -> str | None:
    """Return what is wrong with a cancel: no worker gets what was cancelled, or told to stop."""
    for record in event.delivered:
        if before.final[IDS.index(record.id)]:
            return f"{record.id} was delivered after its cancel was confirmed"
    return None


def closed_groups(before: State, event: Event) -> str | None:
    """Return what is wrong with closed groups: nothing begins to wait in them."""
    facts = before.facts
    for change in event.changes:
        record = change.after
        if record is None or record.state not in WAITING or record == change.before:
            continue
        if facts.closed_until(record.group) is not None:
            return f"{record.id} waits in a closed group"
    return None


def one_series(before: State, event: Event) -> str | None:
    """Return what is wrong with messages that repeat: no end of a run ends them."""
    command = event.command
    ends_run = isinstance(command, (*SETTLING, cmd.Release)) or not event.outcomes
    if not ends_run or (isinstance(command, cmd.Renew) and command.next == [None]):
        return None
    if isinstance(command, cmd.BuryCommand) and command.ids:
        return None  # somebody has set aside what waits
    for old in before.records:
        if old is None or old.state != "leased" or not old.run or old.successor is not None:
            continue
        new = event.after.record(old.id)
        is_open = before.facts.closed_until(old.group) is None
        if is_open and old.stopping is None and (new is None or new.run is None):
            return f"{old.id} repeats, and there is no next run of it"
    return None


def named_holders(before: State, event: Event) -> str | None:
    """Return what is wrong with the end of a lease that names a worker: those of others stay."""
    if isinstance(event.command, cmd.Release) and event.command.holder == OTHER_WORKER:
        for outcome in event.outcomes:
            if outcome.done:
                return f"the lease of {outcome.id} was ended, which another worker has"
    return None


def acks_count_once(before: State, event: Event) -> str | None:
    """Return what is wrong with an ack whose answer is lost, so that it is sent again."""
    command, name = event.command, event.name
    if not isinstance(command, SETTLING) or isinstance(name, str) or not event.outcomes[0].done:
        return None
    again = deciding.decide(event.after.record(name.id), command, name, 0, event.after.facts)
    if again.outcome.done or any("acked" in change.counts for change in again.changes):
        return f"its repetition was done again: {again.outcome}"
    return None


def true_places(before: State, event: Event) -> str | None:
    """Return what is wrong with the sets of a queue: who does not move stays where it is."""
    for change in event.changes:
        old, new = change.before, change.after
        if old is None or new is None or change.moves:
            continue
        if (old.state, old.seq) != (new.state, new.seq) or (
            new.state != "leased" and (old.rank, old.group) != (new.rank, new.group)
        ):
            return f"{new.id} is at another place in its queue, and it was not moved"
    return None


def one_holder(state: State) -> str | None:
    """Return what is wrong with leases: only the last one of a message is good."""
    for id in IDS:
        good = [given for given in state.given if given.id == id and _is_good(state, given)]
        if len(good) > 1:
            return f"{len(good)} workers hold {id}"
        tokens = [given.token for given in state.given if given.id == id]
        if good and good[0].token != max(tokens):
            return f"a worker holds {id} by an older lease than another one"
    return None


def growing_tokens(state: State) -> str | None:
    """Return what is wrong with tokens: each is greater than those before it."""
    for id in IDS:
        tokens = [given.token for given in state.given if given.id == id]
        record = state.record(id)
        if tokens != sorted(set(tokens)):
            return f"{id} has the tokens {tokens}"
        if record is not None and record.token is not None and record.token != tokens[-1]:
            return f"{id} is leased with the token {record.token}, after {tokens}"
    return None


def ways_out(state: State) -> str | None:
    """Return what is wrong with a state: each message can be delivered and acked, or purged."""
    for record in state.records:
        if record is None or record.state in ("acked", "expired"):
            continue
        if record.state == "dead":
            purge = cmd.Purge(QUEUE, "dead", ids=[record.id])
            if not deciding.decide(record, purge, record.id, 0, state.facts).outcome.done:
                return f"{record.id} is dead for ever"
            continue
        if record.state == "leased" and record.until is not None:
            later = state._replace(now=record.until, closed=(0, 0))
            changes = lapse(record, later.facts)
            if not changes or changes[-1].after == record:
                return f"{record.id} is leased for ever"
        elif record.state not in WAITING:
            return f"{record.id} is {record.state}: that is no state"
    return None


def _is_good(state: State, given: Given) -> bool:
    """Return whether an ack by a lease would be done."""
    lease = cmd.Lease(given.id, given.token)
    command = cmd.Ack(QUEUE, [lease])
    return deciding.decide(state.record(given.id), command, lease, 0, state.facts).outcome.done


def _total(state: State) -> int:
    """Return how many messages are in the queue; what has ended and is kept is not."""
    states = [record.state for record in state.records if record is not None]
    return sum(name not in ("acked", "expired") for name in states)


OF_EVENTS: tuple[Callable[[State, Event], str | None], ...] = (
    conservation,
    honest_answers,
    no_early_delivery,
    final_cancels,
    closed_groups,
    one_series,
    named_holders,
    acks_count_once,
    true_places,
)
OF_STATES: tuple[Callable[[State], str | None], ...] = (growing_tokens, one_holder, ways_out)
NAMES: tuple[str, ...] = tuple(check.__name__ for check in (*OF_EVENTS, *OF_STATES))


def violation(before: State, event: Event, *, is_new: bool) -> tuple[str, Any] | None:
    """Return the first invariant that an event breaks, and how; `None`: it breaks none."""
    if event.after is before:  # nothing has happened
        return None
    for check in OF_EVENTS:
        problem = check(before, event)
        if problem is not None:
            return check.__name__, problem
    for check_state in OF_STATES if is_new else ():
        problem = check_state(event.after)
        if problem is not None:
            return check_state.__name__, problem
    return None
