"""The Redis engine: one queue for many machines, on a Redis or Valkey server."""

import secrets
from collections.abc import Sequence
from functools import partial

from bide.engines.port import Capabilities, Doorbell, PartlyDone
from bide.engines.redis.batch import Batch, MadeOtherwise
from bide.engines.redis.bell import ChannelBell
from bide.engines.redis.cluster.bell import ClusterBell
from bide.engines.redis.cluster.sender import ClusterSender
from bide.engines.redis.cluster.slots import copies
from bide.engines.redis.faults import translate
from bide.engines.redis.keys import QUEUES, SLOTS
from bide.engines.redis.link import pack
from bide.engines.redis.register import Register
from bide.engines.redis.sender import Answer, Sender
from bide.engines.redis.settings import Settings
from bide.engines.redis.shards.known import Known
from bide.engines.redis.verbs import Call, check
from bide.engines.redis.verbs.one import answered, call_of
from bide.model.commands import Command, Queues
from bide.model.errors import Closed, StoreError
from bide.model.replies import Names, Reply

__all__ = ["RedisEngine"]


class RedisEngine:
    """Executes each batch of commands as pipelines of scripts.

    Args:
        settings: where the server is; `from_url` reads them from a URL.

    Raises:
        StoreError: the server cannot be reached, or is not what bide needs.
    """

    capabilities = Capabilities(resends=True, overlaps=True)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lane = secrets.token_hex(6)
        self._named: set[str] = set()
        self._known = Known(settings.shards)
        self._bell: ChannelBell | ClusterBell | None = None
        self._closed = False
        if settings.cluster is None:
            self._sender: Sender | ClusterSender = Sender(settings, self._lane)
            self._register = Register(self._sender.plain, (QUEUES,))
        else:
            self._sender = sender = ClusterSender(settings, self._lane)
            quick = partial(sender.plain, hurried=True)
            self._register = Register(sender.plain, copies(QUEUES), quick)

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        """Carry out the commands in order, as few pipelines as they allow."""
        if self._closed:
            raise Closed("this engine was closed")
        if len(commands) == 1 and (reply := self._one(commands[0], now)) is not None:
            return [reply]
        check(commands)
        outcomes = self._carry_out(commands, now)
        if not _has_errors(outcomes):
            return outcomes  # type: ignore[return-value]
        errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
        if len(errors) == len(outcomes) and len({(type(e), str(e)) for e in errors}) == 1:
            raise errors[0]
        raise PartlyDone(outcomes)

    def reader(self) -> "RedisEngine":
        """Return an engine with a connection of its own, whose reads wait for no batch."""
        return RedisEngine(self._settings)

    def doorbell(self) -> Doorbell | None:
        """Start to listen for what other processes put."""
        if self._bell is None:
            if self._settings.cluster is None:
                self._bell = ChannelBell(self._settings, self._lane)
            else:
                self._bell = ClusterBell(self._settings, self._lane)
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

    # Carrying out.

    def _one(self, command: Command, now: int | None) -> Reply | None:
        """Carry out a command at less cost; return `None` if that cannot be: nothing was done."""
        call = call_of(command)
        if call is None or not self._known.is_single(call.queue):
            return None
        (answer,) = self._sender.send((call,), now)
        if isinstance(answer, Exception):
            raise self._translated(answer)
        return None if answer is None else answered(command, answer)

    def _carry_out(self, commands: Sequence[Command], now: int | None) -> list[Reply | StoreError]:
        """Carry out commands in order; return what came of each."""
        if Queues not in set(map(type, commands)):
            return self._run(commands, now)
        outcomes: list[Reply | StoreError] = []
        gathered: list[Command] = []
        for command in commands:
            if isinstance(command, Queues):
                outcomes += self._run(gathered, now)
                gathered = []
                outcomes.append(Names(self._register.names(command.queue)))
            else:
                gathered.append(command)
        return outcomes + self._run(gathered, now)

    def _run(self, commands: Sequence[Command], now: int | None) -> list[Reply | StoreError]:
        def send(calls: Sequence[Call]) -> list[Answer]:
            return self._send(calls, now)

        self._known.meet(commands, send)
        outcomes = Batch(send, self._translated, self._known.made).run(commands)
        if not _has_errors(outcomes):
            return outcomes
        otherwise = {i: o.shards for i, o in enumerate(outcomes) if isinstance(o, MadeOtherwise)}
        if otherwise:  # nothing was done for these, and now it is known how
            for i, shards in otherwise.items():
                self._known.learn(commands[i].queue, shards, send)
            told = self._run([commands[i] for i in otherwise], now)
            for i, outcome in zip(otherwise, told, strict=True):
                outcomes[i] = outcome
        return outcomes

    def _send(self, calls: Sequence[Call], now: int | None) -> list[Answer]:
        """Send calls of scripts in pipelines and return what they answered, errors as values."""
        answers: list[Answer] = []
        for first in range(0, len(calls), SLOTS):
            answers += self._pipeline(calls[first : first + SLOTS], now)
        return answers

    def _pipeline(self, calls: Sequence[Call], now: int | None) -> list[Answer]:
        making = [call for call in calls if _makes(call)]
        fresh = {call.queue for call in making} - self._named
        if self._bell is not None:
            for call in calls:
                if call.script == "claim":
                    self._bell.watch(call.queue)
        before: list[bytes] = []
        if fresh and self._settings.cluster is None:
            before = [pack("ZADD", QUEUES, 0, queue) for queue in fresh]
        elif fresh:
            self._register.add(fresh)
        answers = self._sender.send(calls, now, before)
        self._named |= fresh
        if making:
            self._name_again(calls, answers, now)
        return answers

    def _name_again(
        self, calls: Sequence[Call], answers: Sequence[Answer], now: int | None
    ) -> None:
        """Name queues that were made though they were known: somebody has wiped the store."""
        again = {
            call.queue: call
            for call, answer in zip(calls, answers, strict=False)
            if _makes(call) and isinstance(answer, bytes) and answer.split(b",", 2)[1] == b"1"
        }
        if again:
            self._register.add(again)
        for queue, call in again.items():
            if call.shards > 1:
                self._known.make(queue, call.shards, lambda calls: self._send(calls, now))

    def _translated(self, error: Exception) -> StoreError:
        """Return an answer that is an error as one of bide's."""
        if isinstance(error, StoreError):
            return error
        found = translate(error, self._settings.shown)
        found.__cause__ = error
        return found


def _has_errors(outcomes: Sequence[Reply | StoreError]) -> bool:
    return any(issubclass(kind, StoreError) for kind in set(map(type, outcomes)))


def _makes(call: Call) -> bool:
    """Tell whether a call may make a queue."""
    if call.script == "shards":
        return call.args[0] != ""
    return call.script in ("put", "replace", "configure")
