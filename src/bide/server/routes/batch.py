"""The batch endpoint: it takes the commands of stores, for the `http://` engine of bide."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.engines.http.answers import error_of
from bide.engines.http.engine import FailedReply, Replies
from bide.engines.port import Capabilities, Identity
from bide.model import commands as cmd
from bide.model.ended import PENDING
from bide.model.errors import AccessDenied, BideError, OutcomeUnknown, StoreBusy
from bide.model.identity import actor_of
from bide.model.internal_queues import InternalQueue, internal_queue
from bide.model.limits import MAX_BATCH_MESSAGES
from bide.model.message import withheld
from bide.model.past import Past, PastCommand
from bide.model.replies import Claimed, Ends, Explained, Found, Names, Page
from bide.model.undoing import Bulk, Part, Undo, Undone
from bide.server import validate
from bide.server.access.heartbeats import denial_of_report
from bide.server.access.rights import RIGHTS, Caller, Right
from bide.server.access.senders import sender_of
from bide.server.call import ApiCall
from bide.server.limits.batches import Sent, answer_without_room
from bide.server.limits.decoding import BatchCommand, RequestBatch, unpack
from bide.server.limits.request_bodies import Pause, check_count
from bide.server.logs import Act, count_of
from bide.server.operation import MSGPACK, Answer, Routes
from bide.server.problem import ClientText, Problem, invalid, kind_of
from bide.server.routes.undoing import execute
from bide.server.service import own_names

route = Routes("batch")

_WITHOUT_BODIES = (InternalQueue.WORKERS, InternalQueue.STOPS)
"""What is in these internal queues is shown to those who may find it, without the right `bodies`:
a supervisor reads who wants its process replaced."""


class About(msgspec.Struct):
    """A description of the server."""

    server: str
    capabilities: Capabilities
    """What the store can do."""
    namespace: str | None
    """The namespace of the token; null: the whole store."""
    rights: list[Right]
    """The rights of the token."""
    queues: list[str]
    """Patterns of the queues that the rights are for."""


@route("batch", "POST", "/v1/batch", "", {200: Replies}, unpack=unpack, problems=(501, 507))
async def batch(call: ApiCall, content: RequestBatch) -> Answer:
    """Execute commands.

    Each command needs the right of its own route. Accepts application/msgpack as well as
    application/json. Up to 1,000 commands. All replies together may take 8 MiB: a scan may
    answer with a cursor before its limit, a find with fewer messages than ids, a claim with
    none and `next` 0; ask again for the rest.

    With `client`, the store remembers the answers of the client's last batch for 15 minutes. If no
    answer comes, send the batch again with `repeated`: nothing is executed twice, and a command
    whose answer is not known any more fails with `OutcomeUnknown`.
    """
    service, caller = call.service, call.visit.caller
    if service.action_log.is_on:
        call.acts = [
            Act(
                str(command.__struct_config__.tag),
                command.queue,
                target=_message_of(command),
            )
            for command in content.commands
        ]
    commands: list[Any] = []
    message_count = 0
    claimed_queues: set[str] = set()
    for sent_command in content.commands:
        command = await _for_store(call, sent_command)
        commands.append(command)
        message_count += command.weight
        if isinstance(command, cmd.Claim):
            claimed_queues.add(command.queue)
    check_count("messages", message_count, MAX_BATCH_MESSAGES)
    for queue in claimed_queues:
        await service.overdue_plans.before_claim(queue)
    with await call.visit.admitted(commands) as admitted:
        answers = await _execute(call, content, admitted.commands)
    pause = service.large_bodies.pauses()
    replies = []
    room = cmd.MAX_BYTES  # for explanations, which name all workers of a queue
    for command, answer in zip(commands, answers, strict=True):
        if isinstance(answer, Explained) and room <= 0:
            reply = answer_without_room(command, service.clock.now())
        else:
            reply = await _completed(call, command, answer)
        if isinstance(reply, Explained):
            room -= len(msgspec.msgpack.encode(reply))
            await pause()
        replies.append(await _shown(reply, caller, service.client_text, pause))
    for act, reply in zip(call.acts, replies, strict=False):  # without the log, there are no acts
        act.messages = count_of(reply)
        if isinstance(reply, FailedReply):
            act.result = kind_of(reply.error)
    answer_content = Replies(replies, service.clock.now())
    if call.request.content_type == MSGPACK:
        return Answer(200, msgspec.msgpack.encode(answer_content), content_type=MSGPACK)
    return Answer(200, answer_content)


def _message_of(command: Any) -> str | None:
    """Return the id of the message that a command names, if it is one."""
    for field in ("leases", "ids", "items"):
        if named := getattr(command, field, None):
            if len(named) > 1:
                return None
            name: str = named[0] if field == "ids" else named[0].id
            return name
    id: str | None = getattr(command, "id", None)
    return id


async def _execute(call: ApiCall, request: RequestBatch, commands: Sequence[Any]) -> list[Any]:
    """Execute commands in order; return a reply or an error for each.

    Args:
        call: the call.
        request: the request, for the identities of its commands.
        commands: its commands as the store gets them.
    """
    visit = call.visit
    checked: list[tuple[Sent, AccessDenied | None]] = []
    # First: an error of the store must not end a batch of which a part is executed.
    for command, identity in zip(commands, _identities(call, request), strict=True):
        denial = await denial_of_report(command, visit.caller, visit.execute)
        checked.append((Sent(command, identity), denial))
    answers: list[Any] = []
    together: list[Sent] = []
    for sent, denial in checked:
        command = sent.command
        is_composed = isinstance(command, (Bulk, Undo, PastCommand))
        if not is_composed and denial is None:
            together.append(sent)
            continue
        if together:
            answers += await call.service.batches.execute(together, visit)
            together = []
        answers.append(denial or await _execute_composed(call, command, request))
    if together:
        answers += await call.service.batches.execute(together, visit)
    return answers


async def _completed(call: ApiCall, command: Any, reply: Any) -> Any:
    """Return the reply of a store as a client gets it, or an error in its place.

    Claims get signed lease tokens, and explanations what the server knows of workers; a message
    whose end is waited for is watched. The batch has been executed, so what fails here must be the
    answer to this command alone, and no refusal of the request.

    Args:
        call: the call.
        command: the command.
        reply: the reply of the store.
    """
    service = call.service
    try:
        match command, reply:
            case _, Claimed() if service.admission.requires_tokens:
                return await service.lease_secrets.signed(command.queue, reply)
            case cmd.Explain(), Explained():
                queue, id = command.queue, command.id
                return await service.explained(call.visit, queue, id, reply, call.surroundings)
            case cmd.History(watch=True), Ends() if reply.state in PENDING:
                service.watch(command)
    except Problem as problem:  # no `BideError`; the client may ask again
        return StoreBusy(str(problem))
    except BideError as error:
        return error
    return reply


def _identities(call: ApiCall, request: RequestBatch) -> list[Identity | None]:
    """Return the identity of each command for the store; reads have none.

    Raises:
        Problem: places are missing, or the store does not remember answers.
    """
    commands = request.commands
    if request.client is None:
        return [None] * len(commands)
    if not call.service.lane.capabilities.remembers:
        raise invalid("client", "the store behind this server does not remember answers")
    places = request.places or range(len(commands))
    if len(places) != len(commands):
        raise invalid(
            "places", f"places are {len(places)} and commands {len(commands)}; name one for each"
        )
    sender = sender_of(call.visit.caller, request.client)
    identities: list[Identity | None] = []
    for command, place in zip(commands, places, strict=True):
        identity = None
        if not command.only_reads:
            identity = Identity(sender, request.number, place, request.repeated)
        identities.append(identity)
    return identities


async def _execute_composed(
    call: ApiCall, command: Any, request: RequestBatch
) -> Part | Undone | Past | BideError:
    """Execute a command that is made of several commands of the store; return its error, if any."""
    if request.repeated and not command.only_reads:
        # The store does not know these commands again: they are the server's own.
        return OutcomeUnknown(
            "the connection was lost during a bulk change, which may have been carried out or not; "
            "look at its messages"
        )
    try:
        if isinstance(command, PastCommand):
            return await call.visit.past(command)
        return await execute(call, command)
    except Problem as problem:  # those before it were executed
        return error_of(problem.kind.status, problem.kind.error)(str(problem))
    except BideError as error:
        return error


async def _for_store(call: ApiCall, command: BatchCommand) -> Any:
    """Check a command and return it for the store.

    Its queue gets the namespace, its actor the name of the token, its leases lose their secrets.
    """
    service, caller = call.service, call.visit.caller
    most = service.settings.max_body
    queue = await validate.check(command, caller, most, call.request.pause)
    changes: dict[str, Any] = {"queue": queue, "actor": None}
    token = caller.name or caller.token or ""
    if not command.only_reads and command.actor is not None:
        changes["actor"] = actor_of(command.actor, through=token)
    elif not command.only_reads and token:
        changes["actor"] = actor_of(token)
    if leases := getattr(command, "leases", None):
        changes["leases"] = await service.checked_leases(caller, queue, leases)
    return msgspec.structs.replace(command, **changes)


async def _shown(reply: Any, caller: Caller, client_text: ClientText, pause: Pause) -> Any:
    """Return a reply with the caller's names of queues, and without bodies it may not see."""
    match reply:
        case BideError():
            return FailedReply(type(reply).__name__, client_text.of(reply))
        case BaseException():
            raise reply
        case Names():
            return Names(own_names(caller, reply.names))
        case Ends() if not caller.may("bodies"):  # b"" is not JSON: it stands for a withheld result
            ends = [
                end if end.result is None else msgspec.structs.replace(end, result=b"")
                for end in reply.ends
            ]
            return Ends(reply.state, ends)
        case Claimed() | Found() | Page():
            # A worker needs the bodies.
            hides = not (isinstance(reply, Claimed) or caller.may("bodies"))
            if not hides and caller.namespace is None:
                return reply
            namespace_prefix = "" if caller.namespace is None else f"{caller.namespace}/"
            messages = []
            for message in reply.messages:
                if message is not None:
                    # Reports of workers and requests to stop them contain no body of a user.
                    if hides and internal_queue(message.queue) not in _WITHOUT_BODIES:
                        message = withheld(message)
                    queue = message.queue.removeprefix(namespace_prefix)
                    message = msgspec.structs.replace(message, queue=queue)
                messages.append(message)
                await pause()
            return msgspec.structs.replace(reply, messages=messages)
    return reply


@route("about", "GET", "/v1", "")
async def about(call: ApiCall) -> About:
    """Describe the server."""
    from importlib.metadata import version

    # What the store can do, except for what the server does not pass on or does itself.
    capabilities = msgspec.structs.replace(
        call.service.lane.capabilities, caller_time=False, resends=False, has_server=True
    )
    caller = call.caller
    rights = [right for right in RIGHTS if caller.may(right)]
    return About(
        f"bide {version('bide')}", capabilities, caller.namespace, rights, list(caller.queues)
    )
