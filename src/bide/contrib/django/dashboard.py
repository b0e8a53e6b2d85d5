"""The dashboard as a page of the admin: its users, and what Django's permissions allow them."""

import threading
from typing import Any

from django.http import HttpRequest, HttpResponse

from bide.contrib.django.conf import configuration, store_url
from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.wsgi_app import ThreadedDashboard

_lock = threading.Lock()
"""Guards `_dashboards`: requests run in threads."""

_dashboards: dict[tuple[Any, ...], ThreadedDashboard] = {}
"""One, and in tests with other settings several, by the settings."""


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
    bide_settings = configuration()
    dashboard = _dashboard(store_url(), tuple(bide_settings.hide), bide_settings.action_log)
    status, content, headers, _ = dashboard.answer(scope, access_of(request.user), request.body)
    response = HttpResponse(content, status=status)
    for name, value in headers.items():
        if name == "set-cookie":  # the only one is that of the language
            response.cookies.load(value)
        else:
            response[name] = value
    return response


def _dashboard(*settings: Any) -> ThreadedDashboard:
    """Return the dashboard of these settings."""
    with _lock:
        if settings not in _dashboards:
            _dashboards[settings] = ThreadedDashboard(*settings)
        return _dashboards[settings]


def close() -> None:
    """Close the connections of the dashboard to the store; the next request opens them again."""
    with _lock:
        for dashboard in _dashboards.values():
            dashboard.close()
        _dashboards.clear()
