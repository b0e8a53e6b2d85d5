"""What each kind of command does: a function from a run of such commands to their replies."""

from collections.abc import Callable
from typing import Any

from bide.engines.sqlite.session import Session
from bide.engines.sqlite.verbs import change, claim, look, put, settle
from bide.model import commands as cmd
from bide.model.replies import Reply

__all__ = ["VERBS"]

Verb = Callable[[Session, list[Any]], list[Reply]]


def _each(verb: Callable[[Session, Any], Reply]) -> Verb:
    return lambda session, run: [verb(session, command) for command in run]


VERBS: dict[type, Verb] = {
    cmd.Put: put.put,
    cmd.Cancel: _each(change.cancel),
    cmd.Reschedule: _each(change.reschedule),
    cmd.Revive: _each(change.revive),
    cmd.Purge: _each(change.purge),
    cmd.Configure: _each(change.configure),
    cmd.Claim: _each(claim.claim),
    cmd.Extend: _each(settle.extend),
    cmd.Ack: _each(settle.ack),
    cmd.Retry: _each(settle.retry),
    cmd.Bury: _each(settle.bury),
    cmd.Release: _each(settle.release),
    cmd.Find: _each(look.find),
    cmd.Scan: _each(look.scan),
    cmd.Count: _each(look.count),
    cmd.Forecast: _each(look.forecast),
    cmd.Queues: _each(look.queues),
}
