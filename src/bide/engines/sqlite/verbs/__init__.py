"""What each kind of command does: a function of its name in one of these files."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, get_args

from bide.engines.sqlite.session import Session
from bide.engines.sqlite.verbs import claim, edit, explain, put, read, settle
from bide.engines.sqlite.verbs.forwarded import with_origins
from bide.model import commands as cmd
from bide.model.replies import Reply

__all__ = ["carry_out"]

Verb = Callable[[Session, list[Any]], list[Reply]]


def _verb(kind: type) -> Verb:
    """Return the function for consecutive commands of a kind."""
    name = kind.__name__.lower()
    files = claim, edit, explain, put, read, settle
    (verb,) = (vars(file)[name] for file in files if name in file.__all__)
    return lambda session, run: [verb(session, command) for command in run]


_VERBS: dict[type, Verb] = {kind: _verb(kind) for kind in get_args(cmd.Command)}
_VERBS[cmd.Put] = put.put  # all at once
for kind in (cmd.Put, cmd.Cancel, cmd.Reschedule):
    _VERBS[kind] = with_origins(_VERBS[kind])


def carry_out(session: Session, commands: Sequence[cmd.Command]) -> list[Reply]:
    """Execute commands in an open transaction. The caller saves the session."""
    replies: list[Reply] = []
    for kind, run in groupby(commands, type):
        replies += _VERBS[kind](session, list(run))
    return replies
