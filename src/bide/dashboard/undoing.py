"""Changes of messages that can be taken back, which is how the dashboard makes them."""

from collections.abc import Sequence
from typing import Any, cast

from bide.dashboard.view import Refused, View
from bide.lane.steps import arun_steps
from bide.model.commands import Cancel, Command, Find, Put, Scan, Where
from bide.model.identity import check_name
from bide.model.message import Message
from bide.model.replies import Affected, Found, Outcome, Page, Reply
from bide.model.undoing import Bulk, Undo, Undone, Verb, is_records
from bide.queue.undoing import steps_of, whole, whole_undo

BULK = 10_000
"""How many messages one action changes at most, in whole parts."""

SHOWN = 10
"""How many messages a preview shows."""

READ_BYTES = 1 << 20


def rule_of(view: View) -> Where | None:
    """Return which messages a form is about: a group, a range of due times; `None` if it names ids.

    Raises:
        Refused: it names neither.
    """
    request = view.request
    if request.get("by") != "rule":
        return None
    group = request.get("group")
    where = Where(
        check_name(group, "group") if group else None, request.moment("after"),
        request.moment("before"),
    )  # fmt: skip
    if where == Where():
        raise Refused(400, "nothing-chosen")
    return where


async def count_of(view: View, where: Where) -> int:
    """Return how many messages match that no worker holds."""
    command = Cancel(view.queue(), where=where, dry_run=True)
    return (await view.store.ask(Affected, command)).count


async def first_of(view: View, ids: Sequence[str], where: Where | None) -> list[Message]:
    """Return the first messages that a change is about."""
    full = view.queue()
    if where is None:
        wanted = Find(full, list(ids[:SHOWN]), max_bytes=READ_BYTES)
        found = (await view.store.ask(Found, wanted)).messages
        return [message for message in found if message is not None]
    scan = Scan(full, None, where, limit=SHOWN, max_bytes=READ_BYTES)
    page = await view.store.ask(Page, scan)
    return [message for message in page.messages if message.state in ("delayed", "ready")]


async def change(view: View, bulk: Bulk) -> tuple[int, list[Outcome]]:
    """Make a change, up to `BULK` messages.

    Returns:
        How many were changed; and where the messages are that it names and could not change.
    """
    count, unchanged, parts = 0, list[str](), whole(bulk)
    part = next(parts)
    while True:
        reply = await _execute(view, part)
        count += reply.count
        unchanged += reply.unchanged
        if count >= BULK:
            break
        try:
            part = parts.send(reply)
        except StopIteration:
            break
    return count, await _places(view, bulk.queue, unchanged)


async def take_back(view: View, actor: str) -> Undone:
    """Take back the change that a form names.

    Raises:
        NothingToUndo: there is no such change, or it is too old.
        Refused: the visitor may not make such a change.
    """
    steps = whole_undo(view.queue(), view.request.get("undo"), actor)
    return await arun_steps(steps, lambda part: _execute(view, part))


async def _execute(view: View, command: Bulk | Undo) -> Any:
    def allow(verb: Verb) -> None:
        if not view.may(verb):
            raise Refused(403, "not-allowed", verb)

    takes_back = view.store.lane.capabilities.takes_back
    if takes_back and isinstance(command, Undo):  # the server decides by the token
        allow(cast("Verb", view.request.get("verb")))

    async def ask(step: Command) -> Reply:
        if isinstance(step, Put) and step.on_conflict == "keep" and not is_records(step.queue):
            for item in step.items:
                await view.admit(step.queue, item)
        return await view.store.lane.acall(step, view.store)

    return await arun_steps(steps_of(command, takes_back=takes_back, allow=allow), ask)


async def _places(view: View, queue: str, ids: list[str]) -> list[Outcome]:
    """Return where messages are."""
    found: list[Outcome] = []
    while left := ids[len(found) :]:
        wanted = Find(queue, left[:BULK], max_bytes=READ_BYTES)
        messages = (await view.store.ask(Found, wanted)).messages
        found += [
            Outcome(id, False) if one is None
            else Outcome(id, False, one.state, one.due, one.until or one.ended, one.holder)
            for id, one in zip(left, messages, strict=False)
        ]  # fmt: skip
    return found
