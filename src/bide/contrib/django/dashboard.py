"""The dashboard as a view of Django."""

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from bide.contrib.django.conf import configuration, store_url
from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.app import Dashboard, asgi

__all__ = ["access_of", "answer", "close"]

_lock = threading.Lock()
_threads: dict[tuple[Any, ...], "_Thread"] = {}
"""None or one, by the settings and the process."""

PATIENCE = 60.0
"""Seconds after which a request that has no answer fails; a page takes 8 at most."""


def access_of(user: Any) -> Access | None:
    """Return what a user may see and do, by the permissions of Django; `None`: nothing at all."""
    if not user.has_perm("bide.view_store"):
        return None
    return Access(
        name=str(user.get_username()),
        actions=[name for name in ACTIONS if user.has_perm(f"bide.{name}")],
        bodies=user.has_perm("bide.bodies"),
    )


def answer(request: HttpRequest, base: str) -> HttpResponse:
    """Answer a request to the dashboard that is mounted at the path `base`."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": base,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.encode("utf-8"))
            for name, value in request.headers.items()
        ],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "bide.access": access_of(request.user),
    }
    found = configuration()
    thread = _thread(store_url(), tuple(found.hide), found.action_log, os.getpid())
    return thread.answer(scope, request.body)


def _thread(*key: Any) -> "_Thread":
    """Return the thread of this process; with other settings, and after a fork, another one."""
    with _lock:
        if key not in _threads:
            _close_all()
            store, hide, action_log, _ = key
            dashboard = asgi(store, access=_access, hide=hide, action_log=action_log)
            _threads[key] = _Thread(dashboard)
        return _threads[key]


def close() -> None:
    """Close the connections of the dashboard to the store; the next request opens them again."""
    with _lock:
        _close_all()


def _close_all() -> None:
    while _threads:
        (*_, process), thread = _threads.popitem()
        if process == os.getpid():  # else it stayed in the parent
            thread.close()


def _access(scope: Mapping[str, Any]) -> Access | None:
    found: Access | None = scope["bide.access"]
    return found


class _Thread:
    """A thread with an event loop, in which the dashboard answers: it keeps what pages share."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._loop = asyncio.new_event_loop()
        self._running = threading.Thread(
            target=self._loop.run_forever, name="bide-dashboard", daemon=True
        )
        self._running.start()

    def close(self) -> None:
        """Let go of the store, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._dashboard.close(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._running.join()
        self._loop.close()

    def answer(self, scope: dict[str, Any], body: bytes) -> HttpResponse:
        """Return the answer to one request."""
        future = asyncio.run_coroutine_threadsafe(self._answer(scope, body), self._loop)
        try:
            return future.result(PATIENCE)
        except BaseException:
            future.cancel()
            raise

    async def _answer(self, scope: dict[str, Any], body: bytes) -> HttpResponse:
        response = HttpResponse()
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                parts.append(message.get("body", b""))
                return
            response.status_code = message["status"]
            for name, value in message["headers"]:
                if name == b"set-cookie":  # the only one is that of the language
                    response.cookies.load(value.decode("latin-1"))
                else:
                    response[name.decode("latin-1")] = value.decode("latin-1")

        await self._dashboard(scope, receive, send)
        response.content = b"".join(parts)
        return response
