"""Subscriptions made and deleted from Python, in a store or on a server."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from bide.clock import SYSTEM_CLOCK
from bide.engines.registry import DEFAULT_URL
from bide.lane.shared import close_lane, open_lane
from bide.model.message import ATTEMPTS
from bide.model.times import Duration, milliseconds

if TYPE_CHECKING:
    from bide.targets.http.records import Records
    from bide.targets.http.subscription import Subscription

R = TypeVar("R")


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
        url: of the store, or of a server; the environment's `BIDE_URL`, or else
            `sqlite:///bide.db`.
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
        InvalidArgument: one of the values is not valid.
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> bide.subscribe("orders", "amqp://app@mq/?exchange=shop", url="memory://")
    """
    from bide.targets.http.subscription import Subscription, usual_concurrency

    namespace, _, own = queue.rpartition("/")
    wanted = Subscription(
        name=name or own, namespace=namespace or None, queue=own, url=to, headers=dict(headers),
        concurrency=usual_concurrency(to) if concurrency is None else concurrency, rate=rate,
        timeout=milliseconds(timeout, "timeout"), attempts=attempts,
        first=milliseconds(first, "first"), ceiling=milliseconds(ceiling, "ceiling"),
        failures=failures, probe=milliseconds(probe, "probe"),
    )  # fmt: skip
    if (server := _server(url)) is None:
        return _in_store(url, lambda records: records.put(wanted, secret)).secret
    told = _on_server(server, "PUT", str(wanted.known_as(None)), _request(wanted, secret))
    return None if told is None else told.get("secret")


def unsubscribe(name: str, *, url: str | None = None) -> bool:
    """Delete a subscription. Its messages stay in the queue.

    In a coroutine, call it with `asyncio.to_thread`.

    Args:
        name: of the subscription, with its namespace if it has one: "shop/orders".
        url: of the store, or of a server; the environment's `BIDE_URL`, or else
            `sqlite:///bide.db`.

    Returns:
        Whether there was one.

    Raises:
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> bide.unsubscribe("no-such", url="memory://")
        False
    """
    if (server := _server(url)) is not None:
        return _on_server(server, "DELETE", name) is not None
    namespace, _, own = name.rpartition("/")
    return _in_store(url, lambda records: records.delete(namespace or None, own))


def _server(url: str | None) -> str | None:
    """Return the URL of a server; `None` if it is that of a store."""
    store = url or os.environ.get("BIDE_URL") or DEFAULT_URL
    return store if store.partition(":")[0] in ("http", "https") else None


def _in_store(url: str | None, do: "Callable[[Records], Coroutine[Any, Any, R]]") -> R:
    from bide.targets.http.records import Records

    lane = open_lane(url or os.environ.get("BIDE_URL") or DEFAULT_URL)
    try:
        return asyncio.run(do(Records(lane, SYSTEM_CLOCK)))
    finally:
        close_lane(lane)


def _on_server(
    url: str, method: str, name: str, content: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    from bide.engines.http import address_of
    from bide.engines.http.connection import Connection
    from bide.engines.http.request import request

    address, timeout = address_of(urlsplit(url))
    connection = Connection(address, timeout)
    try:
        path = f"/v1/subscriptions/{quote(name, safe='')}"
        return request(connection, address, method, path, content)
    finally:
        connection.close()


def _request(wanted: "Subscription", secret: str | None) -> dict[str, Any]:
    """Return a subscription as a server takes it: durations are seconds."""
    same = "url", "headers", "concurrency", "rate", "attempts", "failures"
    durations = "timeout", "first", "ceiling", "probe"
    told: dict[str, Any] = {"queue": wanted.source} | {name: getattr(wanted, name) for name in same}
    told |= {name: getattr(wanted, name) / 1000 for name in durations}
    return told if secret is None else {**told, "secret": secret}
