"""Bulk changes that can be taken back: made of commands here, next to the store."""

from bide.lane.steps import arun_steps
from bide.model.commands import Command, Put, Reschedule
from bide.model.message import Item
from bide.model.replies import Reply
from bide.model.undoing import Bulk, Part, Undo, Undone, Verb, is_records
from bide.queue.undoing.back import undo_steps
from bide.queue.undoing.change import bulk_steps
from bide.server.rights import RIGHT_OF_VERB, Caller
from bide.server.service import Service

__all__ = ["execute"]


async def execute(service: Service, caller: Caller, command: Bulk | Undo) -> Part | Undone:
    """Execute a command that no store executes itself.

    What it puts back counts as a put: it needs room within the quotas.

    Raises:
        AccessDenied: the caller may not do, or take back, such a change.
        Problem: it is beyond a quota.
    """

    async def ask(step: Command) -> Reply:
        if service.quotas.any:
            now = service.clock.now()
            if isinstance(step, Put) and not is_records(step.queue):
                there = step.on_conflict == "replace"
                await service.quotas.admit(caller, {step.queue}, step.items, now, there=there)
            elif isinstance(step, Reschedule):
                service.quotas.bound(caller, [Item("", b"", at=step.at, delay=step.delay)], now)
        return await service.execute(step)

    def allow(verb: Verb) -> None:
        caller.need(RIGHT_OF_VERB[verb])

    if isinstance(command, Bulk):
        allow(command.verb)
        return await arun_steps(bulk_steps(command), ask)
    return await arun_steps(undo_steps(command, allow), ask)
