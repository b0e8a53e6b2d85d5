"""The dashboard as a WSGI application."""

from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from bide.dashboard.access import Access
from bide.dashboard.threaded import ThreadedDashboard
from bide.model.limits import MAX_FORM

WsgiAccessFunction = Callable[[WSGIEnvironment], Access | None]
"""Takes the environ of a request; returns what its visitor may, `None`: nothing at all."""


class WsgiDashboard:
    """The dashboard of one store; `wsgi` makes it.

    Args:
        dashboard: answers the requests.
        access: tells what the visitor of a request may see and do.
    """

    def __init__(self, dashboard: ThreadedDashboard, access: WsgiAccessFunction) -> None:
        self._dashboard = dashboard
        self._access = access

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Answer a request; the server calls this."""
        access = self._access(environ)
        answer = self._dashboard.answer(_scope_of(environ), access, _body_of(environ))
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", answer.headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def close(self) -> None:
        """Close the connections to the store; the next request opens them again."""
        self._dashboard.close()


def wsgi(
    store: str,
    *,
    access: WsgiAccessFunction,
    hide: Collection[str] = (),
    action_log: str | None = None,
) -> WsgiDashboard:
    """Return the dashboard as a WSGI application, to mount in Flask or another application.

    It answers in a thread of its own, which the first request of each process starts. No request
    stays open: a page that is shown asks again every two seconds.

    Args:
        store: the URL of the store.
        access: takes the WSGI environ of a request, and returns what its visitor may see and do:
            an `Access`, or `None` for nothing at all. It is called in the thread of the request;
            what it raises, the server gets.
        hide: names of the parts of bodies, and of the headers, that nobody is shown.
        action_log: a file to which a JSON line is appended for each action.

    Raises:
        InvalidArgument: the URL names no kind of store, or the file cannot be written.

    Example:
        >>> from bide.dashboard import Access
        >>> dashboard = wsgi("memory://", access=lambda environ: Access(name="ann"), hide=["card"])
    """
    return WsgiDashboard(ThreadedDashboard(store, hide, action_log), access)


def _scope_of(environ: WSGIEnvironment) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    base = _text(environ.get("SCRIPT_NAME", "")).rstrip("/")
    return {
        "method": environ["REQUEST_METHOD"],
        "scheme": environ["wsgi.url_scheme"],
        "path": base + _text(environ.get("PATH_INFO", "")),
        "root_path": base,
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": _headers_of(environ),
        "client": (environ.get("REMOTE_ADDR", ""), 0),
    }


def _text(path: str) -> str:
    """Return a path as text: WSGI gives its bytes as Latin-1."""
    return path.encode("latin-1").decode("utf-8", "replace")


def _headers_of(environ: WSGIEnvironment) -> list[tuple[bytes, bytes]]:
    return [
        (name.removeprefix("HTTP_").lower().replace("_", "-").encode(), value.encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    ]


def _body_of(environ: WSGIEnvironment) -> bytes | None:
    """Return the body of a form; `None` if the client left before it had come whole.

    Of one that is too large it returns nothing, or just enough for it to be refused.
    """
    if environ["REQUEST_METHOD"] != "POST":
        return b""
    length = environ.get("CONTENT_LENGTH", "")
    if not length.isdecimal():
        ends = environ.get("wsgi.input_terminated", False)  # as a body in chunks does
        body: bytes = environ["wsgi.input"].read(MAX_FORM + 1) if ends else b""
        return body
    if int(length) > MAX_FORM:
        return b""
    body = environ["wsgi.input"].read(int(length))
    return body if len(body) == int(length) else None
