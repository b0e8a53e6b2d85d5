"""The Redis engine: one queue for many machines, on a Redis or Valkey server."""

import secrets
from collections.abc import Sequence
from typing import Any

from bide.engines.port import Capabilities, Doorbell, PartlyDone
from bide.engines.redis.bell import ChannelBell
from bide.engines.redis.faults import translate
from bide.engines.redis.keys import QUEUES, SLOTS, meta_key
from bide.engines.redis.link import pack
from bide.engines.redis.sender import Answer, Sender
from bide.engines.redis.settings import Settings
from bide.engines.redis.verbs import Call, Work, check, plan
from bide.model.commands import Command, Queues
from bide.model.errors import Closed, StoreError
from bide.model.replies import Names, Reply

__all__ = ["RedisEngine"]

_MAKES = ("put", "replace", "configure")
"""The scripts that may make a queue."""


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
        self._lane = secrets.token_hex(6)
        self._known: set[str] = set()
        self._bell: ChannelBell | None = None
        self._closed = False
        self._sender = Sender(settings, self._lane)

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
            self._bell = ChannelBell(self._settings, self._lane, self._sender.leave)
            self._sender.listen(self._bell.renew)
        return self._bell

    def ring(self, queue: str, wake: int) -> None:
        """Do nothing: the script that changed the queue has told who is to know."""

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        self._sender.close()

    # Sending.

    def send(self, calls: Sequence[Call], now: int | None) -> list[Answer]:
        """Send calls of scripts in pipelines and return what they answered, errors as values."""
        answers: list[Answer] = []
        for first in range(0, len(calls), SLOTS):
            answers += self._send(calls[first : first + SLOTS], now)
        return answers

    def _send(self, calls: Sequence[Call], now: int | None) -> list[Answer]:
        fresh = {call.queue for call in calls if call.script in _MAKES} - self._known
        if self._bell is not None:
            for call in calls:
                if call.script == "claim":
                    self._bell.watch(call.queue)
        before = [pack("ZADD", QUEUES, 0, queue) for queue in fresh]
        answers = self._sender.send(calls, now, before)
        self._known |= fresh
        self._register(calls, answers)
        return answers

    def _register(self, calls: Sequence[Call], answers: Sequence[Answer]) -> None:
        """Name queues that were made though they were known: somebody has wiped the store."""
        again = [
            call.queue
            for call, answer in zip(calls, answers, strict=False)
            if call.script in _MAKES
            and isinstance(answer, bytes)
            and answer.split(b",", 2)[1] == b"1"
        ]
        if again:
            self._sender.plain("ZADD", QUEUES, *(part for queue in again for part in (0, queue)))

    # What belongs to no queue.

    def _queues(self, command: Queues) -> Names:
        """Name the queues that exist."""
        names: list[bytes] = []
        low = b"[" + command.queue.encode() if command.queue else b"-"
        while True:
            found = self._sender.plain("ZRANGEBYLEX", QUEUES, low, b"+", "LIMIT", 0, 500)
            mine = [name for name in found if name.startswith(command.queue.encode())]
            names += self._existing(mine)
            if len(mine) < 500:
                return Names([name.decode() for name in names])
            low = b"(" + mine[-1]

    def _existing(self, names: Sequence[bytes]) -> list[bytes]:
        there = [self._sender.plain("EXISTS", meta_key(name.decode())) for name in names]
        return [name for name, is_there in zip(names, there, strict=True) if is_there]

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
