"""Refuse clients that keep sending wrong tokens."""

import hashlib
from collections import OrderedDict

from bide.clock import Clock
from bide.model.limits import MAX_FAILED_LOGINS
from bide.server.failed_logins import WINDOW, FailedLogins
from bide.server.problem import Problem

__all__ = ["LoginThrottle"]

MAX_KNOWN = 10_000
"""Valid tokens that are remembered: they stay usable from an address that is refused."""


class LoginThrottle:
    """Refuses addresses with too many failed logins; a token that was valid lately passes.

    Args:
        clock: that measures `WINDOW`.
        failed: the failed logins.
    """

    def __init__(self, clock: Clock, failed: FailedLogins) -> None:
        self._clock = clock
        self._failed = failed
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def check(self, address: str, token: str) -> None:
        """Refuse an address with too many failed logins.

        Args:
            address: of the client; "" is not limited: all clients of a proxy may share it.
            token: that the request carries.

        Raises:
            Problem: too many logins have failed; it says when to try again.
        """
        if not address or _digest(token) in self._known:
            return
        if left := self._failed.refused_for(address, self._clock.monotonic()):
            raise Problem(
                "too-many-logins",
                f"{address} has sent {MAX_FAILED_LOGINS:,} wrong tokens within {WINDOW:g} s; try "
                f"again in {left:.0f} s",
                headers={"retry-after": str(max(1, round(left)))},
            )

    def failed(self, address: str) -> None:
        """Count a failed login."""
        if address:
            self._failed.add(address, self._clock.monotonic())

    def passed(self, token: str) -> None:
        """Remember a valid token."""
        self._known[key := _digest(token)] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=16).digest()
