from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import bide
from bide.testing import ManualWorker, ScratchStore, WorkerFactory
from examples.conftest import Play
from examples.scheduled_message import outbox
from examples.scheduled_message.outbox import TooLate, edit, move, withdraw, write


@pytest.fixture
def worker(
    bide_worker: WorkerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ManualWorker:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'outbox.db'}")
    return bide_worker(outbox.app)


@pytest.fixture
def friday(bide_store: ScratchStore) -> datetime:
    return bide_store.clock.datetime() + timedelta(days=3)


def arrived() -> dict[str, str]:
    with outbox.Session() as session:
        return {row.letter: row.text for row in session.query(outbox.Arrived)}


def scheduled(letter: str) -> tuple[str, str, float]:
    with outbox.Session() as session:
        row = session.get_one(outbox.Letter, letter)
        return row.state, row.text, row.due


def test_a_letter_goes_out_at_its_moment(
    worker: ManualWorker, bide_store: ScratchStore, friday: datetime
) -> None:
    letter = write("Ada", "Hello", at=friday)
    bide_store.assert_put("outbox", outbox.Content("Ada", "Hello"), at=friday, id=letter)
    worker.advance_to(friday - timedelta(milliseconds=1))
    assert arrived() == {}
    worker.advance("1ms")
    assert arrived() == {letter: "Hello"}
    assert scheduled(letter)[0] == "sent"


def test_an_edited_letter_goes_out_as_edited(worker: ManualWorker, friday: datetime) -> None:
    letter = write("Ada", "See you tonite", at=friday)
    edit(letter, "See you tonight")
    worker.advance("7d")
    assert arrived() == {letter: "See you tonight"}


def test_a_moved_letter_goes_out_then(worker: ManualWorker, friday: datetime) -> None:
    letter = write("Ada", "Hello", at=friday)
    move(letter, at=friday + timedelta(hours=1), seen=friday)
    assert worker.advance_to(friday) == []
    worker.advance("1h")
    assert arrived() == {letter: "Hello"}


def test_who_has_not_seen_the_last_move_cannot_move_it(
    worker: ManualWorker, friday: datetime
) -> None:
    letter = write("Ada", "Hello", at=friday)
    later = friday + timedelta(hours=1)
    move(letter, at=later, seen=friday)
    with pytest.raises(TooLate, match="is delayed, due"):
        move(letter, at=friday + timedelta(hours=2), seen=friday)
    assert scheduled(letter)[2] == later.timestamp()


def test_a_withdrawn_letter_does_not_go_out(worker: ManualWorker, friday: datetime) -> None:
    letter = write("Ada", "Hello", at=friday)
    withdraw(letter)
    assert worker.advance("7d") == []
    assert scheduled(letter)[0] == "withdrawn"
    with pytest.raises(TooLate, match="the letter is withdrawn"):
        edit(letter, "Hello again")


def test_once_a_worker_has_it_in_hand_nothing_can_be_changed(
    worker: ManualWorker, bide_store: ScratchStore, friday: datetime
) -> None:
    letter = write("Ada", "Hello", at=friday)
    before = scheduled(letter)
    bide_store.clock.advance(3 * 86_400)
    (delivery,) = bide_store.queue("outbox").claim()
    changes: list[Callable[[], None]] = [
        lambda: edit(letter, "Wait!"),
        lambda: move(letter, at=friday + timedelta(hours=1), seen=friday),
        lambda: withdraw(letter),
    ]
    for change in changes:
        with pytest.raises(TooLate, match=f"{letter} was not .*: worker .* holds it until"):
            change()
        assert scheduled(letter) == before  # the database was rolled back
    delivery.release()
    worker.run_due()
    assert arrived() == {letter: "Hello"}


def test_after_it_was_sent_it_is_too_late(worker: ManualWorker, friday: datetime) -> None:
    letter = write("Ada", "Hello", at=friday)
    worker.advance("3d")
    with pytest.raises(TooLate, match="the letter is sent"):
        edit(letter, "Wait!")
    assert worker.advance("7d") == []
    with pytest.raises(TooLate, match="there is no such letter"):
        withdraw("4711")


def test_a_second_attempt_sends_nothing_twice(
    worker: ManualWorker, bide_store: ScratchStore, friday: datetime
) -> None:
    letter = write("Ada", "Hello", at=friday)
    worker.advance("5d")  # by then the queue has forgotten it
    bide_store.queue("outbox").put(outbox.Content("Ada", "Hello"), id=letter)
    assert [one.outcome for one in worker.run_due()] == ["discarded"]
    assert isinstance(worker.handled[-1].error, bide.Discard)


@pytest.mark.process
def test_it_plays_with_a_real_worker(play: Play) -> None:
    told = play("scheduled_message").splitlines()
    assert told[1].startswith("on time: Ada: See you tonight, ")
    assert told[2] == "too late for Dan's: the letter is sent"
    assert told[3] == "later: Ada: See you tonight, Ben: See you tonite, Dan: See you tonite"
