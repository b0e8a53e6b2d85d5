"""Which queues there are: their names, kept beside their keys."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bide.engines.redis.keys import meta_key
from bide.model.errors import StoreError

__all__ = ["Register"]

PAGE = 500
"""How many names are read at a time."""


class Register:
    """The names of queues.

    Args:
        plain: sends a command that may be sent twice, and returns what comes back.
        keys: where the names are; several are copies of each other, of which some may be away.
        quick: like `plain`, but does not wait for a server that is away; for several copies.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        keys: Sequence[bytes],
        quick: Callable[..., Any] | None = None,
    ) -> None:
        self._ways = (plain,) if quick is None else (quick, plain)
        self._keys = keys

    def add(self, queues: Iterable[str]) -> None:
        """Add names.

        Raises:
            StoreError: none of the copies took them.
        """
        members = [part for queue in queues for part in (0, queue)]
        if members:
            self._each(lambda send, key: send("ZADD", key, *members))

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues that exist, sorted.

        Raises:
            StoreError: none of the copies tells them.
        """
        told = self._each(lambda send, key: self._read(send, key, prefix.encode()))
        return [
            name for name in sorted({name for names in told for name in names}) if self._is(name)
        ]

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

    def _read(self, send: Callable[..., Any], key: bytes, prefix: bytes) -> list[str]:
        names: list[str] = []
        low = b"[" + prefix if prefix else b"-"
        while True:
            found = send("ZRANGEBYLEX", key, low, b"+", "LIMIT", 0, PAGE)
            mine = [name for name in found if name.startswith(prefix)]
            names += [name.decode() for name in mine]
            if len(mine) < PAGE:
                return names
            low = b"(" + mine[-1]

    def _is(self, name: str) -> bool:
        """Tell whether a queue is there; if its node is away, it is believed to be."""
        try:
            return bool(self._ways[0]("EXISTS", meta_key(name)))
        except StoreError:
            if len(self._keys) == 1:
                raise
            return True
