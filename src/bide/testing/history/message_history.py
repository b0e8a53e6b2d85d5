"""The history of each message: what was tried with it, and who held it, out of all journals."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from bide.testing.history.journal import Event, JournalFile

SETTLING = ("ack", "release", "retry", "bury")
"""The verbs that end a lease."""

RETURNING = ("release", "retry", "bury")
"""The verbs after which the message may be delivered again at once, or never."""


class TriedCall(msgspec.Struct):
    """One call for one message. Times are `at` of its events."""

    process: str
    verb: str
    tried: int
    answered: int | None = None
    """`None`: no answer came, so it was done or was not."""
    done: bool | None = None
    """Whether the store did it; `None`: nobody knows."""
    token: int | None = None
    due: int | None = None
    """When the message is due since, by the store's clock."""
    until: int | None = None
    """Of an extension: when the lease ends."""
    lease: int | None = None
    """Of an extension: how long a lease was asked for, in milliseconds."""

    @property
    def may_be_done(self) -> bool:
        """Whether the store did it, or may have."""
        return self.done is not False


class ClaimedHold(msgspec.Struct):
    """One delivery of one message."""

    process: str
    tried: int
    """When the claim was tried, by the clock of the process."""
    answered: int
    """When the claim returned, by the clock of the process."""
    now: int
    """When it was claimed, by the store's clock."""
    token: int
    until: int
    """When its lease ends for sure, by the store's clock."""
    due: int | None
    attempt: int | None
    altered: bool

    @property
    def lease(self) -> int:
        """The length of the lease, in milliseconds."""
        return self.until - self.now


class MessageHistory:
    """What the journals tell of one message."""

    __slots__ = ("calls", "group", "holds", "id", "is_left")

    def __init__(self, id: str) -> None:
        self.id = id
        self.group: str | None = None
        self.calls: list[TriedCall] = []
        self.holds: list[ClaimedHold] = []
        """In the order of tokens."""
        self.is_left = False
        """Whether it was in the queue at the end."""

    def named(self, *verbs: str) -> list[TriedCall]:
        """Return the calls with one of these verbs."""
        return [call for call in self.calls if call.verb in verbs]

    def of_hold(self, hold: ClaimedHold, *verbs: str) -> list[TriedCall]:
        """Return the calls with the token of a delivery."""
        return [call for call in self.calls if call.token == hold.token and call.verb in verbs]


class Histories:
    """The histories of messages, and what was closed and killed.

    Args:
        journals: one for each process.
        includes: tells for an id whether its history is wanted.
    """

    def __init__(
        self,
        journals: Sequence[Iterable[Event]],
        includes: Callable[[str], bool] = lambda id: True,
    ) -> None:
        self.messages: dict[str, MessageHistory] = {}
        self.killed: set[str] = set()
        """The names of the processes that were killed."""
        self.closed: dict[str, int] = {}
        """When each group was closed for certain, by the clock of the process."""
        self.perhaps_closed: set[str] = set()
        """The groups of which a close was tried."""
        self._includes = includes
        for number, journal in enumerate(journals, 1):
            _JournalReader(self, name_of(journal, number)).read(journal)
        for message in self.messages.values():
            message.holds.sort(key=lambda hold: hold.token)
            for hold in message.holds:
                hold.until = _surely_until(message, hold)

    def wanted(self, ids: Iterable[str]) -> list[MessageHistory]:
        """Return the histories of those ids that are wanted."""
        return [self.of(id) for id in ids if self._includes(id)]

    def of(self, id: str) -> MessageHistory:
        """Return the history of a message."""
        history = self.messages.get(id)
        if history is None:
            history = self.messages[id] = MessageHistory(id)
        return history


def name_of(journal: Iterable[Event], number: int) -> str:
    """Return the name of a process: that of its file, or else its number."""
    return journal.name if isinstance(journal, JournalFile) else f"process {number}"


