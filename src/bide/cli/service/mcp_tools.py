"""What the tools of `bide mcp` do. Their answers are bounded: an agent reads all of them."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

import click
import msgspec

from bide.cli.bulk import waiting
from bide.cli.message_output import as_json
from bide.cli.queue_output import facts_of
from bide.cli.store import CommandStore
from bide.cli.times import iso, read_due, read_duration, read_moment
from bide.model.commands import Count
from bide.model.errors import BideError, InvalidArgument
from bide.model.identity import actor_of
from bide.model.message import Message
from bide.model.replies import Counts, Outcome
from bide.model.undoing import Undoable
from bide.queue.arguments import user_name
from bide.queue.steps import is_movable
from bide.queue.sync import Queue
from bide.server.logs import DONE, Act, ActionLog

MOST_QUEUES = 200
"""How many queues one answer lists."""

MOST_MESSAGES = 100
"""How many messages one answer lists, and how many ids one change takes."""

MOST_BODY = 2_000
"""How many bytes of a body are shown, as JSON."""

MOST_HEADERS = 2_000
"""How many bytes of the headers of a message are shown, names and values."""

MOST_REASON = 500
"""How many characters of the reason of a failure are shown."""

PREVIEWED = 5
"""How many messages a preview shows."""

TIMES = ("due", "until", "ended", "planned", "created", "successor")
"""The fields of a message that are times."""

HIDDEN = ("body", "bytes", "headers", "version")
"""The fields that are left out where bodies are not shown: a version is made of the body, too."""

State = Literal["delayed", "ready", "leased", "dead", "acked", "expired"]
"""The state of a message. As a type of its own: a schema for agents is made of it."""


class AgentTools:
    """The tools, on one store. Calls in several threads wait for each other.

    Args:
        store: is looked at and changed.
        log: gets a line for each call.
        shows_bodies: whether bodies and headers are shown.
    """

    def __init__(self, store: CommandStore, log: ActionLog, *, shows_bodies: bool = True) -> None:
        self._store = store
        self._log = log
        self._shows_bodies = shows_bodies
        self._queues: dict[str, Queue] = {}
        """The open queues, by name."""
        self._turn = threading.Lock()

    def act_for(self, program: str) -> None:
        """Note the program of the agent; with the user, it is the actor of all changes."""
        actor = actor_of(program or "mcp", through=user_name())
        with self._turn:
            if actor != self._store.actor:
                self._store.actor = actor
                self._queues.clear()  # they have the actor of before

    def look(
        self,
        queue: str | None = None,
        id: str | None = None,
        state: State | None = None,
        group: str | None = None,
        after: str | None = None,
        before: str | None = None,
        limit: int = 20,
    ) -> dict[str, Any]:
        """List the queues, the messages of a queue, or one message."""
        with self._logged("look", queue, id) as note:
            if queue is None:
                names = self._store.names()
                return {
                    "queues": [self._queue_facts(name) for name in names[:MOST_QUEUES]],
                    "more_queues": max(0, len(names) - MOST_QUEUES),
                }
            opened = self._existing(queue)
            if id is not None:
                message = opened.get(id)
                return {"message": None if message is None else self._shown(message)}
            if not 1 <= limit <= MOST_MESSAGES:
                raise InvalidArgument(f"limit={limit} must be between 1 and {MOST_MESSAGES}")
            rule = _rule(group, after, before)
            messages = list(islice(opened.scan(state, **rule), limit + 1))
            note(len(messages[:limit]))
            return {
                **self._queue_facts(queue),
                "messages": [self._shown(message) for message in messages[:limit]],
                "has_more": len(messages) > limit,
            }

    def explain(self, queue: str, id: str) -> dict[str, Any]:
        """Tell why a message is where it is."""
        with self._logged("explain", queue, id):
            explanation = self._existing(queue).explain(id)
            return {
                "state": explanation.state,
                "reasons": list(explanation.reasons),
                "sentence": explanation.sentence,
            }

    def preview(
        self,
        queue: str,
        change: Literal["cancel", "reschedule"],
        group: str | None = None,
        after: str | None = None,
        before: str | None = None,
    ) -> dict[str, Any]:
        """Count what a change would change, and show the first messages; change nothing."""
        with self._logged("preview", queue) as note:
            opened, rule = self._existing(queue), _checked_rule(group, after, before)
            count: int
            if change == "cancel":
                count = opened.cancel(**rule, dry_run=True)
                changed = waiting(opened, rule)
            else:
                _must_have_group(group)
                count = opened.reschedule(**rule, delay=0, dry_run=True)
                changed = filter(is_movable, opened.scan(**rule))
            note(count)
            messages = list(islice(changed, PREVIEWED))
            return {
                "would_change": int(count),
                "change": change,
                "first_messages": [self._shown(message) for message in messages],
            }

    def cancel(
        self,
        queue: str,
        ids: Sequence[str] = (),
        group: str | None = None,
        after: str | None = None,
        before: str | None = None,
    ) -> dict[str, Any]:
        """Cancel messages by their ids, or those that a rule selects."""
        with self._logged("cancel", queue, *ids) as note:
            opened = self._opened(queue)
            if _by_ids(ids, group, after, before):
                return self._changed(queue, opened.cancel_many(list(ids)), note)
            rule = _checked_rule(group, after, before)
            return self._undoable(queue, opened.cancel(**rule, undo=True), note)

    def reschedule(
        self,
        queue: str,
        ids: Sequence[str] = (),
        group: str | None = None,
        after: str | None = None,
        before: str | None = None,
        delay: str | None = None,
        at: str | None = None,
    ) -> dict[str, Any]:
        """Change when messages are due, by their ids or those that a rule selects."""
        with self._logged("reschedule", queue, *ids) as note:
            opened = self._opened(queue)
            if (delay is None) == (at is None):
                raise InvalidArgument("reschedule needs one new due time: delay or at")
            time: dict[str, Any] = (
                {"at": read_due(str(at))}
                if delay is None
                else {"delay": read_duration(delay, "delay")}
            )
            if _by_ids(ids, group, after, before):
                outcomes = [opened.reschedule(id, **time) for id in ids]
                return self._changed(queue, outcomes, note)
            _must_have_group(group)
            rule = _checked_rule(group, after, before)
            return self._undoable(queue, opened.reschedule(**time, **rule, undo=True), note)

    def undo(self, queue: str, token: str) -> dict[str, Any]:
        """Take back a change by a rule, up to ten minutes ago."""
        with self._logged("undo", queue) as note:
            undone = self._opened(queue).undo(token)
            note(undone.restored)
            facts = msgspec.structs.asdict(undone)
            del facts["following"]
            return facts

    @contextmanager
    def _logged(
        self, act: str, queue: str | None, *ids: str | None
    ) -> Iterator[Callable[[int], None]]:
        """Do something in its turn, and log it; yields what notes the number of messages.

        Raises:
            BideError: it failed; also in place of what commands raise about their arguments.
        """
        counts: list[int] = []
        outcome = DONE
        target = ids[0] if len(ids) == 1 else None
        with self._turn:
            try:
                yield lambda count: counts.append(int(count))
            except click.ClickException as error:
                outcome = "InvalidArgument"
                raise InvalidArgument(error.message) from None
            except BideError as error:
                outcome = type(error).__name__
                raise
            except BaseException:
                outcome = "failed"
                raise
            finally:
                self._log.write(
                    [Act(act, queue, counts[-1] if counts else None, outcome, target)],
                    who=self._store.actor,
                    token="",
                    client=f"mcp@{socket.gethostname()}",
                    namespace=None,
                )

    def _existing(self, name: str) -> Queue:
        """Return a queue that exists."""
        if not self._store.has(name):
            raise self._store.no_queue(name)
        return self._opened(name)

    def _opened(self, name: str) -> Queue:
        """Return a queue, each time the same. A token may be allowed to change one unseen."""
        if name not in self._queues:
            self._queues[name] = self._store.queue(name)
        return self._queues[name]

    def _changed(
        self, queue: str, outcomes: Sequence[Outcome], note: Callable[[int], None]
    ) -> dict[str, Any]:
        """Return what became of messages that were named by their ids."""
        changed = [outcome for outcome in outcomes if outcome.done]
        note(len(changed))
        if not changed:
            self._store.must_have(queue)
        return {"changed": len(changed), "outcomes": [str(outcome) for outcome in outcomes]}

    def _undoable(
        self, queue: str, undoable: Undoable, note: Callable[[int], None]
    ) -> dict[str, Any]:
        """Return how many messages a rule has changed, and how to take that back."""
        note(undoable)
        if not undoable:
            self._store.must_have(queue)
        return {"changed": int(undoable), "undo": undoable.undo}

    def _queue_facts(self, name: str) -> dict[str, Any]:
        """Return what is shown of a queue."""
        return {"queue": name, **facts_of(self._store.ask(Counts, Count(name)))}

    def _shown(self, message: Message) -> dict[str, Any]:
        """Return a message as an agent reads it."""
        facts: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(as_json(message)))
        facts |= {name: iso(facts[name]) for name in TIMES if name in facts}
        if facts.pop("failures", None) is not None:
            facts["last_error"] = (message.error or "")[:MOST_REASON]
        if not self._shows_bodies:
            for name in HIDDEN:
                facts.pop(name, None)
            return facts
        if len(message.data) > MOST_BODY:
            name = "body" if message.json else "bytes"
            facts[name] = message.data[:MOST_BODY].decode(errors="replace")
            facts["body_bytes_left_out"] = len(message.data) - MOST_BODY
        headers = message.headers or {}
        shown_headers = _first_headers(headers)
        if len(shown_headers) < len(headers):
            facts["headers"] = shown_headers
            facts["headers_left_out"] = len(headers) - len(shown_headers)
        return facts


def _first_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return those headers that are shown: whole ones, for which there is room."""
    shown: dict[str, str] = {}
    room = MOST_HEADERS
    for name, value in headers.items():
        size = len(name.encode()) + len(value.encode())
        if size <= room:
            shown[name] = value
            room -= size
    return shown


