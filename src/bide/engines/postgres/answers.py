"""What the store remembers of batches: replies to JSON, and back; see `bide.engines.repetition`.

The answers of a batch are a JSON object: by the place of a command, its reply. Outcomes are lists
of lists, which begin with `[`; other replies are objects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from bide.engines.constants import MAX_KEPT
from bide.engines.port import Identity
from bide.engines.postgres.arrays import booleans, integers, texts
from bide.engines.postgres.batch import PostgresBatch
from bide.engines.postgres.calls import change_outcomes
from bide.engines.postgres.constants import OUTCOME_STATES
from bide.engines.postgres.putting import put_outcomes, stored
from bide.engines.postgres.reading import still_leased
from bide.engines.repetition import Answers as SenderAnswers
from bide.engines.repetition import NotKept, recall
from bide.model import commands as cmd
from bide.model.errors import OutcomeUnknown
from bide.model.replies import (
    Affected,
    Claimed,
    Deleted,
    Ends,
    Outcome,
    Outcomes,
    QueueSettings,
    Reply,
)

SENT_BEFORE = "BD001"
"""The code of the error if a batch, or a later one of its sender, was executed before."""


class OutcomeRow(NamedTuple):
    """An outcome as functions of the schema answer it: see `_outcome` there."""

    number: int
    """The place of the message in the command, from 1; 0 for the last row, of the command."""
    done: bool
    state: int | None
    due: int | None
    until: int | None
    holder: str | None
    successor: int | None


class KeptClaim(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A claim: its reply without the messages, which are read again."""

    until: int
    """When its leases expire: the rank of the messages that it still holds."""
    reply: Claimed
    ids: list[str] = []
    """In the order of the reply, if that is another than that of their ranks."""


_decode_rows = msgspec.json.Decoder(list[OutcomeRow]).decode
_decode_claim = msgspec.json.Decoder(KeptClaim).decode
_decode_other = msgspec.json.Decoder(Outcomes | Affected | QueueSettings | Deleted | NotKept).decode
_decode_answers = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


class Remembered:
    """What the store remembers of the batches that some commands belong to.

    Within a transaction: senders of the same batches wait for its end.

    Args:
        batch: calls the functions.
        identities: one for each command; those of a sender are of one batch.
    """

    def __init__(self, batch: PostgresBatch, identities: Sequence[Identity | None]) -> None:
        self._batch = batch
        self._numbers: dict[str, int] = {}
        """By sender: the number of its batch."""
        self._repeated: dict[str, bool] = {}
        """By sender: whether one of its commands is repeated."""
        # Sorted, so that transactions that add rows for the same senders do not deadlock.
        for identity in sorted(filter(None, identities), key=lambda identity: identity.sender):
            sender = identity.sender
            self._numbers[sender] = identity.number
            self._repeated[sender] = self._repeated.get(sender, False) or identity.repeated
        self._refused: dict[str, str | None] = {}
        """By sender: why no command may be executed now, "unknown" or "late"; `None`: they may."""
        self._answers: dict[str, dict[int, Any]] = {sender: {} for sender in self._numbers}
        """By sender, and by the place of a command in its batch: what is kept of its reply."""

    def begin(self) -> None:
        """Add the rows of batches that are sent for the first time, with the next call.

        That raises a `psycopg.DatabaseError` with `SENT_BEFORE` if one was executed before.
        """
        self._batch.call.start("_begin_batches", *self._arguments())

    def recall(self) -> None:
        """Ask what is remembered of batches that may have been executed, in whole or in part."""
        repeated = booleans(list(self._repeated.values()))
        rows = self._batch.call("_recall", *self._arguments(), repeated)
        for sender, row in zip(self._numbers, rows, strict=True):
            self._refused[sender] = row.refused
            self._answers[sender] = _by_place(row.answers or "{}")

    def _arguments(self) -> tuple[bytes, bytes]:
        """Return the senders and the numbers of their batches, as arrays."""
        return texts(list(self._numbers)), integers(list(self._numbers.values()))

    def answer(
        self, command: cmd.Command, identity: Identity | None
    ) -> Reply | OutcomeUnknown | None:
        """Return the answer of a command that was executed; `None`: it is to be executed.

        An error if it was perhaps executed, or must not be executed any more.
        """
        if identity is None:
            return None
        kept = self._answers[identity.sender].get(identity.place)
        if kept is not None:
            return self._restored(command, identity, kept)
        if (refused := self._refused[identity.sender]) is None:
            return None
        # `recall` has the errors: of a later batch, and of a sender that is not known.
        later = SenderAnswers(identity.number + 1, {}) if refused == "late" else None
        try:
            recall(msgspec.structs.replace(identity, repeated=True), later)
        except OutcomeUnknown as unknown:
            return unknown
        raise AssertionError  # not reached: it refuses both

    def _restored(
        self, command: Any, identity: Identity, kept: msgspec.Raw
    ) -> Reply | OutcomeUnknown:
        """Return the reply that is remembered of a command; an error if it was too large."""
        if isinstance(command, cmd.Claim):
            return self._claimed(command, _decode_claim(kept))
        if _is_rows(kept):
            rows = _decode_rows(kept)
            if isinstance(command, cmd.Put):
                return Outcomes.of(put_outcomes(command.items, rows))
            return _outcomes(command, rows)
        reply: Outcomes | Affected | QueueSettings | Deleted | NotKept = _decode_other(kept)
        if not isinstance(reply, NotKept):
            return reply
        try:
            recall(identity, SenderAnswers(identity.number, {identity.place: reply}))
        except OutcomeUnknown as unknown:
            return unknown
        raise AssertionError  # not reached: it refuses what was not kept

    def _claimed(self, command: cmd.Claim, kept: KeptClaim) -> Reply:
        """Return the reply of a claim, with those messages that it still holds."""
        messages = still_leased(self._batch, command, kept.reply.token, kept.until)
        if kept.ids:
            places = {id: place for place, id in enumerate(kept.ids)}
            messages.sort(key=lambda message: places[message.id])
        return msgspec.structs.replace(kept.reply, messages=messages)

    def add(self, command: cmd.Command, identity: Identity | None, reply: Reply) -> None:
        """Note the reply of a command that was executed.

        What a waiting caller asks again under the same identity is left out, as in `remember` of
        `bide.engines.repetition`.
        """
        empty = isinstance(reply, Claimed) and not reply.messages
        if identity is not None and not empty and not isinstance(reply, Ends):
            self._answers[identity.sender][identity.place] = _kept(self._batch, command, reply)

    def store(self) -> None:
        """Store what was added, with the next call."""
        answers: list[str | None] = []
        for kept_by_place in self._answers.values():
            text = _encode(kept_by_place).decode()
            if len(text) > MAX_KEPT:  # then a repetition gets an error
                text = _encode(dict.fromkeys(kept_by_place, NotKept())).decode()
            answers.append(text)
        self._batch.call.start("_keep", *self._arguments(), texts(answers))


