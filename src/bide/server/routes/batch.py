"""The batch endpoint: the commands themselves on the wire, for bide's own `http://` engine."""

import time
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import msgspec

from bide.engines.http.answers import error_of
from bide.engines.port import Capabilities
from bide.model import commands as cmd
from bide.model.ended import PENDING
from bide.model.errors import BideError, InvalidArgument
from bide.model.identity import actor_of
from bide.model.limits import MAX_BATCH_MESSAGES, MAX_COMMANDS
from bide.model.message import Message, withheld
from bide.model.replies import Claimed, Ends, Explained, Found, Names, Page, Reply
from bide.model.undoing import Bulk, Part, Undo, Undone
from bide.observing.heartbeat import is_register
from bide.server import validate
from bide.server.action_log import Act, count_of
from bide.server.call import Call
from bide.server.operation import MSGPACK, Answer, Routes
from bide.server.packed import Batch, Given, unpack
from bide.server.problem import Problem, invalid, kind_of, of_validation
from bide.server.rights import RIGHTS, Caller, Right
from bide.server.routes.undoing import execute
from bide.server.service import own_names
from bide.server.wire import without_results

route = Routes("batch")


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Stands for the reply of a command that was not carried out."""

    error: str
    """The name of the exception that bide raises."""
    detail: str


class Replies(msgspec.Struct):
    """A reply for each command, in their order."""

    replies: list[Reply | Part | Undone | Failed]
    now: int
    """The server's clock, in Unix milliseconds."""


class About(msgspec.Struct):
    """What answers here."""

    server: str
    capabilities: Capabilities
    """What the store can do."""
    namespace: str | None
    """Whose queues the token is for."""
    rights: list[Right]
    """What the token allows."""
    queues: list[str]
    """Patterns of the queues that it allows this for."""


_to_msgpack = msgspec.msgpack.Encoder().encode


@route("batch", "POST", "/v1/batch", "", {200: Replies}, takes=Batch, problems=(429, 501, 507))
async def batch(call: Call) -> Answer:
    """Carry out commands.

    Each command needs the right of its own route. Speaks application/msgpack as well as
    application/json. Up to 1,000 commands. The replies have a budget of 8 MiB together: a scan
    may answer with a cursor before its limit, a find with fewer messages than ids, a claim with
    none and `next` 0; ask again for the rest.
    """
    binary = call.content_type == MSGPACK
    if binary:
        given = await _unpacked(call)
    else:
        given = await call.read(Batch)
    if len(given.commands) > MAX_COMMANDS:
        raise InvalidArgument(f"commands are {len(given.commands):,}; {MAX_COMMANDS:,} is the most")
    call.acts = [Act(str(c.__struct_config__.tag), c.queue) for c in given.commands]
    commands = [await _own(call, command) for command in given.commands]
    named = sum(command.weight for command in commands)
    if named > MAX_BATCH_MESSAGES:
        raise InvalidArgument(
            f"the commands name {named:,} messages; {MAX_BATCH_MESSAGES:,} is the most in a batch"
        )
    service = call.service
    if given.now is not None:
        if service.test_clock is None:
            raise invalid(
                "now", "now cannot be given: this server goes by its store's clock; leave it out"
            )
        service.test_clock.set_wall(given.now)
    await service.quotas.admit(call.caller, commands)
    answers: list[Any] = []
    for composed, group in groupby(commands, lambda command: isinstance(command, (Bulk, Undo))):
        if composed:
            answers += [await _composed(call, command) for command in group]
        else:
            slowly = partial(call.counted, service.slow_calls)
            answers += await service.batch(list(group), slowly)
    pairs = zip(commands, answers, strict=True)
    replies = [_told(call, await _completed(call, command, reply)) for command, reply in pairs]
    for act, told in zip(call.acts, replies, strict=True):
        act.messages = count_of(told)
        if isinstance(told, Failed):
            act.result = kind_of(told.error)
    content = Replies(replies, service.clock.now())
    if binary:
        return Answer(200, _to_msgpack(content), kind=MSGPACK)
    return Answer(200, content)


