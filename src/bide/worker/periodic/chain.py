"""Chains: messages of which each puts the next one, so that no process needs to lead.

A chain has its own queue. The id of a link is its time, so it exists once, even if several
processes put it; the queue remembers acked links, so that they are not put again. If a link is
claimed while a later one exists, it was done before: only a link that is done puts the next.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from bide.lane.steps import Steps, arun_steps
from bide.model.commands import Configure, Put, Scan
from bide.model.message import MAX_ATTEMPTS, Item, Message
from bide.model.replies import Outcomes, Page, QueueSettings
from bide.model.times import iso, unix
from bide.worker.periodic.upkeep import PeriodicUpkeep

REMEMBERED = 2 * 3_600_000
"""The least time in ms that an acked link is remembered: a clock may be set back by one hour, and a
process may sleep between a check and a put."""


class Links(PeriodicUpkeep):
    """The links of one chain in the store. A subclass puts them."""

    async def begin(self) -> None:
        """Put the first link if there is none."""
        await self.remember(self.queue, REMEMBERED)
        await super().begin()

    async def alive(self) -> list[Message]:
        """Return all links that wait or are leased."""
        return await arun_steps(alive(self.queue), partial(self.store_client.patiently, Page))

    async def has_later(self, moment: int) -> bool:
        """Tell whether a link of a later time waits or is leased."""
        # An id that is no time is of a message that a user has put there: it is no link.
        return any((moment_of(link.id) or 0) > moment for link in await self.alive())

    async def put(
        self,
        moment: int,
        following: Callable[[int], int],
        body: Callable[[int], bytes],
        attempts: int = MAX_ATTEMPTS,
        earliest: int = 0,
    ) -> str:
        """Put the link of a time, or the first later one that was not acked; return its id.

        Args:
            moment: the time.
            following: returns the next time after one.
            body: returns the body of the link of a time.
            attempts: of the link.
            earliest: it is not due before.
        """
        while True:
            due = max(moment, earliest)
            item = Item(id_of(moment), body(moment), at=due, attempts=attempts)
            reply = await self.store_client.patiently(Outcomes, Put(self.queue, [item]))
            outcome = reply.outcomes[0]
            # Another process may have put it. If it is acked or dead, its time is over.
            if outcome.done or outcome.state in ("delayed", "ready", "leased"):
                return item.id
            moment = following(moment)

    async def remember(self, queue: str, keep: int) -> None:
        """Let a queue remember acked messages for at least `keep` milliseconds."""
        settings = await self.store_client.patiently(QueueSettings, Configure(queue))
        if settings.keep < keep:
            await self.store_client.patiently(QueueSettings, Configure(queue, keep=keep))


def alive(queue: str) -> Steps[list[Message]]:
    """Return all links of a queue that wait or are leased, in no order."""
    links: dict[str, Message] = {}
    # "next" twice: a link that is released between the two scans would be in neither.
    for state in ("next", "leased", "next"):
        page: Page = yield Scan(queue, state)
        links |= {message.id: message for message in page.messages}
    return list(links.values())


def id_of(moment: int) -> str:
    """Return the id of the link of a time.

    Example:
        >>> id_of(1_700_000_000_000)
        '2023-11-14T22:13:20.000Z'
    """
    return iso(moment)


def moment_of(id: str) -> int | None:
    """Return the time of a link's id in Unix milliseconds; `None` for any other id.

    Example:
        >>> moment_of("2023-11-14T22:13:20.000Z")
        1700000000000
    """
    try:
        return unix(datetime.fromisoformat(id))
    except ValueError:  # it is no time, has no time zone, or is too far away
        return None
