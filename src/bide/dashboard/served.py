"""The dashboard as pages of `bide serve`, with its tokens, quotas and action log.

Run as a program, it is a process of a server that also shows the dashboard; see
`bide.server.serve`. A visitor shows a token once, and gets a cookie for it. The cookie names the
token and carries a code that only the processes of this server can make. The token is looked up at
each request: one that was revoked, rotated or has expired ends its sessions.
"""

import hashlib
import hmac
import os
import sys
from urllib.parse import quote

from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.app import Dashboard
from bide.dashboard.view import Redirect, Refused, Request
from bide.model.commands import Command
from bide.model.errors import AccessDenied
from bide.model.undoing import Bulk, Undo
from bide.server.access.admission import refuse_foreign_hosts
from bide.server.access.rights import OPEN, Caller
from bide.server.access.tokens import Token
from bide.server.limits.admitted import Admitted
from bide.server.problem import Problem
from bide.server.serve import SESSION_KEY, main
from bide.server.service import Service

COOKIE = "bide_session"

LASTS = 12 * 3_600_000
"""Milliseconds until a session ends and the token is asked for again."""


class Sessions:
    """Tells who visits the dashboard of a server.

    Args:
        service: of the server.
        key: the secret of the server's processes that makes the codes of sessions.
    """

    def __init__(self, service: Service, key: bytes) -> None:
        self._service = service
        self._key = key

    async def visitor(self, request: Request) -> tuple[Caller, bool]:
        """Return who visits, and whether a session says so.

        Raises:
            Refused: the visitor must show a token.
            Problem: the host is not this machine, and no tokens are asked for.
        """
        if (cookie := request.cookie(COOKIE)) and (caller := await self._caller(cookie)):
            return caller, True
        admission = self._service.admission
        if not admission.asks:
            try:
                await admission.caller(None)  # a token may have been made
            except Problem:
                raise Refused(401, "login") from None
            refuse_foreign_hosts(request.scope, request.header("host"))
            return OPEN, False
        raise Refused(401, "login")

    def access_of(self, caller: Caller) -> Access:
        """Return what a caller may see and do.

        Raises:
            AccessDenied: the token has no right to read.
        """
        return Access(actions=ACTIONS, log=True) if caller is OPEN else Access.of(caller)

    async def log_in(self, request: Request) -> Redirect:
        """Begin a session with the token of a form.

        Raises:
            Refused: the token is not valid, or must not read.
        """
        text, service = request.get("token"), self._service
        try:
            client = service.addresses.of(dict(request.scope))
            caller = await service.admission.caller(text or "-", client)
            caller.need("read")
        except Problem as problem:
            raise Refused(problem.kind.status, "login", str(problem)) from None
        except AccessDenied as error:
            raise Refused(401, "login", str(error)) from None
        # Not by the id in `caller`: the subject of a JWT may be the id of another user's token.
        token = await service.tokens.known(text)
        if token is None:
            raise Refused(401, "login", "only a token of bide begins a session, no JWT")
        expires = service.clock.now() + LASTS
        value = f"{token.id}.{expires}.{self._code(token.hash, token.id, expires)}"
        return Redirect(
            request.inside(request.get("back")), self._cookie(request, value, LASTS // 1000)
        )

    def log_out(self, request: Request) -> Redirect:
        """End a session in the browser."""
        return Redirect(request.url(""), self._cookie(request, "", 0))

    async def _caller(self, cookie: str) -> Caller | None:
        """Return whose session a cookie is, `None` for none that is valid."""
        id, _, rest = cookie.partition(".")
        expires, _, code = rest.partition(".")
        if not (expires.isascii() and expires.isdecimal() and len(expires) < 16 and code.isascii()):
            return None
        if self._service.clock.now() >= int(expires):
            return None

        def proves(token: Token, now: int) -> bool:
            return any(
                hmac.compare_digest(code, self._code(hash, id, int(expires)))
                for hash in token.valid_hashes(now)
            )

        return await self._service.tokens.admitted(id, proves)

    def _code(self, hash: str, id: str, expires: int) -> str:
        return hmac.new(self._key, f"{hash}.{id}.{expires}".encode(), hashlib.sha256).hexdigest()

    def _cookie(self, request: Request, value: str, seconds: int) -> str:
        # A proxy may end TLS: the origin of the page names the browser's scheme.
        secure = request.scope.get("scheme") == "https" or (
            (request.header("origin") or "").startswith("https://")
        )
        return (
            f"{COOKIE}={value}; Path={quote(request.base) or '/'}; Max-Age={seconds}; HttpOnly; "
            f"SameSite=Strict{'; Secure' * secure}"
        )


def dashboard_of(service: Service, key: bytes) -> Dashboard:
    """Return the dashboard of a server.

    Args:
        service: of the server.
        key: the secret of the server's processes that makes the codes of sessions.
    """

    async def admit(access: Access, command: Command | Bulk | Undo) -> Admitted:
        """Keep a visitor within the quotas of their namespace."""
        return await service.quotas.admit(access.caller, [command])

    return Dashboard(
        service.settings.store, lambda scope: None, service.settings.dashboard_hide,
        service.action_log, service.clock, sessions=Sessions(service, key), admit=admit,
        address=service.addresses.of, gate=service.gate, bodies=service.large_bodies,
    )  # fmt: skip


if __name__ == "__main__":
    key = bytes.fromhex(os.environ.pop(SESSION_KEY))
    sys.exit(main(sys.argv[1:], lambda service: dashboard_of(service, key)))
