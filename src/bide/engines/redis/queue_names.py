"""The names of the queues, which a store keeps beside their keys."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from bide.engines.redis.calls import raised
from bide.engines.redis.keys import QUEUES, copies, meta_key
from bide.engines.redis.sender import Sender
from bide.model.errors import StoreError

PAGE = 500
"""How many names are read, and queues asked for, at a time."""


def read_names(send: Callable[..., Any], key: bytes, prefix: bytes = b"") -> list[str]:
    """Return the names at a key that begin so, sorted."""
    names: list[str] = []
    low = b"[" + prefix if prefix else b"-"
    while True:
        found = send("ZRANGEBYLEX", key, low, b"+", "LIMIT", 0, PAGE)
        mine = [name for name in found if name.startswith(prefix)]
        names += [name.decode() for name in mine]
        if len(mine) < PAGE:
            return names
        low = b"(" + mine[-1]


class QueueNames:
    """The names of the queues of a store; a cluster keeps copies, of which some may be away.

    Args:
        sender: sends commands.
        clustered: whether the store is a cluster.
    """

    def __init__(self, sender: Sender, *, clustered: bool) -> None:
        self._sender = sender
        self._clustered = clustered

    def add(self, queues: Iterable[str]) -> None:
        """Add names.

        Raises:
            StoreError: none of the copies took them.
        """
        members = [part for queue in queues for part in (0, queue)]
        self._each(lambda send, key: send("ZADD", key, *members))

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues that exist, sorted.

        Raises:
            StoreError: none of the copies tells them.
        """
        told = self._each(lambda send, key: read_names(send, key, prefix.encode()))
        names = sorted(set().union(*told))
        there: list[Any] = []
        for first in range(0, len(names), PAGE):
            asked = [("HEXISTS", meta_key(name), "token") for name in names[first : first + PAGE]]
            there += self._sender.plain_all(asked, hurried=self._clustered)
        if not self._clustered:
            raised(there)  # else a queue whose node is away is believed to exist
        return [name for name, exists in zip(names, there, strict=True) if exists]

    def _each(self, do: Callable[[Callable[..., Any], bytes], Any]) -> list[Any]:
        """Do something with each copy that is there; wait for one only if none is."""
        done: list[Any] = []
        trouble: StoreError | None = None
        for hurried in (True, False) if self._clustered else (False,):
            send = partial(self._sender.plain, hurried=hurried)
            for key in copies(QUEUES) if self._clustered else (QUEUES,):
                try:
                    done.append(do(send, key))
                except StoreError as error:
                    trouble = error
            if done:
                return done
        assert trouble is not None
        raise trouble
