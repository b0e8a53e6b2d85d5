"""Messages whose time has a rule, in claims: whoever claims one that is not to be delivered now
says when it is.

The run of a message that repeats is over if it was acked by somebody who could not plan, has used
up its attempts, came too late, or was missed. A message whose window is closed waits for the next
opening, and one that is due later by newer rules of its time zone waits until then. The caller of
the claim does not see such a message.
"""

from collections import defaultdict

import msgspec

from bide.lane.closed_windows import return_commands
from bide.lane.local_times import later, postponing
from bide.logs import logger
from bide.model.command_parts import NextRun
from bide.model.commands import Command, Lease, Put, Renew, RetryCommand
from bide.model.errors import InvalidArgument
from bide.model.message import Item, Message
from bide.model.replanning import Replanned
from bide.model.replies import Claimed, Died
from bide.model.runs import Renewal, dead_letter, delivered_run, renewal
from bide.model.time_rule import time_rule_of

UNPLANNED_DELAY = 60_000
"""After how many milliseconds a message is claimed again whose rule this process cannot read."""

_log = logger("bide.lane")


def planned(queue: str, reply: Claimed) -> tuple[Claimed, list[Command]]:
    """Return the reply of a claim without the messages that are not to be delivered, and what plans
    those.

    The commands are to be executed one after the other.
    """
    kept: list[Message] = []
    renewals: dict[str, list[tuple[Lease, Renewal]]] = defaultdict(list)
    dead_letters: list[Item] = []
    died: list[Died] = []
    closed: list[tuple[Message, Lease, int]] = []
    unreadable: list[tuple[Lease, InvalidArgument]] = []
    postponed: list[tuple[Message, Lease, Replanned]] = []
    for message, lease in zip(reply.messages, reply.leases, strict=True):
        if message.rule is None:
            kept.append(message)
            continue
        new_plan = later(message, queue, reply.now)
        if new_plan is not None and not message.repeats:
            postponed.append((message, lease, new_plan))
            continue
        try:
            plan = renewal(message, reply.now) if message.repeats else None
            if plan is None and new_plan is not None:
                plan = Renewal("ended", NextRun(new_plan.due, new_plan.run or ""))
            if plan is None:
                opening = time_rule_of(message.rule).opening(reply.now)
                if opening > reply.now:
                    closed.append((message, lease, opening))
                elif message.repeats:
                    kept.append(delivered_run(message, reply.now))
                else:
                    kept.append(message)
                continue
            if plan.how == "dead" and plan.next is not None:  # the last run is dead by itself
                dead_letters.append(dead_letter(message, reply.now))
        except InvalidArgument as error:
            unreadable.append((lease, error))
            continue
        renewals[plan.how].append((lease, plan))
        last_failure = message.failures[-1] if message.failures else None
        if plan.how == "dead" and last_failure is not None and last_failure.lapsed:
            died.append(Died(message.id, message.attempt - 1, last_failure.holder))
    commands: list[Command] = []
    if dead_letters:
        commands.append(Put(queue, dead_letters))
    commands += postponing(queue, postponed, reply.now)
    for pairs in renewals.values():
        leases = [lease for lease, _ in pairs]
        next_runs = [plan.next for _, plan in pairs]
        commands.append(Renew(queue, leases, next_runs, pairs[0][1].how))
    commands += return_commands(queue, closed, reply.now)
    for lease, cause in unreadable:
        _log.error("%s of %s has a rule, and is not delivered: %s", lease.id, queue, cause)
        reason = f"not delivered: {cause}"
        commands.append(RetryCommand(queue, [lease], UNPLANNED_DELAY, reason, release=True))
    next_claim = reply.next if kept or not commands else 0  # what was planned may be due
    plain_reply = msgspec.structs.replace(
        reply, messages=kept, next=next_claim, died=reply.died + died
    )
    return plain_reply, commands
