"""Holds the journals of all processes, and the counters of the store, against bide's promises."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from bide import Counts
from tests.system.faults.journal import Event

__all__ = ["check", "check_counts"]


class Hold(NamedTuple):
    """One claim of one message, by the store's clock."""

    now: int
    token: int
    until: int


def check(journals: Iterable[Iterable[Event]]) -> list[str]:
    """Return what breaks a promise, in words. The queue must have been drained at the end."""
    events = [event for journal in journals for event in journal]
    return [
        *_undelivered(events),
        *_held_by_two(events),
        *_settled_twice(events),
        *_after_the_end(events),
        *_after_the_close(events),
    ]


def _named(events: Iterable[Event], kind: str, verb: str) -> Iterator[Event]:
    return (event for event in events if event.get(kind) == verb)


def _holds(events: list[Event]) -> dict[str, list[Hold]]:
    """Return all claims of each message in the order of tokens, each with its lease for sure.

    A claim that waits for a lock has read the clock before: what it gets may be released later.

    An extension sets the lease anew, so it may also end it sooner. Whether it happened nobody knows
    when the process that tried it did not live to hear the answer.
    """
    extended = {
        (event["id"], event["token"]): event["until"] for event in _named(events, "did", "extend")
    }
    perhaps = {
        (event["id"], event["token"]): event["at"] + event["lease"]
        for event in _named(events, "tries", "extend")
    }
    holds: dict[str, list[Hold]] = defaultdict(list)
    for event in _named(events, "did", "claim"):
        for id, until in event["messages"]:
            claim = id, event["token"]
            until = extended.get(claim, min(until, perhaps.get(claim, until)))
            holds[id].append(Hold(event["now"], event["token"], until))
    return {id: sorted(found, key=lambda hold: hold.token) for id, found in holds.items()}


def _undelivered(events: list[Event]) -> Iterator[str]:
    delivered = _holds(events).keys()
    cancelled = {event["id"] for event in _named(events, "tries", "cancel")}
    cancelled |= _in_closed_groups(events)
    for event in _named(events, "did", "put"):
        for id in event["ids"]:
            if id not in delivered and id not in cancelled:
                yield f"{id} was confirmed and never delivered"


def _held_by_two(events: list[Event]) -> Iterator[str]:
    given_back = {(event["id"], event["token"]) for event in _named(events, "tries", "release")}
    for id, holds in _holds(events).items():
        for first, second in pairwise(holds):
            if second.now < first.until and (id, first.token) not in given_back:
                yield f"{id} was claimed at {second.now}, but leased until {first.until}"
            if second.token <= first.token:
                yield f"{id} was claimed with token {second.token} after {first.token}"


def _settled_twice(events: list[Event]) -> Iterator[str]:
    acked = Counter(event["id"] for event in _named(events, "did", "ack") if event["done"])
    for id, count in acked.items():
        if count > 1:
            yield f"{id} was acked {count} times"


def _after_the_end(events: list[Event]) -> Iterator[str]:
    ended: dict[str, tuple[str, int]] = {}
    for verb in ("ack", "cancel"):
        for event in _named(events, "did", verb):
            if event["done"]:
                ended[event["id"]] = verb, event["at"]
    for id, holds in _holds(events).items():
        if id in ended and holds[-1].now > ended[id][1]:
            verb, moment = ended[id]
            yield f"{id} was delivered at {holds[-1].now}, after its {verb} at {moment}"


def _in_closed_groups(events: list[Event]) -> set[str]:
    """Return the messages that were perhaps put into a group which was perhaps closed."""
    closed = {event["group"] for event in _named(events, "tries", "close")}
    puts = _named(events, "tries", "put")
    return {id for event in puts if event.get("group") in closed for id in event["ids"]}


def _after_the_close(events: list[Event]) -> Iterator[str]:
    closed: dict[str, int] = {}
    for event in _named(events, "did", "close"):
        closed[event["group"]] = min(event["at"], closed.get(event["group"], event["at"]))
    puts = _named(events, "tries", "put")
    groups = {id: event["group"] for event in puts if event.get("group") for id in event["ids"]}
    for id, holds in _holds(events).items():
        moment = closed.get(groups.get(id, ""))
        if moment is not None and holds[-1].now > moment:
            yield f"{id} was delivered at {holds[-1].now}, after its group was closed at {moment}"


def check_counts(journals: Iterable[Iterable[Event]], counts: Counts) -> list[str]:
    """Return where the store's counters cannot be what the journals tell."""
    events = [event for journal in journals for event in journal]
    told: dict[str, tuple[int, int, int]] = {
        "put": (_size(events, "did", "put"), counts.flow.put, _size(events, "tries", "put")),
        "acked": (_size(events, "did", "ack"), counts.flow.acked, _size(events, "tries", "ack")),
        "cancelled": (
            _size(events, "did", "cancel"),
            counts.flow.cancelled,
            _size(events, "tries", "cancel") + len(_in_closed_groups(events)),
        ),
    }
    problems = [
        f"{counted} were {name}: {least} confirmed, {most} tried"
        for name, (least, counted, most) in told.items()
        if not least <= counted <= most
    ]
    if counts.sizes.total:
        problems.append(f"{counts.sizes.total} are left after the end")
    return problems


def _size(events: list[Event], kind: str, verb: str) -> int:
    def size(event: Any) -> int:
        if verb == "put":
            return len(event["ids"])
        return 1 if kind == "tries" else int(event["done"])

    return sum(size(event) for event in _named(events, kind, verb))