def _rule(group: str | None, after: str | None, before: str | None) -> dict[str, Any]:
    """Return which messages are meant, as `Queue.scan` takes it."""
    return {
        "group": group,
        "after": None if after is None else read_moment(after, "after"),
        "before": None if before is None else read_moment(before, "before"),
    }


def _checked_rule(group: str | None, after: str | None, before: str | None) -> dict[str, Any]:
    """Return which messages are to be changed; without any condition, all would be.

    Raises:
        InvalidArgument: there is none.
    """
    if group is None and after is None and before is None:
        raise InvalidArgument("name the messages: by a group, or due times after and before")
    return _rule(group, after, before)


def _must_have_group(group: str | None) -> None:
    """Refuse a reschedule by a rule that names no group.

    Raises:
        InvalidArgument: there is none.
    """
    if group is None:
        raise InvalidArgument("without ids, reschedule needs a group")


def _by_ids(ids: Sequence[str], *rule: str | None) -> bool:
    """Return whether messages are named by their ids, and not by a rule.

    Raises:
        InvalidArgument: both are given, or too many ids.
    """
    if ids and any(condition is not None for condition in rule):
        raise InvalidArgument("give ids, or a group, after and before; not both")
    if len(ids) > MOST_MESSAGES:
        raise InvalidArgument(f"{len(ids)} ids are too many; give {MOST_MESSAGES} at most")
    return bool(ids)
