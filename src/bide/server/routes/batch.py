"""The batch endpoint: the commands themselves on the wire, for bide's own `http://` engine."""

from typing import Any

import msgspec

from bide.engines.port import Capabilities
from bide.model import commands as cmd
from bide.model.errors import BideError, InvalidArgument
from bide.model.limits import MAX_COMMANDS
from bide.model.message import Item
from bide.model.replies import Claimed, Found, Names, Page, Reply
from bide.server import validate
from bide.server.access import Caller
from bide.server.operation import JSON, MSGPACK, Answer, Call, Operation
from bide.server.problem import Problem, of_validation
from bide.server.service import own_names

__all__ = ["BATCH"]


MOST_MESSAGES = 200_000
"""How many messages the commands of one request may name together."""


class Batch(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Commands, to be carried out in their order, each all or nothing."""

    commands: list[cmd.Command]
    now: int | None = None
    """By which clock, in Unix milliseconds; only a server under test takes it."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Stands for the reply of a command that was not carried out."""

    error: str
    """The name of the exception that bide raises."""
    detail: str


class Replies(msgspec.Struct):
    """A reply for each command, in their order."""

    replies: list[Reply | Failed]
    now: int
    """The server's clock, in Unix milliseconds."""


class About(msgspec.Struct):
    """What answers here."""

    server: str
    capabilities: Capabilities
    """What the store can do."""
    namespace: str | None
    """Whose queues the token is for."""
    scopes: list[str]
    """What the token allows."""


_from_msgpack = msgspec.msgpack.Decoder(Batch).decode
_to_msgpack = msgspec.msgpack.Encoder().encode


async def batch(call: Call) -> Answer:
    """Carry out commands."""
    binary = call.content_type == MSGPACK
    if binary:
        given = await _unpacked(call)
    else:
        given = await call.read(Batch)
    if len(given.commands) > MAX_COMMANDS:
        raise InvalidArgument(f"commands are {len(given.commands):,}; {MAX_COMMANDS:,} is the most")
    commands = [_own(call, command) for command in given.commands]
    named = sum(command.weight for command in commands)
    if named > MOST_MESSAGES:
        raise InvalidArgument(
            f"the commands name {named:,} messages; {MOST_MESSAGES:,} is the most in a batch"
        )
    service = call.service
    if given.now is not None:
        if service.test_clock is None:
            raise Problem(
                "invalid-argument",
                "now cannot be given: this server goes by its store's clock; leave it out",
                field="now",
            )
        service.test_clock.set_wall(given.now)
    if service.quotas.any:
        items = [item for c in commands if isinstance(c, cmd.Put) for item in c.items]
        if items:
            await service.quotas.admit(call.caller, items, service.clock.now())
        for command in commands:
            if isinstance(command, cmd.Reschedule):
                moved = [Item(id, b"", at=command.at, delay=command.delay) for id in command.ids]
                service.quotas.bound(call.caller, moved, service.clock.now())
    replies = [_told(call.caller, reply) for reply in await service.batch(commands)]
    content = Replies(replies, service.clock.now())
    if binary:
        return Answer(200, _to_msgpack(content), kind=MSGPACK)
    return Answer(200, content)


async def _unpacked(call: Call) -> Batch:
    try:
        return _from_msgpack(await call.bytes())
    except msgspec.DecodeError as error:
        raise of_validation(error, Batch) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise Problem("malformed", f"The body cannot be read: {error}") from None


def _own(call: Call, command: cmd.Command) -> cmd.Command:
    """Return a command as it is for the store, if the caller may give it."""
    scope = validate.needs(command)
    if not call.caller.may(scope):
        raise Problem("forbidden", f"the token has no scope {scope!r}, which this command needs")
    validate.check(command, call.caller, call.service.settings.max_body)
    return msgspec.structs.replace(command, queue=call.caller.full(command.queue))


def _told(caller: Caller, reply: Reply | BaseException) -> Reply | Failed:
    """Return a reply as the caller is to see it: with the names that their queues have."""
    if isinstance(reply, BideError):
        return Failed(type(reply).__name__, str(reply))
    if isinstance(reply, BaseException):
        raise reply
    if isinstance(reply, Names):
        return Names(own_names(caller, reply.names))
    if caller.namespace is None:
        return reply
    if isinstance(reply, (Claimed, Found, Page)):
        found: Any = [_renamed(caller, message) for message in reply.messages]
        return msgspec.structs.replace(reply, messages=found)
    return reply


def _renamed(caller: Caller, message: Any) -> Any:
    if message is None:
        return None
    own = message.queue[len(caller.namespace or "") + 1 :]
    return msgspec.structs.replace(message, queue=own)


async def about(call: Call) -> Answer:
    """Tell what answers here, and what the token allows."""
    from importlib.metadata import version

    can = call.service.lane.capabilities
    by_caller = call.service.test_clock is not None
    mine = msgspec.structs.replace(can, caller_time=by_caller, resends=False, overlaps=False)
    scopes = sorted(call.caller.scopes)
    return Answer(200, About(f"bide {version('bide')}", mine, call.caller.namespace, scopes))


BATCH = (
    Operation(
        "batch", "POST", "/v1/batch", "Carry out commands", "", batch, {200: Replies},
        takes=Batch, problems=(429, 501, 507), tag="batch",
        description="Each command needs the scope of its own route. Speaks application/msgpack as "
        f"well as {JSON}. Up to {MAX_COMMANDS:,} commands. The "
        "replies have a budget of 8 MiB together: a scan may answer with a cursor before its "
        "limit, a find with fewer messages than ids, a claim with none and `next` 0; ask again for "
        "the rest.",
    ),
    Operation(
        "about", "GET", "/v1", "Tell what answers here", "", about, {200: About}, tag="batch",
    ),
)  # fmt: skip
