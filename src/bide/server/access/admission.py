"""Admit requests by their tokens."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bide.clock import Clock, sleep
from bide.logs import logger
from bide.model.errors import BideError, InvalidArgument, StoreUnavailable
from bide.server.access.oidc import Expired, Oidc, Rejected
from bide.server.access.rights import OPEN, Caller
from bide.server.access.tokens import Tokens
from bide.server.problem import Problem
from bide.server.settings import Settings
from bide.server.shared_state import LoginThrottle

LOOK_EVERY = 1.0
"""Seconds for which a process assumes that no token was created."""

RECHECK_EVERY = 5.0
"""Seconds between two checks of the token of a waiting request."""

Answered = TypeVar("Answered")

_log = logger("bide.server")


@dataclass(eq=False)
class Admission:
    """Authenticates callers.

    With `auth="auto"` requests need a token on a Unix socket that other users may open, since a
    proxy may serve anyone there; elsewhere once the store has a token, even if all are revoked
    later. An idle server does not look for tokens: a request that comes more than a second after
    the last look looks again before it is answered.

    Args:
        settings: the settings of the server.
        tokens: the tokens of the store.
        clock: measures `LOOK_EVERY` and `RECHECK_EVERY`.
        logins: refuses addresses that send wrong tokens.
    """

    settings: Settings
    tokens: Tokens
    clock: Clock
    logins: LoginThrottle = field(default_factory=LoginThrottle)

    def __post_init__(self) -> None:
        settings = self.settings
        self._may_require_later = settings.auth == "auto" and not settings.behind
        """Whether requests need a token once the store has one."""
        self.requires_tokens = settings.auth == "required" or settings.oidc is not None
        self.requires_tokens |= self._may_require_later and settings.shared_socket
        """Whether requests need a token."""
        self._no_tokens_until = 0.0
        """The time until which the store is assumed to have no token, on the monotonic clock."""
        self._oidc = None if settings.oidc is None else Oidc(settings.oidc)
        """Validates JWTs; `None`: none are accepted."""

    async def begin(self) -> None:
        """Look for tokens.

        Raises:
            StoreError: the store cannot be opened.
            InvalidArgument: other machines can reach the server, and there are no tokens.
        """
        if self._may_require_later:
            await self._look()
        must_be_local(self.settings, requires_tokens=self.requires_tokens)

    async def caller(
        self, text: str | None, client: str = "", patience: float | None = None
    ) -> Caller:
        """Return the caller who sends a request.

        Args:
            text: the token of the request, if it has one.
            client: the address for which a wrong token is counted.
            patience: seconds for the store to answer; `None`: as its URL says.

        Raises:
            StoreError: the store does not answer.
            Problem: the token is missing or not valid, or the address has sent too many wrong ones.
        """
        with_auth_off = not (self.requires_tokens or self._may_require_later)
        if text is not None and not with_auth_off:
            return await self._caller_of_token(text, client, patience)
        may_have_tokens = self.clock.monotonic() >= self._no_tokens_until
        if self._may_require_later and not self.requires_tokens and may_have_tokens:
            await _in_time(self._look(), patience)
        if self.requires_tokens:
            raise Problem(
                "unauthorized",
                "this server asks for a token: send the header 'Authorization: Bearer ...'; "
                "bide token create makes one",
                headers={"www-authenticate": 'Bearer realm="bide"'},
            )
        return OPEN

    async def _caller_of_token(self, text: str, client: str, patience: float | None) -> Caller:
        """Return the caller of a token of the store or a JWT; count a wrong one for the address."""
        self.logins.check(client, text, self.clock.monotonic())
        caller = None
        may_be_guess = True
        reason = (
            "the token is unknown, was revoked, or has expired; bide token list shows all tokens "
            "of the store, and bide token create makes one"
        )
        if self._oidc is not None and text.count(".") == 2:  # a JWT: tokens of bide have no dots
            try:
                caller = await self._oidc.caller(text)
            except Rejected as error:
                reason = f"the JWT is not accepted: {error}"
                may_be_guess = not isinstance(error, Expired)  # the issuer has signed that one
        else:
            caller = await _in_time(self.tokens.caller(text), patience)
        if caller is None:
            if may_be_guess:
                self.logins.failed(client, self.clock.monotonic())
            raise Problem(
                "unauthorized",
                reason,
                headers={"www-authenticate": 'Bearer realm="bide", error="invalid_token"'},
            )
        self.logins.passed(text)
        if not self.requires_tokens:  # the store has a token now
            self._require_tokens_now()
        return caller

    async def until_refused(self, text: str | None) -> None:
        """Wait until a token is revoked or expires, or until requests without one need one.

        Raises:
            Problem: always, with the reason.
        """
        while True:
            await sleep(self.clock, RECHECK_EVERY)
            with suppress(BideError):  # the store is away, which waiting requests notice anyway
                await self.caller(text)

    async def _look(self) -> None:
        """Look whether the store has tokens now; then requests need one."""
        began = self.clock.monotonic()
        if await self.tokens.exist() and not self.requires_tokens:
            self._require_tokens_now()
        self._no_tokens_until = began + LOOK_EVERY  # one may have been created since it began

    def _require_tokens_now(self) -> None:
        """Require a token of each request from now on: the store has one."""
        self.requires_tokens = True
        _log.info("the store has tokens: requests need one from now on")


async def _in_time(answer: Coroutine[Any, Any, Answered], patience: float | None) -> Answered:
    """Return the answer of the store.

    Raises:
        StoreUnavailable: it takes longer than `patience` seconds.
    """
    try:
        async with asyncio.timeout(patience):
            return await answer
    except TimeoutError:
        raise StoreUnavailable("the store does not answer in time") from None


def must_be_local(settings: Settings, *, requires_tokens: bool) -> None:
    """Check that a server that other machines can reach requires tokens.

    Raises:
        InvalidArgument: other machines can reach it, and it requires no tokens.
    """
    if not requires_tokens and not settings.local:
        hint = " and leave auth=off out" if settings.auth == "off" else ""
        raise InvalidArgument(
            f"host={settings.host!r} can be reached from other machines, and requests need no "
            f"token; make one with bide token create{hint}, or listen on 127.0.0.1"
        )
