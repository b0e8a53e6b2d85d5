"""The pages: each reads what it shows, within bounds."""

from collections.abc import Awaitable, Callable

from bide.dashboard.pages.log import log
from bide.dashboard.pages.messages import dead, message, search
from bide.dashboard.pages.queues import audit, overview, queue
from bide.dashboard.pages.work import periodic, subscriptions, workers
from bide.dashboard.view import HtmlPage, PageView

__all__ = ["PAGES"]

PAGES: dict[str, Callable[[PageView], Awaitable[HtmlPage]]] = {
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
"""The pages by path."""
