"""Subscriptions made and deleted from Python, in a store or on a server."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bide.engines.registry import default_url, is_server
from bide.model.message import ATTEMPTS
from bide.model.times import Duration, milliseconds
from bide.queue.stores import lane_to

if TYPE_CHECKING:
    from bide.server.subscriptions.subscription_access import Access


class Identity(NamedTuple):
    """Which subscription."""

    namespace: str | None
    name: str


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
        The new secret of an `https://` subscription, which is not shown again; else `None`.

    Raises:
        InvalidArgument: one of the values is not valid.
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> bide.subscribe("orders", "amqp://app@mq/?exchange=shop", url="memory://")
    """
    namespace, _, own = queue.rpartition("/")
    spans = {"timeout": timeout, "first": first, "ceiling": ceiling, "probe": probe}
    given: dict[str, Any] = {
        "queue": own, "url": to, "headers": dict(headers), "rate": rate, "attempts": attempts,
        "failures": failures, **{n: milliseconds(span, n) / 1000 for n, span in spans.items()},
    }  # fmt: skip
    if concurrency is not None:
        given["concurrency"] = concurrency
    with _access(url) as access:
        return access.put(Identity(namespace or None, name or own), given, secret) or None


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
    namespace, _, own = name.rpartition("/")
    with _access(url) as access:
        return access.delete(Identity(namespace or None, own))


@contextmanager
def _access(url: str | None) -> "Iterator[Access]":
    # Only now: who imports bide does not load the server.
    from bide.server.subscriptions.subscription_access import in_store, on_server

    store = url or default_url()
    if is_server(store):
        with closing(on_server(store)) as access:
            yield access
    else:
        with lane_to(url) as lane:
            yield in_store(lane)
