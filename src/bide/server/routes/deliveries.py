"""Deliveries: claim due messages, and settle them."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import msgspec
from msgspec import UNSET

from bide.model.commands import Command, Extend, Lease
from bide.model.ended import check_result
from bide.model.errors import Closed
from bide.model.identity import check_name
from bide.model.replies import Claimed, Outcome, Outcomes
from bide.model.times import milliseconds
from bide.queue.arguments import progress_of
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.operation import MESSAGE, QUEUE, Answer, Handle, Routes
from bide.server.problem import Problem
from bide.server.routes.given import changed

route = Routes("deliveries")


@route("claim", "POST", f"{QUEUE}/claim", "consume", {200: wire.ClaimedOut})
async def claim(call: ApiCall, content: wire.Deliver) -> Answer:
    """Claim due messages.

    With `wait` the server answers as soon as a message is due. If the client closes the
    connection meanwhile, it has claimed nothing.
    """
    holder = check_name(
        content.holder or call.caller.token or call.request.client or "local", "holder"
    )
    command = call.arguments.claim(content.count, content.lease, holder)
    wait = milliseconds(content.wait, "wait") / 1000
    await call.service.overdue_plans.before_claim(command.queue)
    if not wait:
        reply = await call.ask(Claimed, command)
    else:
        try:
            reply = await call.wait(
                lambda: call.service.claim(command, wait), undo=partial(_give_back, call)
            )
        except Closed:  # the server stops: the client asks another one
            empty = wire.ClaimedOut([], call.service.clock.now())
            return Answer(200, empty, {"connection": "close"})
    call.service.handed_out(command, reply)
    if call.service.admission.requires_tokens:
        reply = await call.service.lease_secrets.signed(command.queue, reply)
    messages = await call.convert(
        lambda message, lease: wire.message_out(message, call.request.queue, lease.text),
        reply.messages,
        reply.leases,
    )
    following = None if reply.next is None else ceil(reply.next)
    return Answer(200, wire.ClaimedOut(messages, reply.now, following))


async def _give_back(call: ApiCall, reply: Claimed) -> None:
    """Release messages of a claim whose client has gone."""
    if reply.messages:
        await call.ask(Outcomes, call.arguments.release(reply.leases))


def _settles(name: str) -> Callable[[Handle], Handle]:
    """Declare an operation that settles messages."""
    return route(name, "POST", f"{QUEUE}/{name}", "consume", problems=(409,))


@_settles("ack")
async def ack(call: ApiCall, content: wire.AckRequest) -> wire.OutcomesOut:
    """Acknowledge messages.

    Returns the outcome of each; 409 when none could be settled. Safe to repeat.
    """
    results = [None if lease.result is UNSET else bytes(lease.result) for lease in content.leases]
    for result in filter(None, results):
        check_result(result)

    def build(leases: list[Lease]) -> Command:
        command = call.arguments.ack(leases)
        return msgspec.structs.replace(command, results=results) if any(results) else command

    return await _settle(call, content, "acked", build)


@_settles("retry")
async def retry(call: ApiCall, content: wire.RetryRequest) -> wire.OutcomesOut:
    """Retry messages.

    Returns the outcome of each; 409 when none could be settled. Safe to repeat.
    """
    return await _settle(
        call, content, "retried", call.arguments.retry, content.delay, content.reason
    )


@_settles("extend")
async def extend(call: ApiCall, content: wire.ExtendRequest) -> wire.OutcomesOut:
    """Extend the leases of messages.

    Returns the outcome of each; 409 when none could be settled. Safe to repeat. The state
    "stopping" says that the message was cancelled: stop working on it, and release it.
    """
    return await _settle(call, content, "extended", call.arguments.extend, content.lease)


@_settles("report")
async def report(call: ApiCall, content: wire.ReportRequest) -> wire.OutcomesOut:
    """Report the progress of messages.

    The last report of each message is shown to those who look at it. Once a second is often
    enough. Returns the outcome of each; 409 when no lease lasts any more. Safe to repeat. The
    state "stopping" says that the message was cancelled: stop working on it, and release it.
    """
    reports = [progress_of(lease.done, lease.of, lease.text) for lease in content.leases]
    lease = None if content.lease is None else call.arguments.lease(content.lease)

    def build(leases: list[Lease]) -> Command:
        return Extend(call.arguments.queue, leases, lease, [*reports])

    return await _settle(call, content, "reported", build)


@_settles("bury")
async def bury(call: ApiCall, content: wire.BuryRequest) -> wire.OutcomesOut:
    """Make messages dead letters.

    Returns the outcome of each; 409 when none could be settled. Safe to repeat.
    """
    return await _settle(call, content, "buried", call.arguments.bury, content.reason)


@_settles("release")
async def release(call: ApiCall, content: wire.ReleaseRequest) -> wire.OutcomesOut:
    """Return messages without counting an attempt.

    Returns the outcome of each; 409 when none could be settled. Safe to repeat.
    """
    return await _settle(call, content, "released", call.arguments.release)


@route("endLease", "POST", f"{MESSAGE}/release", "admin", {200: Outcome}, problems=(404, 409))
async def end_lease(call: ApiCall, content: wire.EndLeaseRequest) -> Answer:
    """End the lease of a message.

    For example when a worker hangs. Counts as a failed attempt: the message is ready again at
    once, or dead when its attempts are used up. Its holder can no longer settle it.
    """
    command = call.arguments.end_lease(call.request.part("id"), content.reason)
    (outcome,) = (await call.ask(Outcomes, command)).outcomes
    return changed(outcome, why="there was no lease to end")


async def _settle(
    call: ApiCall,
    content: wire.SettleRequest,
    verb: str,
    build: Callable[..., Command],
    *arguments: Any,
) -> wire.OutcomesOut:
    """Settle the messages of a request.

    Args:
        call: the call.
        content: the request.
        verb: what is done to the messages, for the error text.
        build: makes the command of leases and `arguments`.
        arguments: the other arguments of `build`.

    Raises:
        Problem: no message could be settled.
    """
    leases = [Lease.of(check_name(lease.id), str(lease.token)) for lease in content.leases]
    own_leases = await call.service.checked_leases(call.caller, call.arguments.queue, leases)
    command = build(own_leases, *arguments)
    outcomes = (await call.ask(Outcomes, command)).outcomes
    if not any(outcomes):
        reasons = "; ".join(map(str, outcomes[:3]))
        raise Problem(
            "lease-lost",
            f"nothing could be {verb}, the leases are over: {reasons}. Take a longer lease, or "
            "extend it while you work",
            outcomes=outcomes,
        )
    return wire.OutcomesOut(outcomes)
