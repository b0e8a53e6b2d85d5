"""Create and delete subscriptions from Python, in a store or on a server."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from bide.engines.registry import is_server, named_url
from bide.model.message import ATTEMPTS
from bide.model.times import Duration, milliseconds
from bide.queue.stores import lane_to
from bide.server.subscriptions.subscription_access import Access, in_store, on_server


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
    """Send the due messages of a queue to a URL or to RabbitMQ.

    A subscription of the same name is replaced; it keeps its secrets. `bide serve`, `bide push` or
    `bide rabbitmq` sends the messages. In a coroutine, call it with `asyncio.to_thread`.

    Args:
        queue: the name of the queue, with its namespace if it has one: "shop/orders".
        to: "https://...", or "amqp://user:password@host/vhost?exchange=NAME&key=KEY".
        name: the name of the subscription; by default that of the queue.
        url: the URL of the store or of a server; by default the environment's `BIDE_URL`, or else
            `sqlite:///bide.db`.
        headers: headers sent with every message.
        concurrency: how many requests may be under way; 10, or 500 for RabbitMQ.
        rate: how many requests may begin per second; by default not limited.
        timeout: how long the receiver may take to answer.
        attempts: how often a message is sent at most.
        first: the delay after the first failed attempt; it doubles each time.
        ceiling: the longest of these delays.
        failures: the number of failures in a row after which sending stops for a while.
        probe: how long sending stops.
        secret: the secret that signs requests; by default bide makes one.

    Returns:
        The new secret of an `https://` subscription, which is not shown again; otherwise `None`.

    Raises:
        InvalidArgument: one of the values is not valid.
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> bide.subscribe("orders", "amqp://app@mq/?exchange=shop", url="memory://")
    """
    durations = {"timeout": timeout, "first": first, "ceiling": ceiling, "probe": probe}
    content: dict[str, Any] = {
        "queue": queue,
        "url": to,
        "headers": dict(headers),
        "rate": rate,
        "attempts": attempts,
        "failures": failures,
        **{field: milliseconds(value, field) / 1000 for field, value in durations.items()},
    }
    if concurrency is not None:
        content["concurrency"] = concurrency
    namespace, slash, _ = queue.rpartition("/")
    full_name = f"{namespace}{slash}{name}" if name else queue
    with _access(url) as access:
        return access.put(full_name, content, secret) or None


def unsubscribe(name: str, *, url: str | None = None) -> bool:
    """Delete a subscription. Its messages stay in the queue.

    In a coroutine, call it with `asyncio.to_thread`.

    Args:
        name: the name of the subscription, with its namespace if it has one: "shop/orders".
        url: the URL of the store or of a server; by default the environment's `BIDE_URL`, or else
            `sqlite:///bide.db`.

    Returns:
        Whether it existed.

    Raises:
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> bide.unsubscribe("no-such", url="memory://")
        False
    """
    with _access(url) as access:
        return access.delete(name)


@contextmanager
def _access(url: str | None) -> Iterator[Access]:
    """Open the subscriptions of a store or a server; `None`: the default one."""
    store = named_url(url)
    if is_server(store):
        with closing(on_server(store)) as access:
            yield access
    else:
        with lane_to(url) as lane:
            yield in_store(lane)
