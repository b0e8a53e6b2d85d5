"""The pages: each reads what it shows, within bounds."""

from collections.abc import Awaitable, Callable

from bide.dashboard.pages.audit import audit
from bide.dashboard.pages.dead import dead
from bide.dashboard.pages.log import log
from bide.dashboard.pages.message import message
from bide.dashboard.pages.overview import overview
from bide.dashboard.pages.periodic import periodic
from bide.dashboard.pages.queue import queue
from bide.dashboard.pages.search import search
from bide.dashboard.pages.subscriptions import subscriptions
from bide.dashboard.pages.workers import workers
from bide.dashboard.view import Page, View

__all__ = ["PAGES"]

PAGES: dict[str, Callable[[View], Awaitable[Page]]] = {
    "/": overview,
    "/queue": queue,
    "/message": message,
    "/dead": dead,
    "/workers": workers,
    "/periodic": periodic,
    "/subscriptions": subscriptions,
    "/audit": audit,
    "/log": log,
    "/search": search,
}
"""By path."""
