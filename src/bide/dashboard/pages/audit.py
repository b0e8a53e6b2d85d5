"""The audit: whether every message is accounted for."""

from bide.dashboard.view import Page, View
from bide.queue.results import Audit

GONE = ("acked", "cancelled", "expired", "purged")


async def audit(view: View) -> Page:
    """Return the page of the audit, by the counters alone."""
    glance = await view.store.glance(view.access, after=view.request.get("after"))
    found = [Audit.of(view.own(name), glance.sample.queues[name]) for name in glance.names]
    return Page("audit.html", {
        "found": found, "gone": GONE, "following": glance.following, "recounted": False,
    })  # fmt: skip
