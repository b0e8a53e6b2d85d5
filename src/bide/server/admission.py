"""Admission: whether requests need a token, and who sends them."""

import asyncio
import logging

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.model.errors import InvalidArgument
from bide.server.access import OPEN, Caller, Tokens
from bide.server.problem import Problem
from bide.server.settings import Settings

__all__ = ["LOOK", "Admission", "how_open", "must_be_local"]

LOOK = 1.0
"""For how many seconds a process believes that nobody has made a token."""

_UNKNOWN = (
    "the token is unknown, was revoked, or has expired; bide token list shows which there are"
)
_NONE = (
    "the token is unknown: the store of this server has none; bide token create makes one, or send "
    "no authorization"
)

_log = logging.getLogger("bide.server")


class Admission:
    """Knows whether requests need a token.

    With `auth="auto"` they do on a Unix socket that other users may open, for a proxy there may
    serve anybody; elsewhere from the time at which the store has a token, whether all are revoked
    later or not. Nothing is done for that while nobody asks anything: a request that comes
    more than a second after the last look looks again, before it is answered.

    Args:
        settings: what the server was told.
        lane: the way to the store.
        tokens: those of the store.
        clock: what a second is measured by.
    """

    def __init__(self, settings: Settings, lane: Lane, tokens: Tokens, clock: Clock) -> None:
        self._settings = settings
        self._lane = lane
        self._tokens = tokens
        self._clock = clock
        self.asks = settings.auth == "required" or (
            settings.auth == "auto" and settings.shared_socket and not settings.behind
        )
        """Whether requests need a token."""
        self._ever_asks = self.asks
        """Whether this server ever asks for tokens; who is behind another, or was told not to,
        does not look at them either."""
        self._may_appear = False
        self._until = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Look whether there are tokens.

        Raises:
            StoreError: the store cannot be opened.
            InvalidArgument: the server can be reached from elsewhere, and there are no tokens.
        """
        if self._settings.auth == "auto" and not self._settings.behind:
            self._ever_asks = True
            capabilities = await asyncio.to_thread(lambda: self._lane.capabilities)
            self._may_appear = capabilities.random_access
            if self._may_appear:
                await self._look()
        must_be_local(self._settings, asks=self.asks)

    @property
    def is_open(self) -> bool:
        """Whether requests without a token are answered, as was known a second ago at most."""
        return not self.asks and (not self._may_appear or self._clock.monotonic() < self._until)

    async def caller(self, text: str | None) -> Caller:
        """Return who sends a request.

        Args:
            text: the token that it carries, if any.

        Raises:
            Problem: they have no token, or none that is good.
        """
        if text is None or not self._ever_asks:
            if not self.asks and not self.is_open:
                await self._look_once()
            if not self.asks:
                return OPEN
            raise Problem(
                "unauthorized",
                "this server asks for a token: send the header 'Authorization: Bearer ...'; "
                "bide token create makes one",
                headers={"www-authenticate": 'Bearer realm="bide"'},
            )
        caller = await self._tokens.caller(text) if self.asks or self._may_appear else None
        if caller is None:
            raise Problem(
                "unauthorized",
                _UNKNOWN if self.asks else _NONE,
                headers={"www-authenticate": 'Bearer realm="bide", error="invalid_token"'},
            )
        if not self.asks:
            self._begin_to_ask()
        return caller

    async def _look_once(self) -> None:
        """Look again; who comes meanwhile waits for the same look."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # those who waited for it have it; if they all left, nobody wants it

    async def _look(self) -> None:
        began = self._clock.monotonic()
        if await self._tokens.exist() and not self.asks:
            self._begin_to_ask()
        self._until = began + LOOK

    def _begin_to_ask(self) -> None:
        self.asks = True
        _log.info("the store has tokens: requests need one from now on")


def must_be_local(settings: Settings, *, asks: bool) -> None:
    """Refuse to serve other machines without tokens.

    Raises:
        InvalidArgument: the server can be reached from elsewhere, and asks for no tokens.
    """
    if not asks and not settings.local:
        raise InvalidArgument(
            f"host={settings.host!r} can be reached from other machines, and the store has no "
            "tokens; make one with bide token create, or listen on 127.0.0.1"
        )


def how_open(settings: Settings, *, asks: bool) -> str:
    """Return in words who may do what at a server."""
    if asks:
        return "requests need a token"
    where = "whoever may open the socket" if settings.socket else "anybody on this machine"
    why = "auth is off" if settings.auth == "off" else "no tokens"
    return f"{why}: {where} may do anything"
