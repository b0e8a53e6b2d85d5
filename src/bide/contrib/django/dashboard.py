"""The dashboard as a view of Django."""

import threading
from typing import Any

from django.http import HttpRequest, HttpResponse

from bide.contrib.django.conf import configuration, store_url
from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.wsgi_app import ThreadedDashboard

__all__ = ["access_of", "answer", "close"]

_lock = threading.Lock()
_dashboards: dict[tuple[Any, ...], ThreadedDashboard] = {}
"""None or one, by the settings."""


def access_of(user: Any) -> Access | None:
    """Return what a user may see and do, by the permissions of Django; `None`: nothing at all."""
    if not user.has_perm("bide.view_store"):
        return None
    return Access(
        name=str(user.get_username()),
        actions=[name for name in ACTIONS if user.has_perm(f"bide.{name}")],
        bodies=user.has_perm("bide.bodies"),
        log=user.has_perm("bide.log"),
    )


def answer(request: HttpRequest, base: str) -> HttpResponse:
    """Answer a request to the dashboard that is mounted at the path `base`."""
    scope = {
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
    }
    found = configuration()
    dashboard = _dashboard(store_url(), tuple(found.hide), found.action_log)
    status, headers, body = dashboard.answer(scope, access_of(request.user), request.body)
    response = HttpResponse(body, status=status)
    for name, value in headers:
        if name == "set-cookie":  # the only one is that of the language
            response.cookies.load(value)
        else:
            response[name] = value
    return response


def _dashboard(*settings: Any) -> ThreadedDashboard:
    """Return the dashboard of these settings; with other ones, it is another."""
    with _lock:
        if settings not in _dashboards:
            _close_all()
            _dashboards[settings] = ThreadedDashboard(*settings)
        return _dashboards[settings]


def close() -> None:
    """Close the connections of the dashboard to the store; the next request opens them again."""
    with _lock:
        _close_all()


def _close_all() -> None:
    while _dashboards:
        _dashboards.popitem()[1].close()
