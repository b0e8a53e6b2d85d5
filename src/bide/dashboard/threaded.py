"""The dashboard for callers without an event loop: WSGI, and the views of Django."""

import asyncio
import os
import threading
from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from bide.dashboard.access import Access
from bide.dashboard.app import Dashboard
from bide.engines.registry import opener
from bide.server.action_log import ActionLog

PATIENCE = 60.0
"""Seconds after which a request that has no answer fails; a page takes 8 at most."""

ACCESS = "bide.access"
"""Under which name a scope has what the visitor may see and do."""


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


CUT_SHORT = Answer(
    400, [("content-type", "text/plain")], b"the body of the request has not come whole"
)


class ThreadedDashboard:
    """The dashboard of one store, which any thread may ask.

    It answers in a thread of its own, which the first request of each process starts, so that all
    pages share what was read lately.

    Args:
        store: its URL.
        hide: names of the parts of bodies, and of the headers, that nobody is shown.
        action_log: a file to which a JSON line is appended for each action.

    Raises:
        InvalidArgument: the URL names no kind of store, or the file cannot be written.
    """

    def __init__(self, store: str, hide: Collection[str], action_log: str | None) -> None:
        opener(store)
        self._store = store
        self._hide = tuple(hide)
        self._action_log = ActionLog(action_log)
        self._lock = threading.Lock()
        self._thread: _Thread | None = None

    def answer(self, scope: Mapping[str, Any], access: Access | None, body: bytes | None) -> Answer:
        """Return the answer to a request.

        Args:
            scope: the ASGI scope of the request, as far as `Request` reads it.
            access: what its visitor may see and do; `None`: nothing at all.
            body: of the request; `None`: the client left before it had come whole.

        Raises:
            TimeoutError: it takes longer than `PATIENCE`.
        """
        return self._own_thread().answer({"type": "http", **scope, ACCESS: access}, body)

    def close(self) -> None:
        """Close the connections to the store; the next request opens them again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.is_here:
            thread.close()

    def _own_thread(self) -> "_Thread":
        """Return the thread of this process; that of a parent has not come along."""
        with self._lock:
            if self._thread is None or not self._thread.is_here:
                dashboard = Dashboard(self._store, itemgetter(ACCESS), self._hide, self._action_log)
                self._thread = _Thread(dashboard)
            return self._thread


class _Thread:
    """A thread with an event loop, in which a dashboard answers."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._running = threading.Thread(
            target=self._loop.run_forever, name="bide-dashboard", daemon=True
        )
        self._running.start()

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process."""
        return self._process == os.getpid()

    def close(self) -> None:
        """Let go of the store, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._dashboard.close(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._running.join()
        self._loop.close()

    def answer(self, scope: dict[str, Any], body: bytes | None) -> Answer:
        """Return the answer to one request."""
        future = asyncio.run_coroutine_threadsafe(self._answer(scope, body), self._loop)
        try:
            return future.result(PATIENCE)
        except BaseException:
            future.cancel()
            raise

    async def _answer(self, scope: dict[str, Any], body: bytes | None) -> Answer:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if body is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._dashboard(scope, receive, send)
        if not sent:
            return CUT_SHORT
        start, *parts = sent
        headers = [(name.decode(), value.decode("latin-1")) for name, value in start["headers"]]
        return Answer(start["status"], headers, b"".join(part["body"] for part in parts))