def _is_rows(kept: msgspec.Raw) -> bool:
    """Whether an answer is a list of `OutcomeRow`."""
    return bytes(kept)[:1] == b"["


def _by_place(text: str) -> dict[int, Any]:
    """Return answers by the places of their commands.

    The answer of puts that were joined in one call is shared out among them: their places are
    written with their numbers of messages, such as "0:1,1:5".
    """
    answers: dict[int, Any] = {}
    for places, kept in _decode_answers(text).items():
        if places.isdecimal():
            answers[int(places)] = kept
            continue
        rows = _decode_rows(kept) if _is_rows(kept) else []
        messages_before = 0
        for part in places.split(","):
            place, _, count = part.partition(":")
            messages_after = messages_before + int(count)
            part_rows = [
                row._replace(number=row.number - messages_before)
                for row in rows
                if messages_before < row.number <= messages_after
            ]
            if rows:
                part_rows.append(rows[-1])  # the time of the put, which counts for all of them
                answers[int(place)] = msgspec.Raw(_encode(part_rows))
            else:  # it was too large
                answers[int(place)] = kept
            messages_before = messages_after
    return answers


def _kept(batch: PostgresBatch, command: Any, reply: Any) -> Any:
    """Return what is remembered of a reply: what cannot be told from the command."""
    if isinstance(reply, Claimed):
        ids = [message.id for message in reply.messages]
        return KeptClaim(reply.messages[0].until or 0, _without_messages(reply), ids)
    if not isinstance(reply, Outcomes) or getattr(command, "origin", None) is not None:
        return reply
    rows = [_row(number, outcome) for number, outcome in enumerate(reply.outcomes, 1)]
    if isinstance(command, cmd.Put):
        put_at = batch.moments.get(command.queue, 0)
        usual_outcomes = [stored(item, put_at) for item in command.items]
        rows = [
            row
            for row, outcome, usual in zip(rows, reply.outcomes, usual_outcomes, strict=True)
            if outcome != usual
        ]
        return [*rows, _row(0, Outcome("", False, None, put_at))]
    rows = [
        row
        for row, outcome in zip(rows, reply.outcomes, strict=True)
        if outcome.done or outcome.state
    ]
    if reply.wake is not None and _outcomes(command, rows).wake != reply.wake:
        rows.append(_row(0, Outcome("", False, None, reply.wake)))
    return rows


def _without_messages(reply: Claimed) -> Claimed:
    return msgspec.structs.replace(reply, messages=[])


def _row(number: int, outcome: Outcome) -> OutcomeRow:
    """Return an outcome as a row, as the functions of the schema answer it."""
    state = None if outcome.state is None else OUTCOME_STATES.index(outcome.state)
    return OutcomeRow(
        number, outcome.done, state, outcome.due, outcome.until, outcome.holder, outcome.successor
    )


def _outcomes(command: Any, rows: Sequence[OutcomeRow]) -> Outcomes:
    """Return the reply of a change by id or lease, of the rows that are remembered."""
    ids = [lease.id for lease in getattr(command, "leases", ())] + getattr(command, "ids", [])
    if isinstance(command, cmd.Ack) and not rows:  # as the function answers if all is done
        return Outcomes([Outcome(id, True) for id in ids])
    return change_outcomes(ids, list(rows))
