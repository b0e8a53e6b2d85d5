"""The chain of a source: window after window, each asked for once among all processes."""

import logging
import random
from collections.abc import Awaitable, Callable

import msgspec

from bide.consuming.handling import Handling
from bide.consuming.outcomes import Bury, Discard, Retry
from bide.consuming.store_client import StoreClient
from bide.model.commands import Reschedule, Revive
from bide.model.message import Message
from bide.model.replies import Outcomes
from bide.worker.periodic.chain import REMEMBERED, Links, id_of, moment_of, stands
from bide.worker.periodic.source import Asked, Source, Window, WindowBody, read_window

__all__ = ["SourceWindows"]

FIRST = "first"
"""The id of the first window of a store, which stands for no moment."""

DEADLY = 3
"""After so many attempts a window whose process died is no longer asked for at once."""

SLACK = 1_000

_log = logging.getLogger("bide.worker")


class SourceWindows:
    """Asks a source for window after window.

    A window reaches from the moment of the last asking to `window` from now: nothing falls between
    two of them, and whatever was missed while no worker was there is asked for by the next. A
    window that was asked for puts the next one, and is acked then; so none begins before the one
    before has ended, and one whose process dies is asked for again.

    Args:
        source: who is asked.
        store_client: runs its commands on the store.
    """

    def __init__(self, source: Source, store_client: StoreClient) -> None:
        self._source = source
        self._store_client = store_client
        self._links = Links(store_client, source.home)

    async def begin(self) -> None:
        """Put the first window if there is none."""
        await self._links.remember(self._links.queue, REMEMBERED)
        await self._ensure()

    async def keep(self) -> None:
        """Begin, and mend the chain whenever it broke."""
        await self.begin()
        while True:
            await self._links.pause()
            await self._ensure()

    async def _ensure(self) -> None:
        alive = await self._links.alive()
        if alive:
            await self._hurry(alive)
            return
        dead = await self._links.in_state("dead")
        if dead:  # nobody gives up a source: whoever buried its window wants to see it, not end it
            await self._store_client.patiently(Outcomes, Revive(self._links.queue, [dead[-1].id]))
            return
        now = await self._links.now()
        body = self._body(None, None, 0)
        if stands(await self._links.put(FIRST, body, now)):
            return
        if not await self._links.alive():  # it was emptied by hand not long ago
            await self._links.put(id_of(now), body, now)

    async def _hurry(self, alive: list[Message]) -> None:
        """Bring the next window forward if it is too far away: set back clock, shorter period."""
        source = self._source
        latest = await self._links.now() + source.every
        for link in alive:
            if link.state == "delayed" and not link.attempt and link.due > latest + SLACK:
                command = Reschedule(self._links.queue, [link.id], latest, if_due=link.due)
                await self._store_client.patiently(Outcomes, command)

    async def attend(self, one: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Open a window, have it asked for, and put the next one."""
        source, store_client = self._source, self._store_client
        moment = moment_of(one.id) or 0
        if await self._links.later(moment):
            raise Discard("this window has been asked for")
        self._hold_off(one)
        progress = read_window(one.message)
        asked = one.claimed
        after = asked - source.back if progress.after is None else min(progress.after, asked)
        await self._links.remember(source.queue, source.keep)
        window = Window(source, store_client, max(0, after), asked + source.window)
        one.given = window
        began = store_client.clock.monotonic()
        try:
            await go_on()
        except (Discard, Bury) as signal:  # which would end the chain
            what = type(signal).__name__
            raise Retry(
                reason=f"it raised {what}, but a source is asked until it answers"
            ) from None
        if one.gone:  # somebody else has it
            return
        ended = asked + round((store_client.clock.monotonic() - began) * 1000)
        _log.info(
            "source %s of %s: found %d, put %d, for %s to %s", source.name,
            source.queue, window.found, window.put, id_of(window.after), id_of(window.before),
        )  # fmt: skip
        done = Asked(window.after, window.before, ended, window.found, window.put)
        body = self._body(asked, done, progress.put + window.put)
        await self._put_next(moment or asked // source.every * source.every, ended, body)

    async def _put_next(self, moment: int, now: int, body: bytes) -> None:
        """Put the window after this one, on the grid that the first one has begun."""
        every = self._source.every
        following = moment + max(1, (now - moment) // every + 1) * every
        while not stands(await self._links.put(id_of(following), body, following)):
            following += every

    def _hold_off(self, one: Handling) -> None:
        """Wait longer and longer if it is the source that kills its process."""
        failures = one.message.failures
        if not failures or not failures[-1].lapsed or one.attempt < DEADLY:
            return
        pause = self._source.retry.delay(one.attempt, random.random())
        left = failures[-1].moment + pause - one.claimed
        if left > 0:
            raise Retry("the process that asked died, again; it rests", delay=left / 1000)

    def _body(self, after: int | None, last: Asked | None, put: int) -> bytes:
        source = self._source
        return msgspec.json.encode(WindowBody(after, source.every, source.window, last, put))
