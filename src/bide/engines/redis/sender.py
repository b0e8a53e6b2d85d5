"""Calls of scripts on their way: sent again where that is safe, for as long as it may help."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions as raised

from bide.engines.redis.faults import passes, translate
from bide.engines.redis.keys import LONE, probe_key, script_keys
from bide.engines.redis.link import Link, Lost, pack, seek
from bide.engines.redis.marks import Marks
from bide.engines.redis.records import Arg
from bide.engines.redis.scripts import FETCHES, Fetch, Script, load_all
from bide.engines.redis.settings import Settings
from bide.engines.redis.verbs import Call
from bide.model.errors import OutcomeUnknown, StoreError, StoreReadOnly, StoreUnavailable

__all__ = ["Answer", "Sender"]

FIRST = 2.0
"""For how many seconds a server is sought at most that has not answered yet: it may be starting."""

PROBE_MS = 500
"""How long replicas that were missing have to show that they are back."""

Answer = Any
"""What a script returned, or an error as a value."""


class Sender:
    """Sends pipelines of calls to one server, whatever becomes of connections and servers.

    Args:
        settings: where the server is.
        lane: the name of who calls.

    Raises:
        StoreError: the server cannot be reached, or is not what bide needs.
    """

    def __init__(self, settings: Settings, lane: str) -> None:
        self._settings = settings
        self._scripts: dict[str, Script | Fetch] = {**load_all(), **FETCHES}
        self._lane = lane
        self._keys: dict[tuple[str, str], list[bytes]] = {}
        self._marks = Marks(settings.reconnect)
        self._wrote = self._short = self._left = False
        self._renewed: Callable[[str], None] | None = None
        self._link: Link | None = None
        self._link = seek(settings, time.monotonic() + min(settings.reconnect, FIRST))
        if settings.sentinels is not None:
            settings.sentinels.watch.add(self._move)

    def close(self) -> None:
        """Close the connection."""
        if self._settings.sentinels is not None:
            self._settings.sentinels.watch.remove(self._move)
        if self._link is not None:
            self._link.close()
            self._link = None

    def listen(self, renewed: Callable[[str], None]) -> None:
        """From now on the lane can be told of changes; call `renewed` with each new place."""
        self._renewed = renewed

    def _move(self, masters: frozenset[str]) -> None:
        """Look for the master anew before anything else is sent, unless it is one of these.

        Called by another thread.
        """
        link = self._link
        if link is not None and link.place not in masters:
            self._left = True

    def plain(self, *command: Any) -> Any:
        """Send a command that may be sent twice, and return what comes back.

        Raises:
            StoreError: the server cannot be reached, or refuses it.
        """
        deadline = time.monotonic() + self._settings.reconnect
        while True:
            link = self._connected(deadline)
            try:
                answer = link.ask(*command)
            except Lost as lost:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"{self._settings.shown}: {lost.cause}") from lost
                continue
            if self._passes(link, answer) and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            if isinstance(answer, raised.RedisError):
                raise translate(answer, self._settings.shown) from answer
            return answer

    def send(
        self, calls: Sequence[Call], now: int | None, before: Sequence[bytes] = ()
    ) -> list[Answer]:
        """Send calls in one go, and return what each answered, errors as values.

        A script that changes something leaves its answer under the mark of its call. When it is
        sent again after a connection was lost, it finds the answer there instead of doing it twice.

        Args:
            calls: what is to be called, in this order.
            now: the moment to go by; `None`: the server's.
            before: commands to send in front of them; their answers count for nothing.
        """
        first = self._marks.reserve(len(calls))
        link = self._link
        if len(calls) > 1 or before or self._settings.wait_replicas or self._left:
            return self._send(calls, first, now, before)
        if link is None or not link.open:
            return self._send(calls, first, now)
        # One call where all is well, with less ado: this stands on the way of each single put.
        try:
            command = self._command(calls[0], first, 0, now)
            answer = link.exchange_one(command, soon=calls[0].script in LONE)
        except Lost as lost:
            return self._send(calls, first, now, lost=lost)
        if not isinstance(answer, Exception):
            self._wrote = self._wrote or self._scripts[calls[0].script].writes
        elif self._to_repeat(link, [0], (answer,)):
            return self._send(calls, first, now)
        return [answer]

    def _send(
        self,
        calls: Sequence[Call],
        first: int,
        now: int | None,
        before: Sequence[bytes] = (),
        lost: Lost | None = None,
    ) -> list[Answer]:
        """Send calls, of which the first has this number.

        `lost`: they were on their way when the connection was lost.
        """
        writes = [self._scripts[call.script].writes for call in calls]
        answers: list[Answer] = [None] * len(calls)
        todo = list(range(len(calls)))
        wait: list[bytes] = []
        if self._settings.wait_replicas and any(writes):
            wait = [self._wait(self._settings.timeout * 1000)]
            if self._short and (missing := self._missing(calls[writes.index(True)].queue)):
                answers = [missing if each else None for each in writes]
                todo = [i for i in todo if not writes[i]]
                wait = []
        again, unsure, deadline = False, None, None
        if lost is not None:
            again, unsure = True, self._unknown(lost)
            deadline = time.monotonic() + self._settings.reconnect
            answers = [unsure for _ in calls]
        pause = 0.01
        while todo:
            packed = [pack(*self._command(calls[i], first + i, i, now, again=again)) for i in todo]
            try:
                link = self._connected(deadline)
            except StoreError as error:
                if unsure is not None:
                    unsure = OutcomeUnknown(f"{unsure}, and no other was found: {error}")
                for i in todo:
                    answers[i] = unsure if unsure and writes[i] else error
                break
            try:
                told = link.exchange([*before, *packed, *wait])[len(before) :]
                if wait and self._has_moved(link, told[-1]):
                    raise Lost(raised.ConnectionError(f"{link.place} is no longer the master"), [])
            except Lost as lost:
                # What a server has said that has died since, and no replica has, is not so.
                told = [] if wait else lost.answers[len(before) :][: len(todo)]
                for i, answer in zip(todo, told, strict=False):
                    answers[i] = answer
                todo = todo[len(told) :]
                again, unsure = True, self._unknown(lost)
                for i in todo:
                    answers[i] = unsure
            else:
                for i, answer in zip(todo, told, strict=False):
                    answers[i] = answer
                if wait:
                    self._confirm(told[-1], answers, [i for i in todo if writes[i]])
                self._wrote = self._wrote or any(
                    writes[i] and not isinstance(answers[i], Exception) for i in todo
                )
                todo = self._to_repeat(link, todo, answers)
            if todo and deadline is not None:
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
            deadline = deadline or time.monotonic() + self._settings.reconnect
            if time.monotonic() > deadline:
                break
        return answers

    def _unknown(self, lost: Lost) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self._settings.shown}: the connection was lost after the command was sent, and it "
            f"may have been carried out or not ({lost.cause})"
        )

    def _command(
        self, call: Call, number: int, slot: int, now: int | None, *, again: bool = False
    ) -> tuple[Arg, ...]:
        label, script = call.label, self._scripts[call.script]
        keys = self._keys.get((call.script, label))
        if keys is None:
            keys = script_keys(call.script, call.queue, self._lane, call.shard)
            self._keys[call.script, label] = keys
        mark = self._marks.text(number, slot, label, writes=script.writes, again=again)
        lane = self._lane if self._renewed else ""
        return script.command(keys, "" if now is None else now, mark, lane, label, *call.args)

    def _connected(self, deadline: float | None) -> Link:
        """Return the connection, or a new one where it was lost, sought until the deadline."""
        if self._left and self._link is not None:
            self._link.close()
            deadline = deadline or time.monotonic() + self._settings.reconnect
        self._left = False
        if self._link is None or not self._link.open:
            self._link = seek(self._settings, deadline, self._link)
            if self._renewed is not None:
                self._renewed(self._link.place)
        return self._link

    def _to_repeat(self, link: Link, sent: list[int], answers: Sequence[Answer]) -> list[int]:
        """Return which of the calls were refused for a reason that passes, and help it pass."""
        if not any(isinstance(answers[i], Exception) for i in sent):
            return []
        forgotten = [i for i in sent if isinstance(answers[i], raised.NoScriptError)]
        if forgotten:
            with suppress(Lost):
                link.reload()
        redo = [i for i in sent if i in forgotten or self._passes(link, answers[i])]
        # What came after them in the batch has been done already: they would change places.
        return redo if redo == sent[len(sent) - len(redo) :] else forgotten

    def _passes(self, link: Link, answer: Answer) -> bool:
        """Tell whether it may help to ask again soon; if not here, then by a new connection."""
        if isinstance(answer, raised.ReadOnlyError):
            if not self._wrote and self._settings.sentinels is None:  # it never was the master
                return False
            link.close()
            return True
        return passes(answer)

    # Replicas.

    def _wait(self, milliseconds: float) -> bytes:
        """Return the command to wait for replicas, for less than makes the server seem silent."""
        timeout = self._settings.timeout * 1000
        longest = timeout - max(150, timeout / 10)  # the server looks at the time now and then
        return pack("WAIT", self._settings.wait_replicas, max(1, int(min(milliseconds, longest))))

    def _confirm(self, reached: Answer, answers: list[Answer], changed: Sequence[int]) -> None:
        """See that enough replicas have what was changed."""
        wanted = self._settings.wait_replicas
        if isinstance(reached, int) and reached >= wanted:
            return
        if isinstance(reached, Exception):
            error: StoreError = OutcomeUnknown(
                f"{self._settings.shown}: the server has it, but does not say whether replicas "
                f"do, which wait_replicas asks for ({reached})"
            )
        else:
            self._short = True
            error = OutcomeUnknown(
                f"{self._settings.shown}: the server has it, but only {reached} of the {wanted} "
                "replicas that wait_replicas asks for confirmed it in time; a fail-over now may "
                "lose it"
            )
        for i in changed:
            if not isinstance(answers[i], Exception):
                answers[i] = error

    def _missing(self, queue: str) -> StoreError | None:
        """Return what to say if replicas that were missing are not back; nothing is done then."""
        wanted = self._settings.wait_replicas
        probe = [pack("SET", probe_key(queue), "", "PX", 1000), self._wait(PROBE_MS)]
        deadline = time.monotonic() + self._settings.reconnect
        while True:
            try:
                _, reached = self._connected(deadline).exchange(probe)
                break
            except StoreError as error:
                return error
            except Lost as lost:
                if time.monotonic() > deadline:
                    return StoreUnavailable(f"{self._settings.shown}: {lost.cause}")
        if (
            not isinstance(reached, int)
            or reached >= wanted
            or self._has_moved(self._link, reached)
        ):
            self._short = False
            return None
        return StoreReadOnly(
            f"{self._settings.shown}: only {reached} of the {wanted} replicas that wait_replicas "
            "asks for keep up with the server, so nothing was changed; bring them back, or ask "
            "for fewer"
        )

    def _has_moved(self, link: Link | None, reached: Answer) -> bool:
        """Tell whether replicas are missing since another server is the master now."""
        sentinels = self._settings.sentinels
        if link is None or sentinels is None or not isinstance(reached, int):
            return False
        if reached >= self._settings.wait_replicas:
            return False
        try:
            host, port = sentinels.master()
        except StoreUnavailable:
            return False
        moved = f"{host}:{port}" != link.place
        if moved:
            link.close()
        return moved
