"""The first contact with a store: what it waits for, what it says, what ends it."""

import asyncio
import threading

import pytest

import bide
from bide.engines.port import Engine
from bide.lane import first_contact as module
from bide.lane.first_contact import first_contact
from bide.lane.lane import Lane
from bide.model.errors import StoreBusy, StoreUnavailable
from bide.testing import FakeClock, FlakyEngine
from tests.waiting import until

URL = "redis://store.invalid/0"


class Opening:
    """Opens an engine, unless errors are to be raised before."""

    def __init__(self, engine: Engine, *errors: Exception) -> None:
        self._engine = engine
        self._errors = list(errors)

    def __call__(self) -> Engine:
        if self._errors:
            raise self._errors.pop(0)
        return self._engine


def lasting() -> StoreUnavailable:
    error = StoreUnavailable("wrong password")
    error.lasts = True
    return error


async def contact(opening: Opening, url: str = URL) -> list[None]:
    """Make contact, 30 s after each attempt; return how often the store was noted to be away."""
    clock, noted = FakeClock(), list[None]()
    lane = Lane(opening, clock)
    task = asyncio.create_task(first_contact(lane, url, lambda: noted.append(None)))
    pauses = 0
    while not task.done():
        if len(noted) > pauses:
            pauses += 1
            clock.advance(30)
        await asyncio.sleep(0.001)
    await task
    return noted


def test_a_server_that_does_not_answer_is_waited_for(
    engine: FlakyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    away = [StoreUnavailable("refused") for _ in range(9)]
    assert len(asyncio.run(contact(Opening(engine, *away)))) == len(away)
    said = caplog.text.count("the store is away; waiting for it: refused")
    assert 2 <= said < len(away)  # once a minute
    assert caplog.text.count("the store is back after") == 1


def test_a_store_that_is_there_is_no_news(
    engine: FlakyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    assert asyncio.run(contact(Opening(engine))) == []
    assert caplog.text == ""


def test_a_busy_store_is_there(engine: FlakyEngine, caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(contact(Opening(engine, StoreBusy("locked")))) == []
    assert "locked" in caplog.text


@pytest.mark.parametrize(
    ("error", "url"),
    [
        (lasting(), URL),
        (bide.SchemaTooNew("newer"), URL),
        (bide.AccessDenied("no such token"), URL),
        (StoreUnavailable("no folder"), "sqlite:////nowhere/bide.db"),
    ],
)
def test_what_waiting_does_not_help_is_raised(
    engine: FlakyEngine, error: Exception, url: str
) -> None:
    with pytest.raises(type(error), match=str(error)):
        asyncio.run(contact(Opening(engine, error), url))


def test_silence_is_said_and_who_gives_up_does_not_wait(
    engine: FlakyEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.001)
    answered = threading.Event()

    def opened() -> Engine:
        assert answered.wait(60)
        return engine

    async def story() -> None:
        lane = Lane(opened, FakeClock())
        noted = asyncio.Event()
        task = asyncio.create_task(first_contact(lane, URL, noted.set))
        await noted.wait()
        await asyncio.sleep(0)
        assert f"{URL} has not answered yet; waiting for it" in caplog.text
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    answered.set()
    until(lambda: "bide-first-contact" not in {each.name for each in threading.enumerate()})
