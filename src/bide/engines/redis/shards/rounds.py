"""Asking several shards in the same round."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from bide.engines.redis.verbs.job import Call

__all__ = ["Round", "ask", "together"]

T = TypeVar("T")

Round = Generator[list[Call], list[Any], T]
"""Yields calls, is sent what they returned, and returns something at last."""


def ask(calls: Mapping[int, Call], shards: int) -> Round[dict[int, Any]]:
    """Call something in each of some shards; return what each answered, errors as values."""
    placed = [call._replace(shard=shard, shards=shards) for shard, call in calls.items()]
    answers = yield placed
    return dict(zip(calls, answers, strict=True))


def together(jobs: Mapping[int, Round[T]], shards: int) -> Round[dict[int, T]]:
    """Carry out a job in each of some shards, round by round; return what each returned."""
    done: dict[int, T] = {}
    sent: dict[int, list[Any] | None] = dict.fromkeys(jobs)
    while sent:
        asked: dict[int, Sequence[Call]] = {}
        for shard, answers in sent.items():
            try:
                asked[shard] = next(jobs[shard]) if answers is None else jobs[shard].send(answers)
            except StopIteration as end:
                done[shard] = end.value
        if not asked:
            break
        told = yield [
            call._replace(shard=shard, shards=shards)
            for shard, calls in asked.items()
            for call in calls
        ]
        sent = {}
        first = 0
        for shard, calls in asked.items():
            sent[shard] = told[first : first + len(calls)]
            first += len(calls)
    return done
