"""What is overdue in a queue, and a plan for it."""

from typing import Any

from bide.lane.steps import arun_steps
from bide.model.recovery import Overdue, Recovered, Recovery
from bide.model.undoing import Bulk
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.operation import QUEUE, Routes
from bide.server.routes.queues import Pace
from bide.server.routes.undoing import execute
from bide.undoing.changes import yield_part
from bide.undoing.recovering import looking, recovering

route = Routes("queues")


class RecoverRequest(wire.RequestModel):
    """The plan: what to cancel, and when the others are due."""

    drop_later_than: wire.Span | None = None
    """Cancel messages that are later than this."""
    latest_of_group: bool = False
    """Of each group keep only the message that was planned last; messages without a group stay."""
    spread: wire.Span | None = None
    """Let the others be due evenly over this time from now on."""
    rate: Pace | None = None
    """Let so many of them be due; not together with `spread`."""
    fresh_first: bool = False
    """Give them priority 0, so that fresh messages with a priority go first."""
    dry_run: bool = False
    """Only say what it would do."""


@route("overdue", "GET", f"{QUEUE}/overdue", "read")
async def overdue(call: ApiCall) -> Overdue:
    """Show what is overdue.

    By lateness and group. Reads all messages that are due.
    """
    with call.visit.slowly():
        report = await arun_steps(looking(call.arguments.queue), call.visit.execute)
    report.queue = call.request.queue
    return report


@route("recover", "POST", f"{QUEUE}/recover", "change", problems=(507,))
async def recover(call: ApiCall, content: RecoverRequest) -> Recovered:
    """Carry out a plan for what is overdue.

    Such as after an outage of all workers. Messages keep the time for which they were planned:
    their lateness and `expires` count from it. Messages that repeat are not dropped. With the
    `undo` of the answer it can be undone for ten minutes.

    One request does it all, 500 messages at a time, and reads all that is due four times. If it
    ends early, repeat it: what is left is still overdue.
    """
    plan = Recovery(
        drop_later_than=None
        if content.drop_later_than is None
        else wire.span(content.drop_later_than),
        latest_of_group=content.latest_of_group,
        spread=None if content.spread is None else wire.span(content.spread),
        rate=content.rate,
        fresh_first=content.fresh_first,
    )

    async def ask(command: Any) -> Any:
        if isinstance(command, Bulk):
            return await execute(call, command)
        return await call.visit.execute(command)

    steps = recovering(
        call.arguments.queue, plan, yield_part, actor=call.arguments.actor, dry_run=content.dry_run
    )
    with call.visit.slowly():
        return await arun_steps(steps, ask)
