"""The commands of one batch on their way: works, in as few pipelines as they allow."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from redis import exceptions as raised

from bide.engines.redis.shards.claim import claim_all
from bide.engines.redis.shards.made import Made
from bide.engines.redis.shards.scan import scan_all
from bide.engines.redis.shards.split import Part, merge, split
from bide.engines.redis.shards.sweep import sweep_all
from bide.engines.redis.verbs import Call, Work, plan
from bide.engines.redis.verbs.job import Job
from bide.model.commands import Cancel, Claim, Command, Purge, Put, Scan
from bide.model.errors import StoreError
from bide.model.replies import Reply

__all__ = ["Batch", "MadeOtherwise"]

Outcome = Reply | StoreError


class MadeOtherwise(StoreError):
    """A queue is made of another number of shards than it was taken for; nothing was done."""

    def __init__(self, shards: int) -> None:
        super().__init__(f"the queue is made of {shards} shards")
        self.shards = shards


class Batch:
    """Carries out the commands of one batch.

    Args:
        send: sends calls, and returns what each answered, errors as values.
        translated: turns an answer that is an error into one of bide's.
        made: the queues of several shards; all others have one.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Call]], list[Any]],
        translated: Callable[[Exception], StoreError],
        made: Mapping[str, Made],
    ) -> None:
        self._send = send
        self._translated = translated
        self._made = made

    def run(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry out commands in order; return what came of each."""
        if not self._made or not any(command.queue in self._made for command in commands):
            works = list(plan(commands))
            return self._alone(works[0]) if len(works) == 1 else self._run([works])[0]
        outcomes: list[Outcome | None] = [None] * len(commands)
        gathered: list[tuple[int, list[Part]]] = []
        puts: Counter[str] = Counter()
        for command in commands:
            if isinstance(command, Put):
                puts[command.queue] += len(command.items)
        for queue in puts.keys() & self._made.keys():
            self._made[queue].begin(puts[queue])
        for index, command in enumerate(commands):
            made = self._made.get(command.queue)
            parts = [Part(0, command, ())] if made is None else split(command, made)
            if parts is not None:
                gathered.append((index, parts))
                continue
            assert made is not None
            self._spread(commands, gathered, outcomes)
            gathered = []
            work = Work([command], _over_all(command, made), True, made.count, tolerant=True)
            ((outcomes[index],),) = self._together([work])
        self._spread(commands, gathered, outcomes)
        return outcomes  # type: ignore[return-value]

    def _spread(
        self,
        commands: Sequence[Command],
        gathered: Sequence[tuple[int, list[Part]]],
        outcomes: list[Outcome | None],
    ) -> None:
        """Carry out parts, shard by shard in their order, and put together what they came to."""
        chains: dict[tuple[str, int], list[Command]] = {}
        for index, parts in gathered:
            for part in parts:
                chains.setdefault((commands[index].queue, part.shard), []).append(part.command)
        works: list[list[Work]] = []
        for (queue, shard), chain in chains.items():
            shards = self._shards(queue)
            planned = plan(chain)
            works.append([work._replace(shard=shard, shards=shards) for work in planned])
        told = self._run(works)
        replies = {key: iter(mine) for key, mine in zip(chains, told, strict=True)}
        for index, parts in gathered:
            queue = commands[index].queue
            mine = [next(replies[queue, part.shard]) for part in parts]
            made = self._made.get(queue)
            outcomes[index] = mine[0] if made is None else merge(commands[index], made, parts, mine)

    def _shards(self, queue: str) -> int:
        made = self._made.get(queue)
        return 1 if made is None else made.count

    def _run(self, chains: Sequence[Sequence[Work]]) -> list[list[Outcome]]:
        """Carry out works, each chain in its order; those that take one round share pipelines."""
        outcomes: list[list[Outcome]] = [[] for _ in chains]
        links = [list(_links(chain)) for chain in chains]
        for number in range(max(map(len, links), default=0)):
            at = [i for i, link in enumerate(links) if number < len(link)]
            told = iter(self._together([work for i in at for work in links[i][number]]))
            for i in at:
                for _ in links[i][number]:
                    outcomes[i] += next(told)
        return outcomes

    def _alone(self, work: Work) -> list[Outcome]:
        """Carry out a work beside which there is no other: without what it takes to share."""
        try:
            calls = next(work.job)
            while True:
                calls = work.job.send(self._heard(work, self._send(calls)))
        except StopIteration as end:
            return list(end.value)
        except StoreError as error:
            return [error for _ in work.commands]

    def _together(self, works: Sequence[Work]) -> list[list[Outcome]]:
        """Carry out works side by side, round by round; return what came of each."""
        outcomes: list[list[Outcome]] = [[] for _ in works]
        left: dict[int, list[Any] | None] = dict.fromkeys(range(len(works)))
        while left:
            asked: dict[int, list[Call]] = {}
            for index, told in left.items():
                going_on = self._go_on(works[index], told)
                if going_on.calls is None:
                    outcomes[index] = going_on.outcomes
                else:
                    asked[index] = going_on.calls
            answers = self._send([call for calls in asked.values() for call in calls])
            left, first = {}, 0
            for index, calls in asked.items():
                left[index] = answers[first : first + len(calls)]
                first += len(calls)
        return outcomes

    def _go_on(self, work: Work, told: list[Any] | None) -> "_Step":
        """Give a work what its calls returned, nothing at first; return its next calls, or ends."""
        try:
            if told is None:
                return _Step(work.placed(next(work.job)), [])
            return _Step(work.placed(work.job.send(self._heard(work, told))), [])
        except StopIteration as end:
            return _Step(None, list(end.value))
        except StoreError as error:
            return _Step(None, [error for _ in work.commands])

    def _heard(self, work: Work, told: list[Any]) -> list[Any]:
        """Return what a job is sent of what its calls returned.

        Raises:
            StoreError: one of them is an error, and the job goes on with no such thing; it is over.
        """
        broken = next((answer for answer in told if isinstance(answer, Exception)), None)
        if broken is None:
            return told
        error = self._error(broken)
        if not work.tolerant or isinstance(error, MadeOtherwise):
            work.job.close()
            raise error
        return [self._error(a) if isinstance(a, Exception) else a for a in told]

    def _error(self, answer: Exception) -> StoreError:
        if isinstance(answer, raised.ResponseError) and str(answer).startswith("SHARDS "):
            return MadeOtherwise(int(str(answer).split()[1]))
        return self._translated(answer)


class _Step(NamedTuple):
    """How a work goes on: calls, or what came of it."""

    calls: list[Call] | None
    outcomes: list[Outcome]


def _links(chain: Sequence[Work]) -> Iterator[list[Work]]:
    """Split works into those that may be on their way beside each other."""
    for alone, works in groupby(chain, lambda work: work.rounds):
        if alone:
            yield from ([work] for work in works)
        else:
            yield list(works)


def _over_all(command: Command, made: Made) -> Job:
    """Return the job that asks all shards together."""
    if isinstance(command, Claim):
        return claim_all(command, made)
    if isinstance(command, Scan):
        return scan_all(command, made)
    assert isinstance(command, (Cancel, Purge))
    return sweep_all(command, made)
