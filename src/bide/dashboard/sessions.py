"""The sessions of visitors who have shown a token to the dashboard of a server.

A visitor shows a token once, and gets a cookie for it. The cookie names the token and the session,
and carries a code that only the processes of this server can make. Both are looked up at each
request: a session ends at "Log out", and when its token is revoked, rotated or has expired.
"""

import hashlib
import hmac
from urllib.parse import quote

from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.view import PageRefused, PageRequest, Redirect
from bide.model.errors import AccessDenied
from bide.server.access.foreign_pages import refuse_foreign_hosts
from bide.server.access.rights import OPEN, Caller
from bide.server.access.tokens import Token
from bide.server.limits.gate import Visit
from bide.server.problem import Problem
from bide.server.service import Service
from bide.server.session_table import SessionTable

COOKIE = "bide_session"

SECURE_COOKIE = "__Host-bide_session"
"""The name over TLS."""

SESSION_MS = 12 * 3_600_000
"""Milliseconds until a session ends and the token is asked for again."""


class Sessions:
    """Tells who visits the dashboard of a server.

    Args:
        service: the service of the server.
        key: the secret of the server's processes that makes the codes of sessions.
    """

    def __init__(self, service: Service, key: bytes) -> None:
        self._service = service
        self._key = key
        self._table = SessionTable(service.shared.sessions)

    async def visitor(self, request: PageRequest) -> tuple[Caller, bool]:
        """Return who visits, and whether they have logged in.

        Raises:
            PageRefused: the visitor must show a token.
            Problem: the host is not this machine, and no tokens are asked for.
        """
        if (session := await self._session(request)) is not None:
            caller, _name = session
            return caller, True
        admission = self._service.admission
        if not admission.requires_tokens:
            try:
                await admission.caller(None)  # a token may have been made
            except Problem:
                raise PageRefused(401, "login") from None
            refuse_foreign_hosts(request.scope, request.header("host"))
            return OPEN, False
        raise PageRefused(401, "login")

    def access_of(self, caller: Caller) -> Access:
        """Return what a caller may see and do.

        Raises:
            AccessDenied: the token has no right to read.
        """
        return Access(actions=ACTIONS, log=True) if caller is OPEN else Access.of(caller)

    async def log_in(self, request: PageRequest, visit: Visit) -> Redirect:
        """Begin a session with the token of a form.

        Raises:
            Problem: the token is not valid.
            AccessDenied: it has no right to read, or it is a JWT.
        """
        text, service = request.get("token"), self._service
        client = service.addresses.of(dict(request.scope))
        visit.caller = await service.admission.caller(text or "-", client)
        visit.caller.need("read")
        # Not by the id in `caller`: the subject of a JWT may be the id of another user's token.
        token = await service.tokens.known(text)
        if token is None:
            raise AccessDenied("only a bide token can begin a session, not a JWT")
        now = service.clock.now()
        expires = now + SESSION_MS
        name = self._table.begin(token.id, now, expires)
        secure = _is_secure(request)
        code = self._code(token.hash, token.id, name, expires, secure=secure)
        value = f"{token.id}.{name}.{expires}.{code}"
        back = request.inside(request.get("back"))
        return Redirect(back, self._cookie(request, value, SESSION_MS // 1000, secure=secure))

    async def log_out(self, request: PageRequest, visit: Visit) -> Redirect:
        """End a session, for every copy of its cookie."""
        session = await self._session(request)
        if session is not None:
            visit.caller, name = session
            self._table.end(name, self._service.clock.now())
        secure = request.cookie(SECURE_COOKIE) is not None
        return Redirect(request.url(""), self._cookie(request, "", 0, secure=secure))

    async def _session(self, request: PageRequest) -> tuple[Caller, str] | None:
        """Return who visits, and the name of the session; `None` without a valid cookie."""
        secure_cookie = request.cookie(SECURE_COOKIE)
        secure = secure_cookie is not None
        cookie = secure_cookie or request.cookie(COOKIE) or ""
        if cookie.count(".") < 3:
            return None
        id, name, expires, code, *_ = cookie.split(".")
        is_number = expires.isascii() and expires.isdecimal() and len(expires) < 16
        if not is_number or not code.isascii():  # `compare_digest` takes no other texts
            return None
        now = self._service.clock.now()
        if now >= int(expires) or not self._table.has(name, now):
            return None

        def proves(token: Token, now: int) -> bool:
            return any(
                hmac.compare_digest(code, self._code(hash, id, name, int(expires), secure=secure))
                for hash in token.valid_hashes(now)
            )

        caller = await self._service.tokens.admitted(id, proves)
        return None if caller is None else (caller, name)

    def _code(self, hash: str, id: str, name: str, expires: int, *, secure: bool) -> str:
        """Return the code by which a cookie is known to be of this server.

        The hash of the token's secret is in it, so that a rotated token ends its sessions.

        Args:
            hash: the hash of the token's secret.
            id: the id of the token.
            name: the name of the session.
            expires: when the session ends, in Unix milliseconds.
            secure: whether the cookie is only for TLS.
        """
        content = f"{hash}.{id}.{name}.{expires}.{secure}"
        return hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()

    def _cookie(self, request: PageRequest, value: str, seconds: int, *, secure: bool) -> str:
        """Return the value of the header `Set-Cookie`."""
        # By its prefix browsers take the cookie from this host alone, over TLS, for all paths.
        name = SECURE_COOKIE if secure else COOKIE
        path = "/" if secure else quote(request.base) or "/"
        attribute = "; Secure" if secure else ""
        return (
            f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{attribute}"
        )


def _is_secure(request: PageRequest) -> bool:
    """Tell whether the browser uses TLS. A proxy may end it: the origin of the page names it."""
    origin = request.header("origin") or ""
    return request.scope.get("scheme") == "https" or origin.startswith("https://")
