"""Chains: messages of which each puts the one after it, so that nobody needs to lead.

A chain has a queue to itself. The id of a link is the moment that it stands for, so whoever puts
it, and however often, it is there once; the queue remembers what was acked, so that it is not put
again. A link that is claimed though a later one is there has been done: only a done one puts its
successor, or, where that must not wait, one that was begun.
"""

import logging
from datetime import datetime

from bide.clock import sleep
from bide.consuming.store_client import StoreClient
from bide.model.commands import Configure, Forecast, Put, Scan
from bide.model.message import MAX_ATTEMPTS, Item, Message, State
from bide.model.moments import to_datetime
from bide.model.replies import Forecasted, Outcome, Outcomes, Page, Settings

__all__ = ["REMEMBERED", "Links", "id_of", "moment_of"]

LOOK = 60.0
"""Seconds after which each process looks whether the chain has broken, as by a purge."""

REMEMBERED = 2 * 3_600_000
"""For how many milliseconds at least an acked link is remembered: a clock may be set back by one
hour, and a process may sleep between a look and a put."""

PAGE = 500
WAITING = ("delayed", "ready", "leased")

_log = logging.getLogger("bide.worker")


class Links:
    """The links of one chain in the store.

    Args:
        store_client: runs its commands on the store.
        queue: theirs alone.
    """

    def __init__(self, store_client: StoreClient, queue: str) -> None:
        self.store_client = store_client
        self.queue = queue

    async def now(self) -> int:
        """Return the store's time."""
        return (await self.store_client.patiently(Forecasted, Forecast(self.queue, 1, 1))).start

    async def alive(self) -> list[Message]:
        """Return all links that somebody holds or that wait."""
        found: dict[str, Message] = {}
        # Looked at twice: one that was handed back between two looks would be in neither.
        for state in ("next", "leased", "next"):
            page = await self.store_client.patiently(Page, Scan(self.queue, state, limit=PAGE))
            found |= {message.id: message for message in page.messages}
        return list(found.values())

    async def in_state(self, state: State) -> list[Message]:
        """Return the links of one state."""
        page = await self.store_client.patiently(Page, Scan(self.queue, state, limit=PAGE))
        return page.messages

    async def later(self, moment: int) -> bool:
        """Tell whether a link is there that stands for a later moment."""
        return any((moment_of(link.id) or 0) > moment for link in await self.alive())

    async def put(self, id: str, body: bytes, at: int, attempts: int = MAX_ATTEMPTS) -> Outcome:
        """Put a link, unless it is there or was there."""
        put = Put(self.queue, [Item(id, body, at=at, attempts=attempts)])
        return (await self.store_client.patiently(Outcomes, put)).outcomes[0]

    async def remember(self, queue: str, keep: int) -> None:
        """Have a queue remember what was acked for so long at least, in milliseconds."""
        settings = await self.store_client.patiently(Settings, Configure(queue))
        if settings.keep < keep:
            await self.store_client.patiently(Settings, Configure(queue, keep=keep))

    async def pause(self) -> None:
        """Wait until it is time to look at the chain again."""
        await sleep(self.store_client.clock, LOOK)


def stands(outcome: Outcome) -> bool:
    """Tell whether a link waits or is held, whoever has put it."""
    return outcome.done or outcome.state in WAITING


def id_of(moment: int) -> str:
    """Return the id of the link of a moment.

    Example:
        >>> id_of(1_700_000_000_000)
        '2023-11-14T22:13:20.000Z'
    """
    return to_datetime(moment).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_of(id: str) -> int | None:
    """Return the moment that an id stands for, in Unix milliseconds; `None` for any other id.

    Example:
        >>> moment_of("2023-11-14T22:13:20.000Z")
        1700000000000
    """
    try:
        moment = datetime.fromisoformat(id)
    except ValueError:
        return None
    return round(moment.timestamp() * 1000) if moment.tzinfo is not None else None
