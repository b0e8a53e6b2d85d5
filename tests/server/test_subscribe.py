"""`bide.subscribe` and `bide.unsubscribe`, on a store and on a server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.model.errors import AccessDenied, InvalidArgument, StoreUnavailable
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription
from tests.server.conftest import Serve
from tests.servers import free_port

SHOP = "https://shop.example/hooks"
OPTIONS: dict[str, Any] = {
    "headers": {"a": "b"},
    "concurrency": 7,
    "rate": 2.5,
    "timeout": "1500ms",
    "attempts": 3,
    "first": 2,
    "ceiling": "1h",
    "failures": 4,
    "probe": 9,
}


@pytest.fixture(params=["store", "server"])
def url(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bide.db" if request.param == "store" else serve().url


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[], list[Subscription]]:
    """Provide a function that reads the subscriptions in the store."""

    def read() -> list[Subscription]:
        lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
        try:
            return asyncio.run(Records(lane, SYSTEM_CLOCK).listed())
        finally:
            close_lane(lane)

    return read


def test_a_subscription_is_made_replaced_and_deleted(url: str, stored: Any) -> None:
    secret = bide.subscribe("shop/orders", SHOP, url=url)
    assert secret is not None
    assert bide.subscribe("shop/orders", SHOP, url=url, **OPTIONS) is None
    (kept,) = stored()
    assert (kept.name, kept.queue, kept.secrets[0].text) == ("shop/orders", "shop/orders", secret)
    told = [getattr(kept, name) for name in OPTIONS]
    assert told == [{"a": "b"}, 7, 2.5, 1_500, 3, 2_000, 3_600_000, 4, 9_000]
    assert bide.unsubscribe("shop/orders", url=url)
    assert not bide.unsubscribe("shop/orders", url=url)
    assert stored() == []


def test_one_to_rabbitmq_has_no_secret_and_may_have_a_name(url: str, stored: Any) -> None:
    assert bide.subscribe("orders", "amqp://app@mq/?exchange=shop", name="mq", url=url) is None
    assert [(one.name, one.queue, one.concurrency) for one in stored()] == [("mq", "orders", 500)]
    assert bide.unsubscribe("mq", url=url)


def test_a_wrong_value_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="attempts"):
        bide.subscribe("orders", SHOP, url=url, attempts=0)


def test_a_server_may_refuse_or_be_away(serve: Serve, make_token: Any) -> None:
    url = serve(auth="required").url.replace("://", f"://:{make_token('shop', 'read')}@")
    for act in (
        lambda: bide.subscribe("orders", SHOP, url=url),
        lambda: bide.unsubscribe("orders", url=url),
    ):
        with pytest.raises(AccessDenied):
            act()
    with pytest.raises(StoreUnavailable):
        bide.unsubscribe("orders", url=f"http://127.0.0.1:{free_port()}")


def test_a_token_of_a_namespace_names_queues_with_theirs_or_without(
    serve: Serve, make_token: Any, stored: Any
) -> None:
    url = serve(auth="required").url.replace("://", f"://:{make_token('shop', 'admin')}@")
    secret = bide.subscribe("shop/orders", SHOP, url=url)
    assert secret is not None
    assert bide.subscribe("orders", SHOP, url=url, attempts=3) is None
    assert [(one.name, one.attempts) for one in stored()] == [("shop/orders", 3)]
    with pytest.raises(InvalidArgument, match="not that of the token"):
        bide.subscribe("other/orders", SHOP, url=url)
    assert bide.unsubscribe("shop/orders", url=url)
    assert not bide.unsubscribe("orders", url=url)
