"""What the tests of push as a part of the service speak with: a receiver, and who asks a server."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.system.server.client import Client
from tests.system.targets.http.environment import PATIENCE
from tests.system.targets.http.receiver import Receiver, receiver

ONE = "/v1/subscriptions/shop"
Q = "/v1/queues/orders"


def play(story: Callable[[Receiver], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with receiver() as it:
            await asyncio.wait_for(story(it), 50)

    asyncio.run(whole())


class Asking:
    """Asks a server without holding up the receiver, which lives on the same loop."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __call__(self, method: str, path: str, content: Any = None) -> Any:
        def ask() -> Any:
            with Client(self._port, None) as client:  # type: ignore[arg-type]
                reply = client.send(method, path, content)
                assert reply.status < 500 or path == "/readyz", reply
                return json.loads(reply.data) if reply.data[:1] == b"{" else reply.data.decode()

        return await asyncio.to_thread(ask)

    async def subscribe(self, it: Receiver, **fields: Any) -> str:
        made = await self("PUT", ONE, {"queue": "orders", "url": it.url, **fields})
        return str(made.get("secret", ""))

    async def put(self, *ids: str) -> None:
        messages = [{"body": {"order": id}, "id": id} for id in ids]
        await self("POST", f"{Q}/put", {"messages": messages})

    async def flow(self, name: str) -> int:
        return int((await self("GET", Q))["flow"][name])

    async def sizes(self) -> dict[str, int]:
        return dict((await self("GET", Q))["sizes"])

    async def acked(self, count: int) -> None:
        await self.until(Q, lambda told: told["flow"]["acked"] >= count)

    async def until(self, path: str, condition: Callable[[Any], bool]) -> Any:
        """Ask again and again until the answer is of some kind, and return it."""
        deadline = time.monotonic() + PATIENCE
        while not condition(told := await self("GET", path)):
            assert time.monotonic() < deadline, told
            await asyncio.sleep(0.02)
        return told
