"""Of how many shards queues are made: found out, and decided for those that are new."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bide.engines.redis.shards.made import Made
from bide.engines.redis.verbs.job import Call, decode
from bide.model.commands import Command, Configure, Put

__all__ = ["Known"]

Send = Callable[[Sequence[Call]], list[Any]]
"""Sends calls, and returns what each answered, errors as values."""


class Known:
    """The queues that an engine has met.

    Args:
        wanted: of how many shards to make queues that are not there yet.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._alone: set[str] = set()
        self._unmade: set[str] = set()
        self.made: dict[str, Made] = {}
        """Those of several shards."""

    def is_single(self, queue: str) -> bool:
        """Tell whether a queue is taken for one of a single shard."""
        return queue not in self.made if self._wanted == 1 else queue in self._alone

    def meet(self, commands: Iterable[Command], send: Send) -> None:
        """Find out about the queues of commands, and make those that the commands make."""
        if self._wanted == 1:  # then each answers for itself: its one shard knows better
            return
        for command in commands:
            queue = command.queue
            if queue in self._alone:
                continue
            makes = isinstance(command, (Put, Configure))
            if queue in self.made and not (makes and queue in self._unmade):
                continue
            told = _ask(queue, self._wanted, "", send)
            found = max((shards for shards, _ in told), default=0)
            if found == 0 and makes:  # the first shard decides
                found = max((shards for shards, _ in _ask(queue, 1, self._wanted, send)), default=0)
                if found > 1:
                    self.make(queue, found, send)
            (self._unmade.discard if found else self._unmade.add)(queue)
            self.learn(queue, found or self._wanted, send)

    def learn(self, queue: str, shards: int, send: Send) -> None:
        """A queue is made of so many shards."""
        self._alone.discard(queue)
        if shards == 1:
            self.made.pop(queue, None)
            self._alone.add(queue)
        elif queue not in self.made or self.made[queue].count != shards:
            made = self.made[queue] = Made(queue, shards)
            for _, following in _ask(queue, shards, "", send):
                made.seen(following)

    def make(self, queue: str, shards: int, send: Send) -> None:
        """Make all shards of a queue."""
        _ask(queue, shards, shards, send)


def _ask(queue: str, shards: int, wanted: int | str, send: Send) -> list[tuple[int, int]]:
    """Ask the first shards of how many there are, and for their next number, as far as they answer.

    Those that are not there are made if it is said of how many.
    """
    calls = [Call("shards", queue, (wanted,), shard, 0) for shard in range(shards)]
    told = [decode(answer) for answer in send(calls) if not isinstance(answer, Exception)]
    return [(found, following) for _, _, found, following in told]
