"""Commands on their way: to the server that has their slot, and again if they were lost."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bide.engines.redis.calls import ShardMismatch
from bide.engines.redis.connection import Connection, Lost, is_away, pack
from bide.engines.redis.faults import Refusal, has_run, passes, translate
from bide.engines.redis.layout import Arg
from bide.engines.redis.nodes import Nodes
from bide.engines.redis.sentinel import Address
from bide.engines.redis.settings import Settings, shown_address
from bide.model.errors import OutcomeUnknown, StoreError, StoreReadOnly, StoreUnavailable

BACK_MS = 300
"""Milliseconds, at most, in which replicas that were missing have to show that they are back."""

_log = logging.getLogger("bide.redis")


@dataclass(slots=True)
class Sent:
    """One command on its way."""

    slot: int
    words: tuple[Arg, ...]
    writes: bool
    hurried: bool
    """It does not wait for a server that is away."""
    answer: Any = None
    again: bool = False
    """It may have arrived before."""
    asking: Address | None = None
    """Which server to ask once, though the slot is not its own yet."""
    away: bool = False
    """There is no connection to the server that has it."""
    done: bool = False
    tries: int = 0
    mark: int = 0
    """The place in `words` of the mark of a call of a script."""

    def packed(self) -> bytes:
        """Return the command as it goes to the server; a second try says so before its mark."""
        words = self.words
        if self.again and self.mark:
            words = (*words[: self.mark], b"?%d" % int(words[self.mark]), *words[self.mark + 1 :])
        return pack(words)


class Carrier:
    """Carries commands to the servers of a store, until they are done or given up.

    Args:
        settings: what the URL says.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.nodes = Nodes(settings)
        self._replaceable = settings.sentinels is not None or settings.cluster is not None
        """Whether a server that is a replica was the master, or another one is it now."""
        self._short: set[Address] = set()
        self._given_up: set[int] = set()
        self.on_loss: Callable[[], None] | None = None
        """Called when a connection was lost, or another server has a slot."""

    def carry(self, sent: Sequence[Sent]) -> list[Any]:
        """Send to all servers at once, and again where the answer was lost or the server wrong.

        Returns:
            The answer to each, errors as values.
        """
        deadline: float | None = None
        pause = 0.005
        while True:
            self._attempt([each for each in sent if not each.done])
            left = _left(sent)
            if not left:
                return [self._answer(each) for each in sent]
            now = time.monotonic()
            deadline = deadline or now + self._settings.reconnect
            moved = self._refresh()
            for each in left:
                each.tries += 1
                if now > deadline:
                    self._given_up.add(each.slot)
                each.done = now > deadline or (
                    self._is_hopeless(each) and (each.tries > 2 or (each.away and not moved))
                )
            if not moved and any(not each.done and each.asking is None for each in left):
                time.sleep(pause)
                pause = min(2 * pause, 0.2)

    def _attempt(self, left: Sequence[Sent]) -> None:
        """Send commands to the servers that have them, and take in what those answer."""
        groups: dict[Address, list[Sent]] = {}
        for each, address in zip(left, self._places(left), strict=True):
            if address is not None:
                groups.setdefault(address, []).append(each)
        posted = []
        for address, group in groups.items():
            connection = self._connect(address, group)
            if connection is not None and (due := self._post(connection, group)):
                posted.append((connection, due))
        reached = [self._receive(*posting) for posting in posted]
        for (connection, due), replicas in zip(posted, reached, strict=True):
            if replicas is not None:  # all has been read: connections can be used
                self._confirm(connection.address, due, replicas)

    def _places(self, sent: Sequence[Sent]) -> list[Address | None]:
        """Return which server to ask for each, or note why there is none.

        If no sentinel names the master, none has one: each would ask the sentinels again.
        """
        places: list[Address | None] = []
        try:
            for each in sent:
                places.append(each.asking or self.nodes.owner(each.slot))
                if places[-1] is None:
                    each.answer = StoreUnavailable(
                        f"{self._settings.shown}: no node of the cluster has slot {each.slot}: see "
                        "`redis-cli --cluster check`"
                    )
        except StoreError as error:
            self.nodes.doubt()
            _fail(sent, error)
            return [None] * len(sent)
        return places

    def _connect(self, address: Address, group: Sequence[Sent]) -> Connection | None:
        """Return a connection, or note why there is none."""
        try:
            connection = self.nodes.connection(address)
        except StoreError as error:
            _fail(group, error)
            return None
        writes = address in self._short and any(each.writes for each in group)
        if writes and (missing := self._missing(connection)):
            for each in group:
                if each.writes and not each.again:
                    each.answer, each.done = missing, True
        return connection

    def _post(self, connection: Connection, group: Sequence[Sent]) -> list[Sent | None]:
        """Send what a server is asked; return whose answers are due, `None` for ours.

        The last one is that to WAIT, if anything has to reach replicas.
        """
        due: list[Sent | None] = []
        packed = []
        for each in group:
            if each.done:
                continue
            if each.asking is not None:
                packed.append(pack(("ASKING",)))
                due.append(None)
            packed.append(each.packed())
            due.append(each)
        wanted = self._settings.wait_replicas
        if wanted > 0 and any(each is not None and each.writes for each in due):
            timeout = self._settings.timeout * 1000
            longest = timeout - max(150, timeout / 10)  # else the server would seem to be silent
            packed.append(pack(("WAIT", wanted, max(1, int(longest)))))
            due.append(None)
        try:
            connection.post(b"".join(packed))
        except Lost as lost:
            self.lose(connection, due, lost)
            return []
        return due

    def _receive(self, connection: Connection, due: Sequence[Sent | None]) -> Any:
        """Read a server's answers; return the number of replicas that have it, if requested."""
        try:
            told = connection.receive(len(due))
        except Lost as lost:
            self.lose(connection, due, lost)
            return None
        self.hear(connection, due, told)
        return told[-1] if due[-1] is None else None

    def hear(self, connection: Connection, due: Sequence[Sent | None], told: Sequence[Any]) -> None:
        """Take in what a server has answered."""
        for each, answer in zip(due, told, strict=True):
            if each is not None:
                each.answer, each.asking = answer, None
                self._judge(each, connection)

    def _judge(self, each: Sent, connection: Connection) -> None:
        """See whether an answer is one, or says where or when to ask again."""
        answer = each.answer
        if isinstance(answer, Refusal) and answer.word == "NOFUNCTION":
            self.nodes.lose(connection.address)  # the next connection loads the library
            each.answer = answer = connection.refusal or answer
        if not isinstance(answer, Refusal):
            each.done = True
            self._replaceable = self._replaceable or each.writes
            self._given_up.discard(each.slot)
            return
        word, text = answer.word, str(answer)
        _log.debug("slot %d: %s", each.slot, text)
        if word in ("MOVED", "ASK") and self._settings.cluster is not None:
            host, _, port = text.split(" ")[2].rpartition(":")
            to = (host or connection.address[0], int(port))
            if word == "MOVED":
                self.nodes.moved(each.slot, to)
            else:
                each.asking = to
        elif word == "READONLY" and self._replaceable:
            self.nodes.lose(connection.address)
        elif word not in ("TRYAGAIN", "CLUSTERDOWN", "NOFUNCTION") and not passes(answer):
            each.done = True
            each.again = each.again and not has_run(answer)  # a script would report its first run
            self._given_up.discard(each.slot)
            if "The user executing the script" in text:  # a function ended halfway: the next
                self.nodes.lose(connection.address)  # connection sees which rights are missing

    def lose(self, connection: Connection, due: Iterable[Sent | None], lost: Lost) -> None:
        """Note that all that is due was lost with the connection, and is to be sent again."""
        self.nodes.lose(connection.address)
        error = StoreUnavailable(
            f"{self._settings.shown}: the connection to {shown_address(connection.address)} was "
            f"lost ({lost}); is the server running, and has it a replica to take its place?"
        )
        error.__cause__ = lost.__cause__
        for each in due:
            if each is not None:
                each.answer, each.again, each.asking, each.away = error, True, None, False
        if self.on_loss is not None:
            self.on_loss()

    def _refresh(self) -> bool:
        """Find out which server has what; return whether that has changed."""
        try:
            changed = self.nodes.refresh()
        except StoreError as error:
            _log.debug("no server tells which one has which slot (%s)", error)
            return False
        if changed and self.on_loss is not None:
            self.on_loss()
        return changed

    # Giving up.

    def _is_hopeless(self, each: Sent) -> bool:
        """Tell whether nothing can do it now, and it is not to wait."""
        if not each.hurried and each.slot not in self._given_up:
            return False
        if not isinstance(each.answer, Refusal):
            return True
        return each.answer.word in ("CLUSTERDOWN", "TRYAGAIN") or passes(each.answer)

    def _answer(self, each: Sent) -> Any:
        """Return an answer, or the error of a command that was not executed, or perhaps not."""
        answer = each.answer
        if isinstance(answer, Refusal):
            if answer.word == "SHARDS":
                answer = ShardMismatch(int(str(answer).split(" ")[1]))
            else:
                answer = translate(answer, self._settings.shown)
            answer.__cause__ = each.answer
        maybe = each.again and each.writes and isinstance(answer, StoreError)
        if maybe and not isinstance(answer, OutcomeUnknown):
            cause = answer
            answer = OutcomeUnknown(
                f"{self._settings.shown}: the connection was lost after the command was sent, and "
                f"it may have been carried out or not ({cause})"
            )
            answer.__cause__ = cause
        return answer

    # Replicas.

    def _confirm(self, address: Address, due: Iterable[Sent | None], reached: Any) -> None:
        """Check that enough replicas have the changes."""
        wanted = self._settings.wait_replicas
        if isinstance(reached, int) and reached >= wanted:
            return
        changed = [
            each for each in due
            if each and each.writes and each.done and not isinstance(each.answer, Exception)
        ]  # fmt: skip
        if changed:
            self._refresh()
        # One that became a replica no longer waits for its own: another one is the master.
        demoted = isinstance(reached, Refusal) and reached.word == "UNBLOCKED"
        count = reached if isinstance(reached, int) else f"0 ({reached})"
        for each, place in zip(changed, self._places(changed), strict=True):
            each.answer = OutcomeUnknown(
                f"{self._settings.shown}: the server has it, but only {count} of the {wanted} "
                f"replicas that wait_replicas asks for confirmed it in time "
                f"({shown_address(address)}); a fail-over now may lose it"
            )
            if demoted or place != address:  # another server has taken its place meanwhile
                each.done, each.again = False, True
            else:
                self._short.add(address)

    def _missing(self, connection: Connection) -> StoreError | None:
        """Return what to say if replicas that were missing are not back; nothing is done then."""
        wanted, address = self._settings.wait_replicas, connection.address
        longest = int(min(BACK_MS, self._settings.timeout * 500))  # else the server seems silent
        try:  # they are to have all that the server had when it was asked last on this connection
            reached = connection.ask("WAIT", wanted, longest)
        except Lost:
            return None  # the calls themselves find out
        if not isinstance(reached, int) or reached >= wanted:
            self._short.discard(address)
            return None
        if self._refresh():  # another server is the master: the calls find out
            return None
        return StoreReadOnly(
            f"{self._settings.shown}: only {reached} of the {wanted} replicas that wait_replicas "
            f"asks for keep up with {shown_address(address)}, so nothing was changed; bring them "
            "back, or ask for fewer"
        )


def _fail(group: Iterable[Sent], error: StoreError) -> None:
    """Note that there is no connection to a server."""
    for each in group:
        each.answer, each.asking, each.away = error, None, True
        each.done = not is_away(error)


def _left(sent: Sequence[Sent]) -> list[Sent]:
    """Return commands that are not done; give up refused ones that others have overtaken."""
    left: list[Sent] = []
    done_behind: set[int] = set()
    for each in reversed(sent):
        each.done = each.done or (each.slot in done_behind and passes(each.answer))
        if each.done:
            done_behind.add(each.slot)
        else:
            left.append(each)
    return left
