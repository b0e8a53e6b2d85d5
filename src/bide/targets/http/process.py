"""Pushing as a process of its own: it sends what is due until a signal says otherwise."""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence

from bide.clock import SYSTEM_CLOCK
from bide.engines.registry import mask
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Queues
from bide.targets.http.pusher import Pusher

__all__ = ["push"]

_log = logging.getLogger("bide.server.push")


async def push(
    url: str, networks: Sequence[str], grace: float, ready: Callable[[], None] = lambda: None
) -> None:
    """Push the subscriptions of a store until SIGTERM or Ctrl-C; a second one does not wait.

    Args:
        url: of the store.
        networks: networks that may be sent to though they are not public.
        grace: how many seconds the requests under way get to end by themselves.
        ready: called once the subscriptions are known.

    Raises:
        StoreError: the store cannot be opened. Once it was open, it is waited for instead.
    """
    lane = open_lane(url)
    try:
        await lane.acall(Queues("-"))  # what is wrong with it from the start is said at the start
        pusher = Pusher(lane, SYSTEM_CLOCK, networks=networks)
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            if stopping.is_set():
                pusher.hurry()
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        pushing = asyncio.create_task(pusher.run(grace))
        waiting = asyncio.create_task(stopping.wait())
        _log.info("pushing, from %s", mask(url))
        ready()
        await asyncio.wait((pushing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not pushing.done():
            _log.info("stopping; what is under way has %g s to finish", grace)
            pushing.cancel()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        try:
            await pushing
        except asyncio.CancelledError:
            _log.info("stopped")
    finally:
        await asyncio.to_thread(close_lane, lane)
