"""What the verbs of Redis are made of: calls of scripts, in rounds."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from bide.engines.redis.records import Arg
from bide.model.replies import Reply

__all__ = ["SLICE", "Call", "Job", "decode", "parts"]

SLICE = 500
"""How many messages one call of a script is about at most, so that it holds the server shortly."""


class Call(NamedTuple):
    """A call of a script on a shard of a queue."""

    script: str
    queue: str
    args: Sequence[Arg] = ()
    shard: int = 0
    shards: int = 1
    """Of how many the queue is made; 0: that is what one wants to know."""

    @property
    def label(self) -> str:
        """The queue as scripts are told of it."""
        return self.queue if self.shards == 1 else f"{self.queue} {self.shards or '?'} {self.shard}"


Job = Generator[list[Call], list[Any], list[Reply]]
"""Yields the calls of a round, is sent what they returned, and returns the replies at last."""

decode = msgspec.json.Decoder().decode

T = TypeVar("T")


def parts(whole: Sequence[T], size: int = SLICE) -> list[Sequence[T]]:
    """Return a sequence in parts of at most a size; one empty part if it is empty."""
    return [whole[first : first + size] for first in range(0, len(whole), size)] or [whole]
