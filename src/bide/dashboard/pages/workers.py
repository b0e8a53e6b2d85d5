"""The workers, and the messages that they hold."""

import asyncio

from bide.dashboard.reading import READ_BYTES, SAMPLE_EVERY
from bide.dashboard.view import Page, View
from bide.model.commands import Scan
from bide.model.message import Message
from bide.model.replies import Page as Scanned

HELD = 20
"""How many held messages are listed of each queue."""


async def workers(view: View) -> Page:
    """Return the page of workers."""
    glance = await view.store.glance(view.access, after=view.request.get("after"))
    busy = [name for name in glance.names if glance.sample.queues[name].sizes.leased]

    async def read() -> list[Message]:
        scans = [Scan(name, "leased", limit=HELD, max_bytes=READ_BYTES // 8) for name in busy]
        pages = await asyncio.gather(*[view.store.ask(Scanned, scan) for scan in scans])
        return [message for page in pages for message in page.messages]

    held = await view.store.recent.get(("held", *busy), SAMPLE_EVERY, read)
    leased = sum(glance.sample.queues[name].sizes.leased for name in busy)
    return Page("workers.html", {"glance": glance, "held": held, "leased": leased})
