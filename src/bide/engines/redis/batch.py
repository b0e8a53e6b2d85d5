"""The commands of one batch on their way: works, in as few pipelines as they allow."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
            return self._alone(works[0]) if len(works) == 1 else self._run(works)
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
            (outcomes[index],) = self._together([work])
        self._spread(commands, gathered, outcomes)
        return outcomes  # type: ignore[return-value]

    def _spread(
        self,
        commands: Sequence[Command],
        gathered: Sequence[tuple[int, list[Part]]],
        outcomes: list[Outcome | None],
    ) -> None:
        """Carry out parts, shard by shard in their order, and put together what they came to."""
        lists: dict[tuple[str, int], list[Command]] = {}
        for index, parts in gathered:
            for part in parts:
                lists.setdefault((commands[index].queue, part.shard), []).append(part.command)
        works = [
            work._replace(shard=shard, shards=self._shards(queue))
            for (queue, shard), mine in lists.items()
            for work in plan(mine)
        ]
        told = iter(self._run(works))
        replies = {key: iter([next(told) for _ in mine]) for key, mine in lists.items()}
        for index, parts in gathered:
            queue = commands[index].queue
            mine = [next(replies[queue, part.shard]) for part in parts]
            made = self._made.get(queue)
            outcomes[index] = mine[0] if made is None else merge(commands[index], made, parts, mine)

    def _shards(self, queue: str) -> int:
        made = self._made.get(queue)
        return 1 if made is None else made.count

    def _run(self, works: Sequence[Work]) -> list[Outcome]:
        """Carry out works in order; those that take one round share pipelines."""
        outcomes: list[Outcome] = []
        together: list[Work] = []
        for work in works:
            if work.rounds:
                outcomes += self._together(together)
                outcomes += self._together([work])
                together = []
            else:
                together.append(work)
        return outcomes + self._together(together)

    def _alone(self, work: Work) -> list[Outcome]:
        """Carry out a work beside which there is no other: without what it takes to share."""
        try:
            calls = next(work.job)
            while True:
                told = self._send(calls)
                for answer in told:
                    if isinstance(answer, Exception):
                        work.job.close()
                        error = self._error(answer)
                        return [error for _ in work.commands]
                calls = work.job.send(told)
        except StopIteration as end:
            return list(end.value)
        except StoreError as error:
            return [error for _ in work.commands]

    def _together(self, works: Sequence[Work]) -> list[Outcome]:
        asked = [_start(work) for work in works]
        calls = [call for round in asked if isinstance(round, list) for call in round]
        answers = iter(self._send(calls))
        told = [
            [next(answers) for _ in round] if isinstance(round, list) else round for round in asked
        ]
        outcomes: list[Outcome] = []
        for work, mine in zip(works, told, strict=True):
            outcomes += self._finish(work, mine)
        return outcomes

    def _finish(self, work: Work, told: Any) -> list[Outcome]:
        """Go on with a work until it has its replies."""
        try:
            if not isinstance(told, list):
                replies: list[Reply] = told.value
                return list(replies)
            while True:
                broken = next((answer for answer in told if isinstance(answer, Exception)), None)
                if broken is not None:
                    error = self._error(broken)
                    if not work.tolerant or isinstance(error, MadeOtherwise):
                        work.job.close()
                        return [error for _ in work.commands]
                    told = [self._error(a) if isinstance(a, Exception) else a for a in told]
                told = self._send(work.placed(work.job.send(told)))
        except StopIteration as end:
            return list(end.value)
        except StoreError as error:
            return [error for _ in work.commands]

    def _error(self, answer: Exception) -> StoreError:
        if isinstance(answer, raised.ResponseError) and str(answer).startswith("SHARDS "):
            return MadeOtherwise(int(str(answer).split()[1]))
        return self._translated(answer)


def _start(work: Work) -> Any:
    """Return the calls of the first round, or the end of a work that needs none."""
    try:
        return work.placed(next(work.job))
    except StopIteration as end:
        return end


def _over_all(command: Command, made: Made) -> Job:
    """Return the job that asks all shards together."""
    if isinstance(command, Claim):
        return claim_all(command, made)
    if isinstance(command, Scan):
        return scan_all(command, made)
    assert isinstance(command, (Cancel, Purge))
    return sweep_all(command, made)
