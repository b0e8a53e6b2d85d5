"""What a store remembers of senders, in one transaction; see `bide.engines.repetition`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from bide.engines.constants import MAX_KEPT, MAX_SENDERS, SENDER_KEEP
from bide.engines.execution.commands import answer_again
from bide.engines.port import Identity
from bide.engines.repetition import Answers, Kept, NotKept, recall, remember
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import SQL
from bide.model.commands import Command
from bide.model.errors import OutcomeUnknown
from bide.model.replies import Reply

RENEWED = 60_000
"""After so many milliseconds the time of a sender is written again. Not with each command: an index
has it, and would have to be written, too."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[int, Kept]).decode


@dataclass(eq=False)
class Senders:
    """The senders of the commands of a transaction.

    Args:
        run: runs a statement in the transaction.
        now: its time in milliseconds.
    """

    run: Callable[..., Any]
    now: int
    _answers: dict[str, Answers | None] = field(default_factory=dict, init=False)
    """What is remembered of each sender, its commands of this transaction included."""
    _rows: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """The sequence number and the time (Unix milliseconds) of the rows of senders that were known
    before, by sender."""
    _changed: dict[str, Identity] = field(default_factory=dict, init=False)
    """The last command of each sender of which something new is remembered."""

    def recall(self, identity: Identity) -> Kept | None:
        """Return the remembered answer of a command; `None`: it is new, and must be executed now.

        With a new number, the sender has given up on the commands of earlier ones: their answers
        are forgotten.

        Raises:
            OutcomeUnknown: it must not be executed, and its answer is not known.
        """
        sender = identity.sender
        if sender not in self._answers:
            self._answers[sender] = self._load(identity)
        answers = self._answers[sender]
        kept = recall(identity, answers)
        if answers is None or identity.number > answers.number:
            self._answers[sender] = Answers(identity.number, {})
        return kept

    def _load(self, identity: Identity) -> Answers | None:
        """Read what the store remembers of a sender; `None`: nothing."""
        row = self.run(SQL.sender, identity.owner_and_name).fetchone()
        if row is None:
            return None
        seq, number, answers, moment = row
        self._rows[identity.sender] = seq, moment
        return Answers(number, _decode(answers))

    def remember(self, identity: Identity, reply: Reply) -> None:
        """Remember the reply of a command that was executed."""
        earlier = self._answers[identity.sender]
        answers = remember(identity, reply, earlier)
        if answers is not earlier:
            self._answers[identity.sender] = answers
            self._changed[identity.sender] = identity

    def save(self) -> None:
        """Write what is new. For a new sender, forget those that are idle or too many."""
        for sender, identity in self._changed.items():
            answers = self._answers[sender]
            assert answers is not None
            if (row := self._rows.get(sender)) is not None:
                seq, moment = row
                self.run(SQL.update_sender, (answers.number, _bounded(answers), seq))
                if moment <= self.now - RENEWED:
                    self.run(SQL.renew_sender, (self.now, seq))
                continue
            self.run(SQL.forget_idle_senders, (self.now - SENDER_KEEP - RENEWED,))
            owner, name = identity.owner_and_name
            values = answers.number, self.now, _bounded(answers)
            self.run(SQL.add_sender, (owner, name, *values))
            self.run(SQL.forget_oldest_senders, (owner, MAX_SENDERS))


def _bounded(answers: Answers) -> bytes:
    """Return the answers of a batch as they are stored; without those that have no room.

    Of these it is only remembered that their commands were executed.
    """
    whole = _encode(answers.kept)
    if len(whole) <= MAX_KEPT:
        return whole
    kept, size = dict[int, Kept](), 0
    for place, answer in answers.kept.items():
        size += len(_encode(answer))
        kept[place] = answer if size <= MAX_KEPT else NotKept()
    return _encode(kept)


def carry_out_once(
    session: Session, commands: Sequence[Command], identities: Sequence[Identity | None]
) -> list[Reply | OutcomeUnknown]:
    """Execute commands; return the outcome of each.

    A command whose identity is remembered was executed before: it gets that answer. The other
    commands are gathered, so that many puts run as one. They are executed before a remembered
    answer is read, which may depend on them: of a claim, it has the messages that are still leased.
    """
    senders = Senders(session.run, session.now)
    outcomes: list[Reply | OutcomeUnknown | None] = [None] * len(commands)
    together: list[Command] = []  # to be executed
    gathered: dict[int, Identity | None] = {}  # by place: the identity of each of them
    gathered_keys: set[tuple[str, int, int]] = set()  # sender, number and place of each

    def execute_gathered() -> None:
        replies = session.carry_out_new(together)
        for (place, identity), reply in zip(gathered.items(), replies, strict=True):
            outcomes[place] = reply
            if identity is not None:
                senders.remember(identity, reply)
        together.clear()
        gathered.clear()
        gathered_keys.clear()

    for place, identity in enumerate(identities):
        if identity is not None:
            key = identity.sender, identity.number, identity.place
            if key in gathered_keys:  # it was sent twice, and both have come together
                execute_gathered()
            gathered_keys.add(key)
            try:
                kept = senders.recall(identity)
            except OutcomeUnknown as unknown:
                outcomes[place] = unknown
                continue
            if kept is not None:
                execute_gathered()
                outcomes[place] = answer_again(session, commands[place].queue, kept)
                continue
        together.append(commands[place])
        gathered[place] = identity
    execute_gathered()
    senders.save()
    return cast("list[Reply | OutcomeUnknown]", outcomes)
