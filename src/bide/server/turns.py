"""Turns: what takes long is done one at a time, with pauses, so that all else goes on."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PAUSE = 1.0
"""Seconds that the next one waits at most after one is done."""


class Turns:
    """Lets one at a time go on; after each comes a pause as long as it took."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for as long as the block runs."""
        await self._turn.acquire()
        began = time.monotonic()
        try:
            yield
        finally:
            pause = min(PAUSE, time.monotonic() - began)
            asyncio.get_running_loop().call_later(pause, self._turn.release)
