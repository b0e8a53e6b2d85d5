"""Looking at what is overdue, and carrying out a plan for it, in changes that can be taken back."""

from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from bide.lane.steps import Steps, following
from bide.model.commands import Count, Explain, Scan
from bide.model.identity import new_id
from bide.model.limits import MAX_BYTES
from bide.model.message import Message
from bide.model.recovery import Move, Overdue, Places, Recovered, Recovery, Survey
from bide.model.replies import Counts, Explained, Page
from bide.model.undoing import PART, Bulk, Part
from bide.undoing.changes import Execute

Advance = Callable[[int], object]
"""Is called with how many messages were read since the last call."""


def _ignore(count: int) -> None:
    """Report no progress."""


class _Ready:
    """Reads the messages of a queue that are due, in the order of delivery, each once.

    A claim between two pages moves messages from the due ones to the ready ones, which a scan reads
    first. So a second scan follows, and finds there what the first one has missed. No message is
    missed that is due, and held by no worker, throughout. The ids of all are kept in memory.
    """

    def __init__(self, queue: str) -> None:
        # Half of what a reply may have: a change reads them again, and notes them.
        self._scans = [Scan(queue, "ready", limit=PART, max_bytes=MAX_BYTES // 2)] * 2
        """What is still to be read."""
        self._seen: set[str] = set()

    @property
    def has_more(self) -> bool:
        """Whether there is another page."""
        return bool(self._scans)

    def page(self) -> Steps[list[Message]]:
        """Read a page; return its messages that no page before had."""
        scan, *others = self._scans
        page: Page = yield scan
        rest = following(scan, page)
        self._scans = others if rest is None else [rest, *others]
        messages = [message for message in page.messages if message.id not in self._seen]
        self._seen.update(message.id for message in messages)
        return messages


def surveying(
    queue: str, plan: Recovery | None = None, advance: Advance = _ignore
) -> Steps[Survey]:
    """Read all messages of a queue that are overdue, twice: see `_Ready`.

    Args:
        queue: its name.
        plan: the plan that is to be carried out; `None`: none.
        advance: is told of progress.
    """
    explained: Explained = yield Explain(queue)
    survey = Survey(queue, plan, explained.now)
    ready = _Ready(queue)
    while ready.has_more:
        messages = yield from ready.page()
        for message in messages:
            survey.see(message)
        advance(len(messages))
    return survey


def looking(queue: str, advance: Advance = _ignore) -> Steps[Overdue]:
    """Return what is overdue in a queue."""
    survey = yield from surveying(queue, advance=advance)
    counts: Counts = yield Count(queue)
    return survey.counted(counts.overdue)


def recovering(
    queue: str,
    plan: Recovery,
    execute: Execute,
    *,
    actor: str | None = None,
    dry_run: bool = False,
    advance: Advance = _ignore,
    undo: str | None = None,
) -> Generator[Any, Any, Recovered]:
    """Carry out a plan, or with `dry_run` say what it would do.

    A message that has changed since it was read stays as it is. If this ends early, what is left is
    still overdue, and a later recovery goes on with it.

    Args:
        queue: the name of the queue.
        plan: the plan.
        execute: executes each part of a change.
        actor: who changes the messages.
        dry_run: whether nothing is changed.
        advance: is told of progress.
        undo: the token by which it can be taken back; by default a new one.

    Raises:
        Exception: what `execute` raises, with a note about what was changed before.
    """
    survey = yield from surveying(queue, plan, advance)
    places, result, token = Places(survey), Recovered(), undo or new_id()
    ready, part = _Ready(queue), 0
    try:
        while ready.has_more:
            messages = yield from ready.page()
            if messages and not dry_run:
                explained: Explained = yield Explain(queue)
                places.estimate_end(explained.now)
            moves = [places.move(message) for message in messages]
            unchanged: set[str] = set()
            for bulk in () if dry_run else _bulks(queue, token, moves, actor):
                result.undo = token
                reply: Part = yield from execute(msgspec.structs.replace(bulk, part=part))
                part = reply.part
                unchanged |= set(reply.unchanged)
            for move in moves:
                result.count(move, changed=move.message.id in unchanged)
            advance(len(messages))
    except BaseException as error:
        if result.undo:
            error.add_note(f"What was changed before can be taken back: undo({token!r})")
        raise
    return result


def _bulks(queue: str, undo: str, moves: list[Move], actor: str | None) -> list[Bulk]:
    """Return the bulk changes that carry out a plan for the messages of a page.

    Those to be due later are postponed, in one change for each priority; those to be dropped are
    cancelled.
    """
    cancelled = [move.message for move in moves if move.fate in ("dropped", "superseded")]
    by_priority: defaultdict[int | None, list[Move]] = defaultdict(list)
    for move in moves:
        if move.moves:
            stays = move.priority == move.message.priority
            by_priority[None if stays else move.priority].append(move)
    bulks = [
        Bulk(
            queue=queue,
            undo=undo,
            actor=actor,
            verb="postpone",
            ids=[move.message.id for move in changed],
            dues=[move.due for move in changed],
            if_dues=[move.message.due for move in changed],
            priority=priority,
        )
        for priority, changed in by_priority.items()
    ]
    if cancelled:
        bulks.append(
            Bulk(queue=queue, undo=undo, actor=actor, verb="cancel", **_as_seen(cancelled))
        )
    return bulks


def _as_seen(messages: list[Message]) -> dict[str, Any]:
    """Return the fields of a change that leaves messages alone which are due at other times now."""
    return {
        "ids": [message.id for message in messages],
        "if_dues": [message.due for message in messages],
    }
