"""All that a store tells of what is in it, as JSON has it."""

from typing import Any

import msgspec

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Command, Count, Explain, History, Queues, Scan
from bide.model.message import STATES
from bide.model.replies import Counts, Ends, Names, Page

__all__ = ["Told", "missing", "read"]

Told = dict[str, Any]
"""By queue: `counts`, `messages` by state, `ends` by id, `reasons` by id."""


def read(url: str, clock: Clock, ids: dict[str, list[str]]) -> Told:
    """Return what a store tells; `ids` are of messages that have ended, by queue."""
    lane = open_lane(url, clock)
    try:
        names = {*_ask(lane, Names, Queues("")).names, *_ask(lane, Names, Queues("bide:")).names}
        return {name: _queue(lane, name, ids.get(name, ())) for name in sorted(names)}
    finally:
        close_lane(lane)


def missing(wanted: Any, found: Any, at: str = "") -> list[str]:
    """Return what is not as it was; a newer version may tell more."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        lost = [f"{at}.{key} is gone" for key in wanted if key not in found]
        both = [key for key in wanted if key in found]
        return lost + [
            one for key in both for one in missing(wanted[key], found[key], f"{at}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [one for n, (was, now) in pairs for one in missing(was, now, f"{at}[{n}]")]
    return [] if wanted == found else [f"{at} was {wanted!r} and is {found!r}"]


def _queue(lane: Lane, name: str, ids: Any) -> Told:
    messages = {state: _messages(lane, name, state) for state in STATES}
    told = [one for found in messages.values() for one in found]
    asked = {*ids, *(one["id"] for one in told)}
    ends = {id: _ask(lane, Ends, History(name, id)).ends for id in sorted(asked)}
    return {
        "counts": _plain(_ask(lane, Counts, Count(name))),
        "messages": messages,
        "ends": {id: _plain(found) for id, found in ends.items() if found},
        "reasons": {one["id"]: _plain(lane.call(Explain(name, one["id"]))) for one in told},
    }


def _messages(lane: Lane, name: str, state: Any) -> list[Told]:
    found: list[Told] = []
    command = Scan(name, state)
    while True:
        page = _ask(lane, Page, command)
        found += _plain(page.messages)
        if page.cursor is None:
            return found
        command = msgspec.structs.replace(command, cursor=page.cursor)


def _ask(lane: Lane, kind: Any, command: Command) -> Any:
    reply = lane.call(command)
    assert isinstance(reply, kind), reply
    return reply


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
