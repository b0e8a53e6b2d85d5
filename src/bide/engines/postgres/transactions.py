"""Carrying out a batch in one transaction: with few round trips, and each command once."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import itemgetter

import psycopg

from bide.engines.bounded_dict import BoundedDict
from bide.engines.port import Identities, Identity
from bide.engines.postgres.answers import SENT_BEFORE, Remembered
from bide.engines.postgres.arrays import integers, texts
from bide.engines.postgres.batch import NO_IDENTITY, PostgresBatch
from bide.engines.postgres.calls import is_one_call, remembers, replies
from bide.engines.postgres.connection import Argument
from bide.engines.postgres.putting import only_puts, put_one
from bide.model.commands import Claim, Command, Put
from bide.model.errors import BideError
from bide.model.replies import Reply

ReplyOrError = Reply | BideError
"""What becomes of a command: an error if it was perhaps executed before, or was refused alone."""


def transact(
    batch: PostgresBatch,
    commands: Sequence[Command],
    identities: Identities,
    enrolled: BoundedDict[str, None],
) -> list[ReplyOrError]:
    """Carry out commands in one transaction, those with an identity once.

    Args:
        batch: of the commands.
        commands: in their order.
        identities: one for each command, or none.
        enrolled: senders that the store knows.

    Returns:
        A reply for each command, or `OutcomeUnknown` if it was perhaps executed before.
    """
    if identities is None or not any(identities):
        return [*(put_one(batch, commands) or _transact(batch, commands))]
    _enroll(batch, identities, enrolled)
    # Most batches are sent for the first time. The first two ways assume that, and cost less; if it
    # is not so, the server undoes them, and the third way asks what was executed.
    try:
        if (identity := _identity_of_call(commands, identities)) is not None:
            return _transact_call(batch, commands, identity)
        if not any(identity is not None and identity.repeated for identity in identities):
            return _transact_new(batch, commands, identities)
    except psycopg.DatabaseError as error:
        if error.sqlstate != SENT_BEFORE:
            raise
    return _transact_once(batch, commands, identities)


def _enroll(
    batch: PostgresBatch, identities: Sequence[Identity | None], enrolled: BoundedDict[str, None]
) -> None:
    """Make new senders known to the store, before the first command whose reply may be lost.

    Args:
        batch: calls the function.
        identities: of the commands.
        enrolled: senders that the store knows; the new ones are added.
    """
    present = [identity for identity in identities if identity is not None]
    new_numbers = {
        identity.sender: identity.number for identity in present if identity.sender not in enrolled
    }
    # Before a repetition it is too late: the store would seem to know that nothing was executed.
    is_repetition = any(identity.repeated for identity in present)
    if new_numbers and not is_repetition:
        batch.call("_enroll", texts(list(new_numbers)), integers(list(new_numbers.values())))
        enrolled.update(dict.fromkeys(new_numbers))


def _identity_of_call(
    commands: Sequence[Command], identities: Sequence[Identity | None]
) -> Mapping[str, Argument] | None:
    """Return one identity for all commands if one call of a function executes and remembers them.

    That is a single command whose function does so, or puts that were sent together; `place` then
    has, for each command, its place and how many messages it has, as in "0:2,1:1". `None`: they
    need several calls, or have perhaps been executed before.
    """
    first = identities[0]
    if first is None or first.repeated:
        return None
    if len(commands) == 1:
        return _as_arguments(first, str(first.place)) if remembers(commands[0]) else None
    if not only_puts(commands):
        return None
    places: list[str] = []
    for command, identity in zip(commands, identities, strict=True):
        if identity is None or (identity.sender, identity.number) != (first.sender, first.number):
            return None
        places.append(f"{identity.place}:{command.weight}")
    return _as_arguments(first, ",".join(places))


def _as_arguments(identity: Identity, places: str) -> Mapping[str, Argument]:
    """Return an identity as arguments of functions: see `PostgresBatch.identity`."""
    return {"sender": identity.sender, "number": identity.number, "place": places}


def _transact_call(
    batch: PostgresBatch, commands: Sequence[Command], identity: Mapping[str, Argument]
) -> list[ReplyOrError]:
    """Carry out commands in one call, which also remembers its answer.

    Args:
        batch: what calls functions; each call has `identity` as more arguments meanwhile.
        commands: to be carried out.
        identity: arguments that say who has sent the commands.

    Raises:
        psycopg.DatabaseError: its SQLSTATE is `SENT_BEFORE`: the batch was executed before, at
            least in part.
    """
    batch.identity = identity
    try:
        return [*(put_one(batch, commands) or _transact(batch, commands))]
    finally:
        batch.identity = NO_IDENTITY


def _transact_new(
    batch: PostgresBatch, commands: Sequence[Command], identities: Sequence[Identity | None]
) -> list[ReplyOrError]:
    """Carry out commands that are sent for the first time, and remember their answers.

    Raises:
        psycopg.DatabaseError: its SQLSTATE is `SENT_BEFORE`: a batch was executed before, at least
            in part.
    """
    remembered = Remembered(batch, identities)
    with batch.call.transaction():
        remembered.begin()
        new_replies = _carry_out(batch, commands)
        for command, identity, reply in zip(commands, identities, new_replies, strict=True):
            remembered.add(command, identity, reply)
        remembered.store()
    return [*new_replies]


def _transact_once(
    batch: PostgresBatch, commands: Sequence[Command], identities: Sequence[Identity | None]
) -> list[ReplyOrError]:
    """Carry out those commands that were not executed before; the others get their old replies."""
    remembered = Remembered(batch, identities)
    with batch.call.transaction():
        remembered.recall()
        answers = list(map(remembered.answer, commands, identities))
        new_places = [place for place, answer in enumerate(answers) if answer is None]
        if new_places:
            new_replies = _carry_out(batch, [commands[place] for place in new_places])
            for place, reply in zip(new_places, new_replies, strict=True):
                answers[place] = reply
                remembered.add(commands[place], identities[place], reply)
            remembered.store()
    return [answer for answer in answers if answer is not None]


def _transact(batch: PostgresBatch, commands: Sequence[Command]) -> list[Reply]:
    """Carry out commands in a transaction: a single call is one."""
    with nullcontext() if is_one_call(commands) else batch.call.transaction():
        return _carry_out(batch, commands)


def _carry_out(batch: PostgresBatch, commands: Sequence[Command]) -> list[Reply]:
    """Carry out commands. First lock what several need, in one order: else they could deadlock."""
    if len(commands) > 1:
        # In each batch before limits: see `_lock_turns` in schema/functions/3_limits.sql.
        _lock_ids(batch, commands)
    claimed_queues = {command.queue for command in commands if isinstance(command, Claim)}
    limited_queues = claimed_queues & batch.floors.limited  # the last claim there met limits
    if len(limited_queues) > 1:
        batch.call.start("_lock_turns", texts(list(limited_queues)))
    return replies(batch, commands)


def _lock_ids(batch: PostgresBatch, commands: Sequence[Command]) -> None:
    """Lock the messages that several commands name, in one order, before the first changes them.

    Else two processes whose callers change the same messages would deadlock. Puts that are one call
    lock in that order by themselves.
    """
    if only_puts(commands):
        return
    queues_and_ids = {
        (command.queue, id)
        for command in commands
        if not command.only_reads
        for id in getattr(command, "ids", None) or ()
    }
    queues_and_ids |= {
        (put.queue, item.id) for put in commands if isinstance(put, Put) for item in put.items
    }
    has_claims = any(isinstance(command, Claim) for command in commands)
    if len(queues_and_ids) == 1 and not has_claims:
        return  # it is the only thing to wait for
    for queue, group in groupby(sorted(queues_and_ids), itemgetter(0)):
        batch.call.start("_lock_ids", queue, texts([id for _, id in group]))
