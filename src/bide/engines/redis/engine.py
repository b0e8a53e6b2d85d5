"""The Redis engine: one queue for many machines, on a Redis or Valkey server."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions as raised

from bide.engines.port import Capabilities, Doorbell, PartlyDone
from bide.engines.redis.bell import ChannelBell
from bide.engines.redis.faults import translate
from bide.engines.redis.keys import KEYS, QUEUES, SLOTS, meta_key, shard_keys
from bide.engines.redis.link import Link, Lost, is_away, pack
from bide.engines.redis.scripts import load_all
from bide.engines.redis.settings import Settings
from bide.engines.redis.verbs import Call, Work, check, plan
from bide.model.commands import Command, Queues
from bide.model.errors import Closed, OutcomeUnknown, StoreError, StoreUnavailable
from bide.model.replies import Names, Reply

__all__ = ["RedisEngine"]

_MAKES = ("put", "replace", "configure")
"""The scripts that may make a queue."""

FIRST = 2.0
"""For how many seconds a server is sought at most that has not answered yet: it may be starting."""

_Answer = Any


class RedisEngine:
    """Executes each batch of commands as pipelines of scripts.

    Args:
        settings: where the server is; `from_url` reads them from a URL.

    Raises:
        StoreError: the server cannot be reached, or is not what bide needs.
    """

    capabilities = Capabilities(resends=True)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._scripts = load_all()
        self._lane = secrets.token_hex(6)
        self._keys: dict[str, list[list[bytes]]] = {}
        self._known: set[str] = set()
        self._mark = 0
        self._bell: ChannelBell | None = None
        self._closed = False
        self._link: Link | None = None
        self._link = self._connected(time.monotonic() + min(settings.timeout, FIRST))

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        """Carry out the commands in order, as few pipelines as they allow."""
        if self._closed:
            raise Closed("this engine was closed")
        check(commands)
        batch = _Batch(self, now)
        outcomes: list[Reply | StoreError] = []
        waiting: list[Work] = []
        scripted: list[Command] = []
        for command in commands:
            if isinstance(command, Queues):
                waiting += plan(scripted)
                outcomes += batch.run(waiting)
                waiting, scripted = [], []
                outcomes.append(self._queues(command))
            else:
                scripted.append(command)
        outcomes += batch.run([*waiting, *plan(scripted)])
        errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
        if not errors:
            return outcomes  # type: ignore[return-value]
        if len(errors) == len(outcomes):
            raise errors[0]
        raise PartlyDone(outcomes)

    def reader(self) -> "RedisEngine":
        """Return an engine with a connection of its own, whose reads wait for no batch."""
        return RedisEngine(self._settings)

    def doorbell(self) -> Doorbell | None:
        """Start to listen for what other processes put."""
        if self._bell is None:
            self._bell = ChannelBell(self._settings, self._lane)
        return self._bell

    def ring(self, queue: str, wake: int) -> None:
        """Do nothing: the script that changed the queue has told who is to know."""

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        if self._link is not None:
            self._link.close()
            self._link = None

    # Sending.

    def send(self, calls: Sequence[Call], now: int | None) -> list[_Answer]:
        """Send calls of scripts in pipelines and return what they answered, errors as values."""
        answers: list[_Answer] = []
        for first in range(0, len(calls), SLOTS):
            answers += self._send(calls[first : first + SLOTS], now)
        return answers

    def _send(self, calls: Sequence[Call], now: int | None) -> list[_Answer]:
        marks = list(range(self._mark, self._mark + len(calls)))
        self._mark += len(calls)
        fresh = {call.queue for call in calls if call.script in _MAKES} - self._known
        before = [pack("ZADD", QUEUES, 0, queue) for queue in fresh]
        packed = [self._pack(call, mark, now) for call, mark in zip(calls, marks, strict=True)]
        after: list[bytes] = []
        writes = any(self._scripts[call.script].writes for call in calls)
        if self._settings.wait_replicas and writes:
            after = [pack("WAIT", self._settings.wait_replicas, self._wait_ms())]
        answers = self._insist(calls, marks, now, [*before, *packed, *after], len(before))
        self._known |= fresh
        if after:
            self._confirm(calls, answers)
        self._register(calls, answers)
        return answers[: len(calls)]

    def _pack(self, call: Call, mark: int, now: int | None, again: str = "") -> bytes:
        script = self._scripts[call.script]
        keys = self._keys.get(call.queue)
        if keys is None:
            keys = self._keys[call.queue] = shard_keys(call.queue, self._lane)
        lane = self._lane if self._bell is not None else ""
        moment = "" if now is None else now
        return pack(
            "EVALSHA", script.sha, KEYS, *keys[mark % SLOTS],
            moment, f"{again}{mark}", lane, call.queue, *call.args,
        )  # fmt: skip

    def _insist(
        self,
        calls: Sequence[Call],
        marks: Sequence[int],
        now: int | None,
        packed: list[bytes],
        skip: int,
    ) -> list[_Answer]:
        """Exchange, and again what was lost on the way or has to be said differently."""
        deadline: float | None = None
        try:
            answers = self._connected(None).exchange(packed)[skip:]
        except StoreError as error:  # nothing was sent
            return [error for _ in calls]
        except Lost as lost:
            deadline = time.monotonic() + self._settings.timeout
            answers = self._again(calls, marks, now, lost, lost.answers[skip:], deadline)
        missing = [
            index for index in range(len(calls)) if isinstance(answers[index], raised.NoScriptError)
        ]
        if missing:
            link = self._connected(deadline)
            link.reload()
            told = self._send([calls[index] for index in missing], now)
            for index, answer in zip(missing, told, strict=True):
                answers[index] = answer
        return answers

    def _again(
        self,
        calls: Sequence[Call],
        marks: Sequence[int],
        now: int | None,
        lost: Lost,
        answers: list[_Answer],
        deadline: float,
    ) -> list[_Answer]:
        """After a connection was lost: send again what nothing was heard of.

        A script that changes something has left its answer under the mark of its call, and finds
        it there instead of doing it twice.
        """
        answers = answers[: len(calls)]
        scripts = [self._scripts[call.script] for call in calls]
        while True:
            unsure = OutcomeUnknown(
                f"{self._settings.shown}: the connection was lost after the command was sent, and "
                f"it may have been carried out or not ({lost.cause})"
            )
            left = range(len(answers), len(calls))
            try:
                link = self._connected(deadline)
            except StoreError as error:
                return answers + [unsure if scripts[i].writes else error for i in left]
            packed = [self._pack(calls[i], marks[i], now, again="?") for i in left]
            try:
                return answers + link.exchange(packed)
            except Lost as again:
                lost = again
                answers += again.answers
                if time.monotonic() > deadline:
                    return answers + [unsure] * (len(calls) - len(answers))

    def _connected(self, deadline: float | None) -> Link:
        """Return the connection, or a new one where it was lost, sought until the deadline."""
        pause = 0.01
        while True:
            if self._link is not None and self._link.open:
                return self._link
            try:
                self._link = Link(self._settings)
            except StoreUnavailable as error:
                late = deadline is None or time.monotonic() + pause > deadline
                if late or not is_away(error):
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 0.5)

    def _wait_ms(self) -> int:
        return max(1, int(self._settings.timeout * 900))

    def _confirm(self, calls: Sequence[Call], answers: list[_Answer]) -> None:
        """See that enough replicas have what was changed."""
        wanted = self._settings.wait_replicas
        reached = answers[len(calls)] if len(answers) > len(calls) else 0
        if isinstance(reached, int) and reached >= wanted:
            return
        for index, call in enumerate(calls):
            if self._scripts[call.script].writes and not isinstance(answers[index], Exception):
                answers[index] = OutcomeUnknown(
                    f"{self._settings.shown}: the server has it, but only {reached} of the "
                    f"{wanted} replicas that wait_replicas asks for confirmed it in time; a "
                    "fail-over now may lose it"
                )

    def _register(self, calls: Sequence[Call], answers: Sequence[_Answer]) -> None:
        """Name queues that were made though they were known: somebody has wiped the store."""
        again = [
            call.queue
            for call, answer in zip(calls, answers, strict=False)
            if call.script in _MAKES
            and isinstance(answer, bytes)
            and answer.split(b",", 2)[1] == b"1"
        ]
        if again:
            self._plain("ZADD", QUEUES, *(part for queue in again for part in (0, queue)))

    # What belongs to no queue.

    def _queues(self, command: Queues) -> Names:
        """Name the queues that exist."""
        names: list[bytes] = []
        low = b"[" + command.queue.encode() if command.queue else b"-"
        while True:
            found = self._plain("ZRANGEBYLEX", QUEUES, low, b"+", "LIMIT", 0, 500)
            mine = [name for name in found if name.startswith(command.queue.encode())]
            names += self._existing(mine)
            if len(mine) < 500:
                return Names([name.decode() for name in names])
            low = b"(" + mine[-1]

    def _existing(self, names: Sequence[bytes]) -> list[bytes]:
        there = [self._plain("EXISTS", meta_key(name.decode())) for name in names]
        return [name for name, is_there in zip(names, there, strict=True) if is_there]

    def _plain(self, *command: Any) -> Any:
        """Send a command that may be sent twice."""
        deadline = time.monotonic() + self._settings.timeout
        while True:
            try:
                answer = self._connected(deadline).ask(*command)
            except Lost as lost:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"{self._settings.shown}: {lost.cause}") from lost
                continue
            if isinstance(answer, raised.RedisError):
                raise translate(answer, self._settings.shown) from answer
            return answer

    def translated(self, error: Exception) -> StoreError:
        """Return an answer that is an error as one of bide's."""
        if isinstance(error, StoreError):
            return error
        found = translate(error, self._settings.shown)
        found.__cause__ = error
        return found


