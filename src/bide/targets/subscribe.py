"""Subscriptions made from Python."""

import asyncio
import os
from collections.abc import Mapping

from bide.clock import SYSTEM_CLOCK
from bide.engines.registry import DEFAULT_URL
from bide.lane.shared import close_lane, open_lane
from bide.model.errors import InvalidArgument
from bide.model.message import ATTEMPTS
from bide.model.moments import Duration, milliseconds

__all__ = ["subscribe"]


def subscribe(
    queue: str,
    to: str,
    *,
    name: str | None = None,
    url: str | None = None,
    headers: Mapping[str, str] = {},
    concurrency: int | None = None,
    rate: float | None = None,
    timeout: Duration = 15,
    attempts: int = ATTEMPTS,
    first: Duration = 10,
    ceiling: Duration = 3_600,
    failures: int = 5,
    probe: Duration = 30,
    secret: str | None = None,
) -> str | None:
    """Have the due messages of a queue sent to a URL or to RabbitMQ.

    A subscription of the same name is replaced; it keeps its secrets. `bide serve`, `bide push` or
    `bide rabbitmq` sends the messages. In a coroutine, call it with `asyncio.to_thread`.

    Args:
        queue: its name, with its namespace if it has one: "shop/orders".
        to: "https://...", or "amqp://user:password@host/vhost?exchange=NAME&key=KEY".
        name: of the subscription; that of the queue by default.
        url: of the store; the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        headers: sent with every message.
        concurrency: how many requests may be under way; 10, or 500 for RabbitMQ.
        rate: how many requests may begin a second; not limited by default.
        timeout: how long the receiver may take to answer.
        attempts: how often a message is sent at most.
        first: the delay after the first failed attempt; doubles each time.
        ceiling: the longest of these delays.
        failures: after so many failures in a row, nothing is sent for a while.
        probe: for how long.
        secret: with which requests are signed; bide makes one by default.

    Returns:
        The new secret of an `https://` subscription, which is not told again; else `None`.

    Raises:
        InvalidArgument: one of the values is not valid, or `url` names a server.
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> bide.subscribe("orders", "amqp://app@mq/?exchange=shop", url="memory://")
    """
    from bide.targets.http.records import Records
    from bide.targets.http.subscription import Subscription, usual_concurrency

    store = url or os.environ.get("BIDE_URL") or DEFAULT_URL
    if store.partition(":")[0] in ("http", "https"):
        raise InvalidArgument(
            "url names a server, which has its own operation: PUT /v1/subscriptions/NAME, or "
            "bide subscription put --url"
        )
    namespace, _, own = queue.rpartition("/")
    wanted = Subscription(
        name=name or own, namespace=namespace or None, queue=own, url=to, headers=dict(headers),
        concurrency=usual_concurrency(to) if concurrency is None else concurrency, rate=rate,
        timeout=milliseconds(timeout, "timeout"), attempts=attempts,
        first=milliseconds(first, "first"), ceiling=milliseconds(ceiling, "ceiling"),
        failures=failures, probe=milliseconds(probe, "probe"),
    )  # fmt: skip
    lane = open_lane(store)
    try:
        return asyncio.run(Records(lane, SYSTEM_CLOCK).put(wanted, secret)).secret
    finally:
        close_lane(lane)
