"""One command on its way to a node of a cluster, wherever it goes to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bide.engines.redis.settings import Address

__all__ = ["Sent"]


@dataclass(slots=True)
class Sent:
    """One command on its way."""

    slot: int
    packed: Callable[[bool], bytes]
    writes: bool
    hurried: bool
    probe: bytes
    answer: Any = None
    again: bool = False
    """Whether it may have arrived before, so that it is not to be carried out twice."""
    asking: Address | None = None
    """Who is to be asked for once, though the slot is not theirs yet."""
    away: bool = False
    """Whether there is no connection to who has it."""
    done: bool = False
    tries: int = 0
