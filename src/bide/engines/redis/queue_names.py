"""The names of the queues, which a store keeps beside their keys."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from bide.engines.redis.keys import QUEUES, copies, meta_key
from bide.engines.redis.sender import Sender
from bide.model.errors import StoreError

PAGE = 500
"""How many names are read at a time."""


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
        hurried = partial(sender.plain, hurried=True)
        self._ways = (hurried, sender.plain) if clustered else (sender.plain,)
        self._keys = copies(QUEUES) if clustered else (QUEUES,)

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
        return [name for name in sorted(set().union(*told)) if self._exists(name)]

    def _each(self, do: Callable[[Callable[..., Any], bytes], Any]) -> list[Any]:
        """Do something with each copy that is there; wait for one only if none is."""
        done: list[Any] = []
        trouble: StoreError | None = None
        for send in self._ways:
            for key in self._keys:
                try:
                    done.append(do(send, key))
                except StoreError as error:
                    trouble = error
            if done:
                return done
        assert trouble is not None
        raise trouble

    def _exists(self, name: str) -> bool:
        """Tell whether a queue is there; if its node is away, it is believed to be."""
        try:
            return bool(self._ways[0]("HEXISTS", meta_key(name), "token"))
        except StoreError:
            if len(self._keys) == 1:
                raise
            return True
