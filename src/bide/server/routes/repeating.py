"""Messages that repeat: hold, resume and run them, and put past runs."""

from bide.lane.steps import Steps
from bide.model.message import Item
from bide.model.replies import Outcome, Outcomes, expect
from bide.model.times import unix
from bide.queue.repeating import (
    check_repeats,
    holding,
    putting_runs,
    resuming,
    running_now,
    runs_between,
)
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.operation import MESSAGE, Answer, Routes
from bide.server.problem import Problem, naming_server
from bide.server.routes.given import changed

route = Routes("messages that repeat")


class BackfillRequest(wire.RequestModel):
    """The span of the runs to put."""

    after: wire.When
    """From this time on."""
    before: wire.When
    """Up to this time; a run at this time is not put."""


@route("hold", "POST", f"{MESSAGE}/hold", "change", {200: Outcome}, problems=(404, 409))
async def hold(call: ApiCall, content: wire.EmptyRequest) -> Answer:
    """Hold a message that repeats.

    No run is due until it is resumed. 409: a worker holds it, or it has died.
    """
    return await _changed(call, holding(call.arguments, call.request.part("id")))


@route("resumeMessage", "POST", f"{MESSAGE}/resume", "change", {200: Outcome}, problems=(404, 409))
async def resume(call: ApiCall, content: wire.EmptyRequest) -> Answer:
    """Let a message that is held repeat again.

    Its next run is the first one from now on. 409: a worker holds it, or it has died.
    """
    return await _changed(call, resuming(call.arguments, call.request.part("id")))


@route("runNow", "POST", f"{MESSAGE}/run-now", "change", {200: Outcome}, problems=(404, 409))
async def run_now(call: ApiCall, content: wire.EmptyRequest) -> Answer:
    """Let a message that repeats run now.

    Once more than its rule says. A run that is due, or waits to be retried, is that run; one that
    has no attempt left becomes a dead letter, and another one follows it. One that is held stays
    so. 409: a worker holds it, or it has died.
    """
    return await _changed(call, running_now(call.arguments, call.request.part("id")))


@route("backfill", "POST", f"{MESSAGE}/backfill", "put", problems=(404, 507))
async def backfill(call: ApiCall, content: BackfillRequest) -> wire.OutcomesOut:
    """Put the runs of a message whose times are in a span.

    Each is a message of its own, whose id is that of the message, "@" and the time. It does not
    repeat, and is due at its time: at once if that has passed. One that is there already is kept.
    Up to 10,000 at a time.
    """
    start, end = _moment(content.after, "after"), _moment(content.before, "before")
    message = await call.find()
    if message is None:
        raise Problem("not-found", f"there is no message {call.request.part('id')!r} in this queue")
    check_repeats(message)
    pause = call.service.large_bodies.pauses()
    items: list[Item] = []
    with naming_server():
        for item in runs_between(message, start, end, call.arguments.now()):
            items.append(item)
            await pause()
    commands = putting_runs(call.arguments.queue, items)
    outcomes: list[Outcome] = []
    # All together: a part that is admitted alone would be put again with the next attempt.
    with await call.visit.admitted(commands) as admitted:
        for command in admitted.commands:
            reply = expect(Outcomes, await call.visit.execute(command))
            outcomes += reply.outcomes
    return wire.OutcomesOut(outcomes)


def _moment(value: wire.When, name: str) -> int:
    """Convert a time of a request to Unix milliseconds."""
    moment = wire.moment(value, name)
    assert moment is not None
    return unix(moment, name)


async def _changed(call: ApiCall, steps: Steps[Outcome]) -> Answer:
    """Return the answer to a change of a message that repeats."""
    with naming_server():
        outcome = await call.carry_out(steps)
    is_waiting = outcome.state in ("delayed", "ready")
    why = "it was edited at the same time: try again" if is_waiting else "nothing was changed"
    return changed(outcome, why=why)
