"""A filter, handler or record factory of the application that raises ends nothing of bide's."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import bide
from bide.lane import inbox
from bide.logs import logger, waiting_lines, write_lines
from bide.testing.hooks import has_waiting_queues, lane_of
from tests.unit.lane.commands import PATIENCE, spawn
from tests.waiting import until


class NeedsRequest(logging.Filter):
    """A filter of a web application."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError("there is no request")


@pytest.fixture
def raising(root_log: None) -> Iterator[None]:
    """The root logger has a handler with a filter that raises."""
    handler = logging.StreamHandler()
    handler.addFilter(NeedsRequest())
    logging.getLogger().addHandler(handler)
    logging.getLogger("bide").setLevel(logging.INFO)
    yield
    logging.getLogger("bide").setLevel(logging.NOTSET)


def test_a_line_is_reported_that_was_not_logged(
    raising: None, capsys: pytest.CaptureFixture[str]
) -> None:
    logger("bide.test").error("the %s is away", "store")
    said = capsys.readouterr().err
    assert "--- Logging error: 'the %s is away'" in said
    assert "there is no request" in said


def test_a_record_factory_that_raises_costs_its_additions_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, before = logger("bide.test"), logging.getLogRecordFactory()

    def factory(*args: object, **options: object) -> logging.LogRecord:
        raise LookupError("there is no request")

    logging.setLogRecordFactory(factory)
    try:
        log.error("the %s is away", "store", extra={"queue": "q"})
    finally:
        logging.setLogRecordFactory(before)
    assert caplog.messages == ["the store is away"]


def test_a_line_says_where_it_comes_from(caplog: pytest.LogCaptureFixture) -> None:
    logger("bide.test").warning("here")
    (record,) = caplog.records
    assert record.filename == Path(__file__).name


def test_a_worker_handles_its_messages(raising: None, tmp_path: Path) -> None:
    app, handled = bide.App(url=f"sqlite:///{tmp_path}/b.db"), asyncio.Event()

    @app.handler("q")
    async def handle(body: object) -> None:
        if body == "fail":
            raise ValueError("no luck")
        handled.set()

    async def main() -> None:
        async with app.running() as worker, bide.AsyncQueue("q", app.url) as queue:
            await queue.put("fail")
            await queue.put(1)
            await asyncio.wait_for(handled.wait(), 60)
            assert worker.trouble() is None

    asyncio.run(main())


def test_lines_wait_while_a_lane_is_busy(caplog: pytest.LogCaptureFixture) -> None:
    with bide.Queue("q", "memory://busy-log") as queue:
        lane = lane_of(queue)
        lane.open()
        with lane._lock:
            logger("bide.test").error("from within")
            write_lines()
            assert caplog.messages == []
            assert len(waiting_lines) == 1
        queue.put(1)
    assert caplog.messages == ["from within"]


def test_who_waits_for_a_message_writes_the_lines_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of a lane may write none, and perhaps nobody else uses the store for long."""
    monkeypatch.setattr(inbox, "INTERRUPT_CHECK_SECONDS", 0.01)
    written = threading.Event()
    with bide.Queue("q", "memory://lines-that-wait") as queue:
        waiting = spawn(queue.claim, wait="10m")
        until(lambda: lane_of(queue).is_idle and has_waiting_queues(lane_of(queue)))
        waiting_lines.append(written.set)
        assert written.wait(PATIENCE)
        queue.put("go on")
        assert [delivery.body for delivery in waiting.result(PATIENCE)] == ["go on"]
