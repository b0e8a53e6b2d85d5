"""Answers: their headers, redirects, and the files that the pages need."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files

from bide.dashboard.request import Request
from bide.dashboard.view import Redirect
from bide.server.call import Send

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

STATIC = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

NO_STORE = ((b"cache-control", b"no-store"),)


async def redirect(send: Send, to: Redirect, status: int = 303) -> None:
    """Send the browser to another page."""
    more = [(b"location", to.url.encode())]
    if to.cookie is not None:
        more.append((b"set-cookie", to.cookie.encode()))
    await send_whole(send, status, b"", "text/plain", (*NO_STORE, *more))


@lru_cache(maxsize=len(STATIC))
def _static(name: str) -> bytes:
    return files("bide.dashboard").joinpath("static", name).read_bytes()


@lru_cache(maxsize=1)
def edition() -> str:
    """Return what differs if these files do: browsers keep them for an hour by their URL."""
    return sha256(b"".join(map(_static, STATIC))).hexdigest()[:8]


async def send_static(request: Request, send: Send) -> None:
    """Send a file that the pages need."""
    name = request.path.removeprefix("/static/")
    if (kind := STATIC.get(name)) is None:
        await send_whole(send, 404, b"there is no such file", "text/plain")
        return
    await send_whole(send, 200, _static(name), kind, ((b"cache-control", b"max-age=3600"),))


async def send_whole(
    send: Send, status: int, data: bytes, kind: str, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send an answer with the headers that every answer of the dashboard has."""
    headers = [
        (b"content-type", kind.encode()), (b"content-length", b"%d" % len(data)), *HEADERS, *more,
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
