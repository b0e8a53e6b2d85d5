"""Caps on calls that stay open: event streams, and claims that wait."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bide.server.problem import Problem


@dataclass
class LongCalls:
    """Counts the open calls of one kind by namespace and by client address.

    Each process of a server counts for itself.

    Args:
        kind: what they are, in the plural, for error texts.
        setting: the name of the setting that says how many there may be.
        most: how many a namespace may have, and how many an address may have.
    """

    kind: str
    setting: str
    most: int
    _open: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)

    @contextmanager
    def one(self, namespace: str | None, client: str | None) -> Iterator[None]:
        """Count one more call for as long as the block runs.

        Args:
            namespace: whose token the caller has; `None`, that of the whole store, has a share too.
            client: from what address it comes; `None` on a Unix socket, where no address counts.

        Raises:
            Problem: the namespace or the address has as many as it may have.
        """
        keys = [("namespace", namespace or "")]
        if client is not None:
            keys.append(("address", client))
        for what, name in keys:
            if self._open[what, name] >= self.most:
                raise Problem(
                    "too-many-open",
                    f"the {what} {name or '(of the whole store)'} has {self.most:,} {self.kind} "
                    f"open at this server process; end some, or set a larger {self.setting}",
                )
        for key in keys:
            self._open[key] += 1
        try:
            yield
        finally:
            for key in keys:
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]
