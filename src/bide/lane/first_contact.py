"""Wait for a store that is not there yet, as when all parts of a deployment start at once."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path

from bide.clock import SYSTEM_CLOCK, Clock, sleep
from bide.engines.registry import absolute, file_of, mask, opener
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.logs import logger
from bide.model.backoff import Backoff
from bide.model.commands import Queues
from bide.model.errors import StoreBusy, StoreUnavailable

PAUSES = Backoff(first="100ms", factor=2, ceiling="2s", jitter=0.2)
"""The pauses between two attempts."""

SILENCE = 1.0
"""Seconds without an answer after which a log line says what is waited for. The first attempt may
take longer than that: engines try for some seconds to connect."""

REMIND_EVERY = 60.0
"""Seconds between two log lines while the store is away."""

LOOK_EVERY = 0.2
"""Seconds between two looks whether a file is there."""

_log = logger("bide.lane")


async def first_contact(lane: Lane, url: str, note_away: Callable[[], None] = lambda: None) -> None:
    """Open a store; wait for it as long as its server does not answer.

    A caller that is cancelled need not wait for an attempt that is under way. Closing the lane
    would: see `lane_when_there`.

    Args:
        lane: the lane to the store.
        url: of the store.
        note_away: called when the store does not answer.

    Raises:
        StoreError: the store cannot be opened, and waiting would not help: the password is wrong, a
            newer bide made the store, a folder is missing.
    """
    shown = mask(absolute(url))
    began = lane.clock.monotonic()
    remind_at, attempt = began, 0
    while True:
        answer = asyncio.ensure_future(asyncio.wrap_future(_ask(lane)))
        answered, _ = await asyncio.wait({answer}, timeout=None if attempt else SILENCE)
        if not answered:
            note_away()
            _log.warning("%s has not answered yet; waiting for it", shown)
        try:
            await answer
        except StoreBusy as error:  # it exists, and commands wait for it
            _log.warning("%s", error)
            return
        except StoreUnavailable as error:
            if error.lasts or file_of(url) is not None:  # waiting does not mend a path or a right
                raise
            note_away()
            now = lane.clock.monotonic()
            if now >= remind_at:
                remind_at = now + REMIND_EVERY
                _log.error("the store is away; waiting for it: %s", error)
        else:
            if attempt or not answered:
                waited = lane.clock.monotonic() - began
                _log.warning("the store is back after %.1f s", waited)
            return
        attempt += 1
        await sleep(lane.clock, PAUSES.delay(attempt, random.random()) / 1000)


def _ask(lane: Lane) -> "Future[None]":
    """Ask the store something in a thread that no end of the process waits for."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()  # who gives up must not cancel it: the thread ends it

    def ask() -> None:
        try:
            # The cheapest command: few queues, if any, have names that begin so.
            lane.call(Queues("-"))
        except BaseException as error:  # noqa: BLE001  (it is handed to its caller)
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=ask, name="bide-first-contact", daemon=True).start()
    return future


@asynccontextmanager
async def lane_when_there(
    url: str, clock: Clock = SYSTEM_CLOCK, note_away: Callable[[], None] = lambda: None
) -> AsyncIterator[Lane]:
    """Open a lane for the length of the block, which begins once the store answers.

    Args:
        url: of the store.
        clock: of the lane.
        note_away: called when the store does not answer.

    Raises:
        StoreError: see `first_contact`.
    """
    lane = open_lane(url, clock)
    try:
        await first_contact(lane, url, note_away)
    except asyncio.CancelledError:
        # An attempt may be under way, for which the closing waits.
        closing = threading.Thread(
            target=close_lane, args=(lane,), name="bide-first-contact", daemon=True
        )
        closing.start()
        raise
    except BaseException:
        await asyncio.to_thread(close_lane, lane)
        raise
    try:
        yield lane
    finally:
        await asyncio.to_thread(close_lane, lane)


def missing_file(url: str) -> Path | None:
    """Return the file of a store that does not exist, or has no tables of bide.

    `None`: there is nothing to make: the file is a store, or the store is no file.
    """
    opener(url)  # says what is wrong with the URL
    if (path := file_of(url)) is not None:
        from bide.engines.sqlite.schema import is_without_tables

        if not path.exists() or is_without_tables(path):
            return path
    return None


async def wait_for_file(url: str) -> None:
    """Wait until another process has made a store that is a file; other stores are not waited for.

    Raises:
        StoreUnavailable: its folder does not exist.
    """
    path = missing_file(url)
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise StoreUnavailable(
            f"there is no directory {path.absolute().parent} for {path.name}: create it, or "
            "correct the URL"
        )
    remark = " (the file has no tables of bide)" if path.exists() else ""
    _log.warning(
        "there is no store at %s yet%s; waiting for it: start a worker, put a message, or "
        "name another store",
        path,
        remark,
    )
    while missing_file(url) is not None:
        await sleep(SYSTEM_CLOCK, LOOK_EVERY)
    _log.warning("there is a store at %s now", path)
