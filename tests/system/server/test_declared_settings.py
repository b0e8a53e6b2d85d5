"""Settings that an app declares, through a server."""

import asyncio
import json
import logging
from typing import Any

import pytest
from click.testing import CliRunner

import bide
from bide.cli import main
from bide.model.commands import Find, Put
from bide.model.internal_queues import InternalQueue
from bide.server.access.rights import rights_of
from bide.server.limits import quotas
from bide.server.settings import Quota
from tests.system.server.conftest import Serve
from tests.system.worker.worker_app import until


@pytest.mark.parametrize("right", ["admin", "produce"])
def test_it_takes_the_right_admin_to_declare(
    serve: Serve, make_token: Any, caplog: pytest.LogCaptureFixture, right: str
) -> None:
    port = serve(auth="required").port
    rights = ["admin"] if right == "admin" else ["put", "change", "consume", "read", "bodies"]
    app = bide.App(f"http://:{make_token('shop', rights=rights)}@127.0.0.1:{port}")
    seen = asyncio.Event()

    @app.task(queue="calls", limit=3)
    async def call(number: str) -> None:
        seen.set()

    async def story() -> None:
        async with app.running():
            await call.aput("42")
            await asyncio.wait_for(seen.wait(), 60)

    caplog.set_level(logging.INFO, "bide.worker")
    asyncio.run(story())
    assert call.queue.counts().limit == (3 if right == "admin" else 0)
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("calls: ")]
    if right == "admin":
        assert said[0] == "calls: set as the app declares: limit 3"
    else:
        assert said[0].startswith("calls: the declared settings (limit 3) are not applied: ")
        assert "'admin'" in said[0]
    app.close()


@pytest.mark.parametrize(
    "quota",
    [{"longest_delay": "1h"}, {"queues": 1}, {"pending": 1}, {"stored": 64}],
    ids=str,
)
def test_no_quota_keeps_a_worker_from_declaring(
    serve: Serve, make_token: Any, quota: dict[str, Any]
) -> None:
    port = serve(auth="required", quotas={"shop": Quota(**quota)}).port
    url = f"http://:{make_token('shop', 'admin')}@127.0.0.1:{port}"
    with bide.Queue("calls", url) as calls:
        calls.put({"task": "call", "args": {"number": "42"}})  # the namespace is full
        for limit in (3, 9):
            run_a_worker(url, ["42"] if limit == 3 else [])
            assert calls.counts().limit == limit
            calls.configure(limit=9)


def run_a_worker(url: str, messages: list[str]) -> None:
    """Run a worker with declared settings until it has handled these messages."""
    app = bide.App(url)
    handled: list[str] = []

    @app.task(queue="calls", limit=3, rate="100/m")
    async def call(number: str) -> None:
        handled.append(number)

    async def story() -> None:
        async with app.running() as worker:
            await until(lambda: worker.trouble() is None and handled == messages)

    asyncio.run(story())


def test_declarations_that_no_quota_counts_are_few_and_small(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "READ_MOST", 2)
    port = serve(auth="required", quotas={"shop": Quota(pending=1)}).port
    with bide.Queue(
        InternalQueue.DECLARED.value, f"http://:{make_token('shop', 'admin')}@127.0.0.1:{port}"
    ) as declared:
        declared.put({"limit": 3}, id="a", delay="1d")
        declared.put({"limit": 3}, id="b", delay="1d")
        with pytest.raises(bide.StoreFull, match="has 2 declarations of settings, and may have 2"):
            declared.put({"limit": 3}, id="c", delay="1d")
        declared.put({"limit": 4}, id="a", delay="1d", on_conflict="replace")
        with pytest.raises(bide.InvalidArgument, match="take 2,048 bytes at most"):
            declared.put("x" * 3_000, id="a", delay="1d", on_conflict="replace")


def test_a_token_for_some_queues_declares_and_lists_their_settings(
    serve: Serve, make_token: Any
) -> None:
    port = serve(auth="required").port

    def url(**options: Any) -> str:
        return f"http://:{make_token('shop', **options)}@127.0.0.1:{port}"

    app = bide.App(url(rights=["admin"], queues=["calls"]))

    @app.task(queue="calls", limit=3)
    async def call(number: str) -> None: ...

    async def story() -> None:
        async with app.running() as worker:
            await until(lambda: worker.trouble() is None)

    asyncio.run(story())
    assert call.queue.counts().limit == 3
    app.close()
    reader = url(rights=["read", "bodies"], queues=["c*"])
    listed = CliRunner().invoke(main, ["queues", "--json", "--url", reader])
    assert json.loads(listed.output)["declared"] == {"limit": 3}
    with bide.Queue(InternalQueue.DECLARED.value, reader) as declared:
        assert declared.get("calls") is not None
        with pytest.raises(bide.AccessDenied, match="is none of them"):
            declared.get("orders")
        with pytest.raises(bide.AccessDenied, match="is none of them"):
            declared.counts()


def test_only_an_admin_says_what_was_declared() -> None:
    home, internal = InternalQueue.DECLARED.value, InternalQueue.DECLARED
    assert rights_of(Put(home, [], "replace"), internal) == ("admin",)
    assert rights_of(Find(home, ["calls"]), internal) == ("read",)