def _surely_until(message: MessageHistory, hold: ClaimedHold) -> int:
    """Return until when a lease lasts at least, by the store's clock.

    An extension sets the lease anew, so it may also end it sooner. Whether it was done nobody knows
    if its process did not live to hear the answer.
    """
    until = hold.until
    for call in message.of_hold(hold, "extend"):
        if call.until is not None:
            until = call.until
        elif call.may_be_done and call.lease is not None:
            until = min(until, call.tried + call.lease)
    return until


class _JournalReader:
    """Reads one journal into the histories."""

    def __init__(self, histories: Histories, process: str) -> None:
        self._histories = histories
        self._process = process
        self._open: dict[Attempt, list[tuple[str, TriedCall]]] = {}
        """The calls of each attempt, with the ids of their messages, until they are answered."""
        self._claim_tried: int | None = None

    def read(self, journal: Iterable[Event]) -> None:
        """Read all events."""
        for event in journal:
            if (verb := event.get("tries")) is not None:
                self._tried(verb, event)
            elif (verb := event.get("did")) is not None:
                self._did(verb, event)
            elif (verb := event.get("unknown")) is not None:
                self._open.pop(_attempt(verb, event), None)

    def _tried(self, verb: str, event: Event) -> None:
        if verb == "claim":
            self._claim_tried = event["at"]
        elif verb == "close":
            self._histories.perhaps_closed.add(event["group"])
        else:
            self._open[_attempt(verb, event)] = self._calls(verb, event)

    def _calls(self, verb: str, event: Event) -> list[tuple[str, TriedCall]]:
        """Begin a call for each message of an event."""
        calls = []
        for message in self._histories.wanted(_ids(event)):
            call = TriedCall(
                self._process,
                verb,
                event["at"],
                token=event.get("token"),
                lease=event.get("lease"),
            )
            message.calls.append(call)
            if event.get("group") is not None:
                message.group = event["group"]
            calls.append((message.id, call))
        return calls

    def _did(self, verb: str, event: Event) -> None:
        match verb:
            case "start":
                self._process = event.get("name", self._process)
            case "kill":
                self._histories.killed.add(event["name"])
            case "close":
                closed, group = self._histories.closed, event["group"]
                closed[group] = min(event["at"], closed.get(group, event["at"]))
                self._histories.perhaps_closed.add(group)
            case "left":
                for message in self._histories.wanted(event["ids"]):
                    message.is_left = True
            case "claim":
                self._claimed(event)
            case _ if "id" in event or "ids" in event:
                self._answered(verb, event)

    def _claimed(self, event: Event) -> None:
        tried = event["at"] if self._claim_tried is None else self._claim_tried
        self._claim_tried = None
        facts = {facts["id"]: facts for facts in event["messages"]}
        for message in self._histories.wanted(facts):
            fact: dict[str, Any] = facts[message.id]
            hold = ClaimedHold(
                process=self._process,
                tried=tried,
                answered=event["at"],
                now=event["now"],
                token=event["token"],
                until=fact["until"],
                due=fact.get("due"),
                attempt=fact.get("attempt"),
                altered=fact.get("altered", False),
            )
            message.holds.append(hold)

    def _answered(self, verb: str, event: Event) -> None:
        """Give the calls of an attempt their answers."""
        ids = _ids(event)
        dues = dict(zip(ids, event.get("dues", ()), strict=False))
        calls = self._open.pop(_attempt(verb, event), None)
        if calls is None:
            calls = self._calls(verb, event)
        stored = set(ids)
        for id, call in calls:
            call.answered = event["at"]
            call.done = event.get("done", True) if id in stored else False
            call.due = dues.get(id, event.get("due"))
            call.until = event.get("until")


Attempt = tuple[str, str | None, int | None]
"""A verb, and the message and the token if it is about one: the answer has the same."""


def _attempt(verb: str, event: Event) -> Attempt:
    """Return which attempt an event belongs to. A process puts one batch after the other."""
    return verb, event.get("id"), event.get("token")


def _ids(event: Event) -> Sequence[str]:
    """Return the messages that an event is about."""
    ids: Sequence[str] = event["ids"] if "ids" in event else [event["id"]]
    return ids
