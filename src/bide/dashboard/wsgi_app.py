"""The dashboard for callers without an event loop: WSGI, and the views of Django."""

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from operator import itemgetter
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from bide.dashboard.access import Access
from bide.dashboard.app import Dashboard
from bide.dashboard.redaction import hidden_names
from bide.engines.registry import opener
from bide.model.limits import MAX_FORM
from bide.server.logs import ActionLog
from bide.server.operation import Answer
from bide.threads import Background

PATIENCE = 60.0
"""Seconds after which a request that has no answer fails; a page takes 8 at most."""

ACCESS = "bide.access"
"""Under which name a scope has what the visitor may see and do."""


CUT_SHORT = Answer(
    400, b"the body of the request has not come whole", {"content-type": "text/plain"}
)


class ThreadedDashboard:
    """The dashboard of one store, which any thread may ask.

    It answers in a thread of its own, which the first request of each process starts, so that all
    pages share what was read lately.

    Args:
        store: its URL.
        hide: names of the parts of bodies, and of the headers, that are not shown.
        action_log: a file to which a JSON line is appended for each action.

    Raises:
        InvalidArgument: the URL names no kind of store, `hide` is one text, or the file cannot be
            written.
    """

    def __init__(self, store: str, hide: Collection[str], action_log: str | None) -> None:
        opener(store)
        self._store = store
        self._hide = hidden_names(hide)
        self._action_log = ActionLog(action_log)
        self._lock = threading.Lock()
        """Held while `_running` is read or replaced."""
        self._running: _Running | None = None
        """The thread that answers; `None` before the first request, and after `close`."""

    def answer(self, scope: Mapping[str, Any], access: Access | None, body: bytes | None) -> Answer:
        """Return the answer to a request.

        Args:
            scope: the ASGI scope of the request, as far as `PageRequest` reads it.
            access: what its visitor may see and do; `None`: nothing at all.
            body: the body of the request; `None`: the client left before it had come whole.

        Raises:
            TimeoutError: it takes longer than `PATIENCE`.
        """
        running = self._running_here()
        full_scope = {"type": "http", **scope, ACCESS: access}
        answering = _answer(running.dashboard, full_scope, body)
        future = asyncio.run_coroutine_threadsafe(answering, running.loop)
        try:
            return future.result(PATIENCE)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the connections to the store; the next request opens them again."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None and running.process == os.getpid():
            closing = running.dashboard.close()
            asyncio.run_coroutine_threadsafe(closing, running.loop).result(PATIENCE)
            running.end()

    def _running_here(self) -> "_Running":
        """Return the thread of this process: after a fork, that of the parent is not there."""
        with self._lock:
            if self._running is None or self._running.process != os.getpid():
                dashboard = Dashboard(self._store, itemgetter(ACCESS), self._hide, self._action_log)
                self._running = _Running(dashboard)
                self._running.thread.ensure()
            return self._running


@dataclass(eq=False)
class _Running:
    """A thread with an event loop, in which a dashboard answers."""

    dashboard: Dashboard
    process: int = field(default_factory=os.getpid)
    """The id of the process whose thread it is."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _ending: bool = False
    """Whether `end` was called."""

    def __post_init__(self) -> None:
        self.thread = Background("bide-dashboard", self._run)

    def end(self) -> None:
        """End the thread, and close its event loop."""
        self._ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def _run(self) -> None:
        if not self._ending:  # else it died of an error just before its end
            self.loop.run_forever()


async def _answer(dashboard: Dashboard, scope: dict[str, Any], body: bytes | None) -> Answer:
    """Return the answer of a dashboard to a request whose body has come; `None`: it has not."""

    async def receive() -> dict[str, Any]:
        if body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    visit = dashboard.visit(scope)
    try:
        return await dashboard.answer(scope, receive, visit) or CUT_SHORT
    finally:
        visit.close()


WsgiAccessFunction = Callable[[WSGIEnvironment], Access | None]
"""Takes the environ of a request; returns what its visitor may, `None`: nothing at all."""


class WsgiDashboard(ThreadedDashboard):
    """The dashboard of one store as a WSGI application; see `wsgi`, which makes it."""

    def __init__(
        self, store: str, access: WsgiAccessFunction, hide: Collection[str], action_log: str | None
    ) -> None:
        super().__init__(store, hide, action_log)
        self._access = access

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Answer a request; the server calls this."""
        access = self._access(environ)
        answer = self.answer(_scope_of(environ), access, _body_of(environ))
        status_line = f"{answer.status} {HTTPStatus(answer.status).phrase}"
        start_response(status_line, list(answer.headers.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.content]


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
        hide: names of the parts of bodies, and of the headers, that are not shown.
        action_log: a file to which a JSON line is appended for each action.

    Raises:
        InvalidArgument: the URL names no kind of store, `hide` is one text, or the file cannot be
            written.

    Example:
        >>> from bide.dashboard import Access
        >>> dashboard = wsgi("memory://", access=lambda environ: Access(name="ann"), hide=["card"])
    """
    return WsgiDashboard(store, access, hide, action_log)


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
    """Return the header fields as ASGI has them: HTTP_USER_AGENT is user-agent."""
    return [
        (name.removeprefix("HTTP_").lower().replace("_", "-").encode(), value.encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    ]


def _body_of(environ: WSGIEnvironment) -> bytes | None:
    """Return the body of a form; `None` if the client left before it had come whole.

    For a form that is too large, it returns nothing, or just enough to refuse it.
    """
    if environ["REQUEST_METHOD"] != "POST":
        return b""
    length = environ.get("CONTENT_LENGTH", "")
    if not length.isdecimal():
        # Without a length, only some servers tell where the body ends, such as one in chunks.
        has_end = environ.get("wsgi.input_terminated", False)
        body: bytes = environ["wsgi.input"].read(MAX_FORM + 1) if has_end else b""
        return body
    if int(length) > MAX_FORM:
        return b""
    body = environ["wsgi.input"].read(int(length))
    return body if len(body) == int(length) else None
