"""What becomes of an answer that has begun when the server makes a mistake."""

import asyncio
import logging
from typing import Any

import pytest

from bide.model.limits import MAX_HINTS
from bide.server.app import answer
from bide.server.call import ApiCall
from bide.server.limits.open_calls import Listener
from bide.server.operation import Answer, Operation
from bide.server.response import Response
from bide.server.service import Service
from bide.server.settings import Settings


async def _nobody() -> dict[str, Any]:
    raise AssertionError("nothing is to be received")


def _sent_by(handle: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def ask() -> None:
        service = Service(Settings(store="memory://"))
        try:
            operation = Operation("x", "GET", "/x", None, handle, {200: None})
            scope: dict[str, Any] = {
                "type": "http",
                "method": "GET",
                "path": "/x",
                "headers": [],
                "query_string": b"",
                "server": None,
                "client": None,
            }
            await answer(service, {"GET": operation}, scope, "/x", _nobody, Response(send, "r-1"))
        finally:
            await service.end()

    asyncio.run(ask())
    return sent


def test_a_mistake_in_a_stream_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(call: ApiCall) -> Answer | None:
        await call.response.begin_stream("text/event-stream")
        raise RuntimeError("boom")

    with caplog.at_level(logging.ERROR, "bide.server"):
        start, end = _sent_by(handle)
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert end == {"type": "http.response.body"}
    assert "RuntimeError: boom" in caplog.text


def test_a_mistake_before_is_an_answer_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(call: ApiCall) -> Answer | None:
        raise RuntimeError("boom")

    with caplog.at_level(logging.ERROR, "bide.server"):
        start, body = _sent_by(handle)
    assert start["status"] == 500
    assert b"boom" not in body["body"]
    assert "RuntimeError: boom" in caplog.text


def test_a_stream_that_is_read_slowly_keeps_so_many_hints() -> None:
    """Each end of a message that somebody waits for is a hint under a name of its own."""
    listener = Listener()
    for number in range(MAX_HINTS + 1):
        listener.add(f"orders m{number}", 5)
    listener.add("orders m0", 3)
    assert listener.news.is_set()
    hints = listener.take()
    assert (len(hints), hints["orders m0"]) == (MAX_HINTS, 3)
    listener.add("orders", 1)
    assert listener.take() == {"orders": 1}
