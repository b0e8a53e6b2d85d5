"""Deliveries: claim what is due, and say what became of it."""

from collections.abc import Callable
from math import ceil

import msgspec
from msgspec import UNSET

from bide.model.commands import Claim, Command, Lease
from bide.model.ended import check_result
from bide.model.errors import BideError, Closed
from bide.model.identity import check_name
from bide.model.replies import Claimed, Outcome, Outcomes
from bide.model.times import milliseconds
from bide.server import wire
from bide.server.call import Call
from bide.server.conditions import changed
from bide.server.operation import MESSAGE, QUEUE, Answer, Handle, Routes
from bide.server.problem import Problem, invalid
from bide.server.receiving import unless_gone

route = Routes("deliveries")


@route(
    "claim", "POST", f"{QUEUE}/claim", "consume", {200: wire.ClaimedOut}, problems=(429,),
)  # fmt: skip
async def claim(call: Call, asked: wire.Deliver) -> Answer:
    """Claim due messages.

    With `wait` the answer comes as soon as a message is due. Whoever closes the connection
    meanwhile has claimed nothing.
    """
    holder = None if asked.holder is None else check_name(asked.holder, "holder")
    command = call.arguments.claim(asked.count, asked.lease, holder or _holder(call))
    wait = milliseconds(asked.wait, "wait") / 1000
    if not wait:
        reply = await call.ask(Claimed, command)
    else:
        try:
            with call.counted(call.service.waits):
                reply = await unless_gone(
                    call.receive,
                    call.service.claim(command, wait),
                    call.service.admission.until_refused(call.token),
                    undo=lambda reply: _give_back(call, command, reply),
                )
        except Closed:  # the server stops, and whoever waits is to ask another one
            empty = wire.ClaimedOut([], call.service.clock.now())
            return Answer(200, empty, {"connection": "close"})
        if reply.messages:
            await _still_admitted(call, command, reply)
    call.service.handed_out(command, reply)
    if call.service.admission.asks:
        reply = await call.service.lease_secrets.signed(command.queue, reply)
    messages = [
        wire.shown(message, call.queue, Lease(message.id, reply.token, message.secret).text)
        for message in reply.messages
    ]
    following = None if reply.next is None else ceil(reply.next)
    return Answer(200, wire.ClaimedOut(messages, reply.now, following))


async def _still_admitted(call: Call, command: Claim, reply: Claimed) -> None:
    """Refuse a caller whose token was revoked, or has expired, while the claim waited.

    Raises:
        Problem: the token is not valid any more; the messages were released.
    """
    try:
        await call.service.admission.caller(call.token)
    except (BideError, Problem):
        await _give_back(call, command, reply)
        raise


def _holder(call: Call) -> str:
    return call.caller.token or call.client or "local"


async def _give_back(call: Call, command: Claim, reply: Claimed) -> None:
    if reply.messages:
        leases = [Lease(message.id, reply.token, message.secret) for message in reply.messages]
        await call.ask(Outcomes, call.arguments.release(leases))


def _settles(name: str) -> Callable[[Handle], Handle]:
    """Have the decorated function settle messages."""
    return route(name, "POST", f"{QUEUE}/{name}", "consume", problems=(409,))


@_settles("ack")
async def ack(call: Call, asked: wire.AckRequest) -> wire.OutcomesOut:
    """Say that messages are done.

    Answers what became of each; 409 when none could be settled. Sending it twice does no harm.
    """
    command = call.arguments.ack(await _leases(call, asked))
    results = [None if one.result is UNSET else bytes(one.result) for one in asked.leases]
    if any(results):
        for result in filter(None, results):
            check_result(result)
        command = msgspec.structs.replace(command, results=results)
    return await _settle(call, command, "acked")


@_settles("retry")
async def retry(call: Call, asked: wire.RetryRequest) -> wire.OutcomesOut:
    """Have messages tried again.

    Answers what became of each; 409 when none could be settled. Sending it twice does no harm.
    """
    leases = await _leases(call, asked)
    return await _settle(call, call.arguments.retry(leases, asked.delay, asked.reason), "retried")


@_settles("extend")
async def extend(call: Call, asked: wire.ExtendRequest) -> wire.OutcomesOut:
    """Hold messages for longer.

    Answers what became of each; 409 when none could be settled. Sending it twice does no harm.
    """
    leases = await _leases(call, asked)
    return await _settle(call, call.arguments.extend(leases, asked.lease), "extended")


@_settles("bury")
async def bury(call: Call, asked: wire.BuryRequest) -> wire.OutcomesOut:
    """Make messages dead letters.

    Answers what became of each; 409 when none could be settled. Sending it twice does no harm.
    """
    leases = await _leases(call, asked)
    return await _settle(call, call.arguments.bury(leases, asked.reason), "buried")


@_settles("release")
async def release(call: Call, asked: wire.ReleaseRequest) -> wire.OutcomesOut:
    """Hand messages back untouched.

    Answers what became of each; 409 when none could be settled. Sending it twice does no harm.
    """
    leases = await _leases(call, asked)
    return await _settle(call, call.arguments.release(leases), "released")


@route("endLease", "POST", f"{MESSAGE}/release", "admin", {200: Outcome}, problems=(404, 409))
async def end_lease(call: Call, asked: wire.EndLeaseRequest) -> Answer:
    """End the lease of a message.

    Whoever holds it, such as a worker that hangs. Counts as a failed attempt: the message is
    ready again at once, or dead when its attempts are used up. Its holder can no longer settle
    it.
    """
    command = call.arguments.end_lease(call.part("id"), asked.reason)
    (outcome,) = (await call.ask(Outcomes, command)).outcomes
    return changed(outcome, why="there was no lease to end")


async def _leases(call: Call, asked: wire.Settling) -> list[Lease]:
    """Return the leases that a request names as the store knows them."""
    leases = []
    for one in asked.leases:
        try:
            leases.append(Lease.of(check_name(one.id), str(one.token)))
        except ValueError:
            raise invalid(
                "leases", f"token={one.token!r} is not a token; give it whole, as the claim gave it"
            ) from None
    return await call.service.settled_by(call.caller, call.full, leases)


async def _settle(call: Call, command: Command, verb: str) -> wire.OutcomesOut:
    outcomes = (await call.ask(Outcomes, command)).outcomes
    if not any(outcome.done for outcome in outcomes):
        told = "; ".join(str(outcome) for outcome in outcomes[:3])
        raise Problem(
            "lease-lost",
            f"nothing could be {verb}, the leases are over: {told}. Take a longer lease, or extend "
            "it while you work",
            outcomes=outcomes,
        )
    return wire.OutcomesOut(outcomes)
