"""The chain of a source: window after window, each asked for by one process."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import msgspec

from bide.consuming.graceful_stop import first_of
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Bury, Discard, Retry
from bide.consuming.store_client import StoreClient
from bide.engines.losses import listening
from bide.model.commands import Put, Reschedule, Revive
from bide.model.message import MAX_ATTEMPTS, Item, Message
from bide.model.replies import Outcomes
from bide.worker.periodic.chain import Links, id_of, moment_of, stands
from bide.worker.periodic.source import Asked, Source, Window, WindowBody, read_window

FIRST = "first"
"""The id of the first window of a store, which has no time."""

DEADLY = 3
"""The attempt from which a window whose process died is asked for with a delay."""

SLACK = 1_000

_log = logging.getLogger("bide.worker")


class SourceWindows(Links):
    """Asks a source for window after window.

    A window reaches from the time of the last request to `window` from now, so nothing is missed,
    even if no worker ran meanwhile. A finished window puts the next one, and is acked then; so
    windows never overlap, and one whose process dies is asked for again.

    Args:
        source: the source.
        store_client: runs its commands on the store.
    """

    def __init__(self, source: Source, store_client: StoreClient) -> None:
        super().__init__(store_client, source.home)
        self._source = source

    async def keep(self) -> None:
        """Begin, repair the chain whenever it is broken, and refill the queue after a loss."""
        lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        with listening(lambda: loop.call_soon_threadsafe(lost.set)):
            await self.begin()
            while True:
                await first_of(self.pause(), lost.wait())
                if lost.is_set():
                    lost.clear()
                    await self._refill()
                await self.ensure()

    async def _refill(self) -> None:
        """Ask again now for all messages due since `back` ago, as in a new store."""
        for link in await self.alive():
            if link.state == "leased":  # the next one asks for all that follows
                continue
            now = await self.now()
            body = self._body(None, None, read_window(link).put)
            item = Item(link.id, body, at=now, attempts=MAX_ATTEMPTS)
            put = Put(self.queue, [item], "replace")
            await self.store_client.patiently(Outcomes, put)

    async def ensure(self) -> None:
        """Put the first window if there is none, and move the next one forward if it must be."""
        alive = await self.alive()
        if alive:
            await self._hurry(alive)
            return
        dead = await self.in_state("dead")
        if dead:  # a source never ends: a window that a user has buried goes on as well
            await self.store_client.patiently(Outcomes, Revive(self.queue, [dead[-1].id]))
            return
        now = await self.now()
        body = self._body(None, None, 0)
        if stands(await self.put(FIRST, body, now)):
            return
        if not await self.alive():  # a user has emptied the queue
            await self.put(id_of(now), body, now)

    async def _hurry(self, alive: list[Message]) -> None:
        """Move the next window forward if a set clock or a new period left it too far away."""
        source = self._source
        latest = await self.now() + source.every
        for link in alive:
            if link.state == "delayed" and not link.attempt and link.due > latest + SLACK:
                command = Reschedule(self.queue, [link.id], latest, if_due=link.due)
                await self.store_client.patiently(Outcomes, command)

    async def attend(self, one: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Open a window, ask for it, and put the next one."""
        source, store_client = self._source, self.store_client
        moment = moment_of(one.id) or 0
        if await self.later(moment):
            raise Discard("this window has been asked for")
        self._hold_off(one)
        progress = read_window(one.message)
        asked = one.claimed
        after = asked - source.back if progress.after is None else min(progress.after, asked)
        await self.remember(source.queue, source.keep)
        window = Window(source, store_client, max(0, after), asked + source.window)
        one.given = window
        began = store_client.clock.monotonic()
        try:
            await go_on()
        except (Discard, Bury) as signal:  # these would end the chain
            what = type(signal).__name__
            raise Retry(
                reason=f"it raised {what}, but a source is asked until it answers"
            ) from None
        if one.gone:  # another process has it
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
        """Put the next window, on the grid of the first one."""
        every = self._source.every
        following = moment + max(1, (now - moment) // every + 1) * every
        while not stands(await self.put(id_of(following), body, following)):
            following += every

    def _hold_off(self, one: Handling) -> None:
        """Retry with growing delays if the source kills its process."""
        failures = one.message.failures
        if not failures or not failures[-1].lapsed or one.attempt < DEADLY:
            return
        pause = self._source.retry.delay(one.attempt, random.random())
        left = failures[-1].moment + pause - one.claimed
        if left > 0:
            raise Retry("the process died again while it asked", delay=left / 1000)

    def _body(self, after: int | None, last: Asked | None, put: int) -> bytes:
        source = self._source
        return msgspec.json.encode(WindowBody(after, source.every, source.window, last, put))