async def _completed(call: Call, command: Any, reply: Any) -> Any:
    """Return a reply with what the server adds to it; if it cannot, the error of this command."""
    service = call.service
    try:
        match command, reply:
            case _, Claimed() if service.admission.asks:
                return await service.lease_secrets.signed(command.queue, reply)
            case cmd.Explain(), Explained():
                return await service.explained(command.queue, command.id, reply)
            case cmd.History(watch=True), Ends() if reply.state in PENDING:
                service.watch(command)
    except BideError as error:
        return error
    return reply


async def _composed(call: Call, command: Any) -> Part | Undone | BideError:
    try:
        return await execute(call.service, call.caller, command)
    except Problem as problem:  # those before it were executed
        return error_of(problem.kind.status, problem.kind.error)(str(problem))
    except BideError as error:
        return error


async def _unpacked(call: Call) -> Batch:
    try:
        data = await call.bytes()
        await call.service.large_bodies.turn(len(data))
        return await call.service.large_bodies.work(unpack(data))
    except msgspec.DecodeError as error:
        raise of_validation(error, Batch) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise Problem("malformed", f"The body cannot be read: {error}") from None


async def _own(call: Call, command: Given) -> Any:
    """Return a command as it is for the store, if the caller may give it."""
    validate.check(command, call.caller)
    await call.service.large_bodies.work(validate.check_each(command))
    since = time.monotonic()
    for item in command.items if isinstance(command, cmd.Put) else ():
        await call.service.large_bodies.turn(len(item.data))
        validate.check_item(item, call.service.settings.max_body)
        since = await call.service.large_bodies.give_way(since)
    if isinstance(command, cmd.Edit):
        await call.service.large_bodies.turn(len(command.data or b""))
        validate.check_edit(command, call.service.settings.max_body)
    queue = call.caller.prefix(command.queue)
    actor = None if command.only_reads else _actor(call, command.actor)
    if leases := getattr(command, "leases", None):
        leases = await call.service.settled_by(call.caller, queue, leases)
        return msgspec.structs.replace(command, queue=queue, leases=leases, actor=actor)
    return msgspec.structs.replace(command, queue=queue, actor=actor)


def _actor(call: Call, said: str | None) -> str | None:
    """Return who gives a command: as they say, and by whose token."""
    token = call.caller.name or call.caller.token or ""
    if said is None:
        return actor_of(token) if token else None
    return actor_of(said, through=token)


def _told(call: Call, reply: Any) -> Any:
    """Return a reply as the caller may see it, with the names that their queues have."""
    caller = call.caller
    if isinstance(reply, BideError):
        return Failed(type(reply).__name__, call.service.client_text.of(reply))
    if isinstance(reply, BaseException):
        raise reply
    if isinstance(reply, (Part, Undone)):
        return reply
    if isinstance(reply, Names):
        return Names(own_names(caller, reply.names))
    if isinstance(reply, Claimed) and caller.namespace is not None:
        return msgspec.structs.replace(reply, messages=_shown(caller, reply.messages))
    if isinstance(reply, Ends) and not caller.may("bodies"):
        return without_results(reply)
    if isinstance(reply, (Found, Page)):
        hides = not caller.may("bodies")
        if hides or caller.namespace is not None:
            shown = _shown(caller, reply.messages, hides=hides)
            return msgspec.structs.replace(reply, messages=shown)
    return reply


def _shown(caller: Caller, messages: Sequence[Message | None], *, hides: bool = False) -> Any:
    """Return messages under the names that their queues have for the caller."""
    skip = 0 if caller.namespace is None else len(caller.namespace) + 1
    return [
        None if one is None
        else msgspec.structs.replace(
            withheld(one) if hides and not is_register(one.queue) else one,
            queue=one.queue[skip:],
        )
        for one in messages
    ]  # fmt: skip


@route("about", "GET", "/v1", "")
async def about(call: Call) -> About:
    """Tell what answers here."""
    from importlib.metadata import version

    can = call.service.lane.capabilities
    by_caller = call.service.test_clock is not None
    mine = msgspec.structs.replace(can, caller_time=by_caller, resends=False, takes_back=True)
    caller = call.caller
    rights = [right for right in RIGHTS if caller.may(right)]
    return About(f"bide {version('bide')}", mine, caller.namespace, rights, list(caller.queues))