class _Batch:
    """The works of one batch on their way."""

    def __init__(self, engine: RedisEngine, now: int | None) -> None:
        self._engine = engine
        self._now = now

    def run(self, works: Sequence[Work]) -> list[Reply | StoreError]:
        """Carry out works in order; those that take one round share pipelines."""
        outcomes: list[Reply | StoreError] = []
        together: list[Work] = []
        for work in works:
            if work.rounds:
                outcomes += self._together(together)
                outcomes += self._together([work])
                together = []
            else:
                together.append(work)
        return outcomes + self._together(together)

    def _together(self, works: Sequence[Work]) -> list[Reply | StoreError]:
        asked = [_start(work) for work in works]
        calls = [call for round in asked if isinstance(round, list) for call in round]
        answers = iter(self._engine.send(calls, self._now))
        told = [
            [next(answers) for _ in round] if isinstance(round, list) else round for round in asked
        ]
        outcomes: list[Reply | StoreError] = []
        for work, mine in zip(works, told, strict=True):
            outcomes += self._finish(work, mine)
        return outcomes

    def _finish(self, work: Work, told: Any) -> list[Reply | StoreError]:
        """Go on with a work until it has its replies."""
        try:
            if not isinstance(told, list):
                replies: list[Reply] = told.value
                return list(replies)
            while True:
                broken = next((answer for answer in told if isinstance(answer, Exception)), None)
                if broken is not None:
                    work.job.close()
                    error = self._engine.translated(broken)
                    return [error for _ in work.commands]
                told = self._engine.send(work.job.send(told), self._now)
        except StopIteration as end:
            return list(end.value)
        except StoreError as error:
            return [error for _ in work.commands]


def _start(work: Work) -> Any:
    """Return the calls of the first round, or the end of a work that needs none."""
    try:
        return next(work.job)
    except StopIteration as end:
        return end
