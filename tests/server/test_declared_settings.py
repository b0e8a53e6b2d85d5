"""Settings that an app declares, through a server."""

import asyncio
import logging
from typing import Any

import pytest

import bide
from bide.model.commands import Find, Put
from bide.model.internal_queues import InternalQueue
from bide.server.access.rights import rights_of
from tests.server.conftest import Serve


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


def test_only_an_admin_says_what_was_declared() -> None:
    home, internal = InternalQueue.DECLARED.value, InternalQueue.DECLARED
    assert rights_of(Put(home, [], "replace"), internal) == ("admin",)
    assert rights_of(Find(home, ["calls"]), internal) == ("read",)
