"""Bulk changes that can be taken back, and taking them back."""

from bide.lane.steps import arun_steps
from bide.model.commands import Command, Put
from bide.model.replies import Reply
from bide.model.undoing import Bulk, Part, Undo, Undone, Verb, is_records
from bide.queue.undo_steps import is_token, nothing
from bide.queue.undoing import steps_of
from bide.server.call import Call
from bide.server.change_wire import UndoableOut, UndoneOut, UndoRequest, cursor_of, from_cursor
from bide.server.operation import QUEUE, Routes
from bide.server.rights import RIGHT_OF_VERB, Caller
from bide.server.service import Service

route = Routes("messages")

PARTS = 20
"""How many parts of a change one request takes back."""


async def execute(service: Service, caller: Caller, command: Bulk | Undo) -> Part | Undone:
    """Execute a command that no store executes itself.

    What it puts back counts as a put: it needs room within the quotas.

    Raises:
        AccessDenied: the caller may not do, or take back, such a change.
        Problem: it is beyond a quota.
    """

    async def ask(step: Command) -> Reply:
        if not is_records(step.queue):
            there = isinstance(step, Put) and step.on_conflict == "replace"
            await service.quotas.admit(caller, [step], there=there)
        return await service.execute(step)

    def allow(verb: Verb) -> None:
        caller.need(RIGHT_OF_VERB[verb])

    if isinstance(command, Bulk):
        allow(command.verb)
    done: Part | Undone = await arun_steps(steps_of(command, takes_back=False, allow=allow), ask)
    return done


async def change(call: Call, bulk: Bulk, cursor: str | None) -> UndoableOut:
    """Make a part of a change that can be taken back: the first, or that after a cursor."""
    bulk = from_cursor(bulk, cursor)
    part = await execute(call.service, call.caller, bulk)
    assert isinstance(part, Part)
    following = cursor_of(bulk, part)
    return UndoableOut(
        count=part.count, more=part.cursor is not None, undo=bulk.undo, cursor=following
    )


@route("undo", "POST", f"{QUEUE}/undo", "", problems=(404, 429, 507))
async def undo(call: Call, asked: UndoRequest) -> UndoneOut:
    """Take back a bulk change.

    One that was made with `undo`, up to ten minutes ago. Needs the right that the change
    needed. What is put back counts as put; ids that were put again since, and messages that
    were claimed since, are counted and stay as they are. Up to 10,000 messages; repeat with
    `part` while `following` is there.
    """
    part = Undo(
        queue=call.arguments.queue, undo=asked.undo, part=asked.part, actor=call.arguments.actor
    )
    if not is_token(asked.undo):
        raise nothing(part)
    total = Undone(following=asked.part)
    for _ in range(PARTS):
        if total.following is None:
            break
        command = Undo(queue=part.queue, undo=part.undo, part=total.following, actor=part.actor)
        done = await execute(call.service, call.caller, command)
        assert isinstance(done, Undone)
        total = total.plus(done)
    answer = UndoneOut(total.restored, total.taken, total.claimed, total.unknown, total.again)
    if total.following is not None:
        answer.following = total.following
    return answer
