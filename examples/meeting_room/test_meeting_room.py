from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bide.testing import ManualWorker, ScratchStore, WorkerFactory
from examples.conftest import Play
from examples.meeting_room import booking, strategies
from examples.meeting_room.booking import Taken, approve, move, request, withdraw
from examples.meeting_room.mailbox import Mailbox, mailbox

QUEUE = "meetings"
HOUR = timedelta(hours=1)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    with mailbox() as box:
        monkeypatch.setenv("SMTP", box.address)
        yield box


@pytest.fixture
def worker(
    bide_worker: WorkerFactory, box: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ManualWorker:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'meetings.db'}")
    return bide_worker(strategies.app)


@pytest.fixture
def nine(bide_store: ScratchStore) -> datetime:
    return bide_store.clock.datetime() + HOUR


def state(meeting: int) -> str:
    with booking.Session() as session:
        return session.get_one(booking.Meeting, meeting).state


def jobs(store: ScratchStore) -> list[str]:
    return [message.id.partition("@")[0] for message in store.pending(QUEUE)]


def test_an_approved_meeting_reminds_starts_and_ends(
    worker: ManualWorker, box: Mailbox, nine: datetime
) -> None:
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    assert approve(meeting)
    worker.advance_to(nine - timedelta(minutes=10, milliseconds=1))
    assert box.subjects() == []
    worker.advance("1ms")
    assert box.subjects() == ["ada@example.org: Your meeting in attic begins soon"]
    worker.advance_to(nine)
    assert state(meeting) == "running"
    worker.advance("1h")
    assert state(meeting) == "over"
    assert len(box.mails) == 1


def test_what_is_not_approved_in_time_is_refused(
    worker: ManualWorker, box: Mailbox, nine: datetime
) -> None:
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    worker.advance_to(nine - timedelta(minutes=31))
    assert state(meeting) == "requested"
    worker.advance("1m")
    assert state(meeting) == "refused"
    assert box.subjects() == ["ada@example.org: Your request for attic is refused"]
    assert not approve(meeting)
    worker.advance("2h")
    assert (state(meeting), len(box.mails)) == ("refused", 1)


def test_approved_in_the_last_moment_it_is_not_refused(
    worker: ManualWorker, bide_store: ScratchStore, box: Mailbox, nine: datetime
) -> None:
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    worker.advance_to(nine - timedelta(minutes=31))
    assert jobs(bide_store) == [f"Refuse-{meeting}"]  # it is loaded already
    assert approve(meeting)
    done = [one for one in worker.advance("1m") if one.queue == QUEUE]
    assert [one.outcome for one in done] == ["discarded"]
    worker.advance_to(nine)
    assert state(meeting) == "running"
    assert len(box.mails) == 1  # the reminder


def test_a_meeting_that_was_moved_happens_then(
    worker: ManualWorker, bide_store: ScratchStore, nine: datetime
) -> None:
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    approve(meeting)
    worker.advance_to(nine - timedelta(minutes=5))
    assert jobs(bide_store) == [f"Start-{meeting}"]
    move(meeting, nine + 3 * HOUR, nine + 4 * HOUR)
    assert approve(meeting)
    worker.advance("2h")
    assert state(meeting) == "approved"
    worker.advance_to(nine + 3 * HOUR)
    assert state(meeting) == "running"
    worker.advance("1h")
    assert state(meeting) == "over"


def test_what_is_called_off_does_not_happen(
    worker: ManualWorker, box: Mailbox, nine: datetime
) -> None:
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    approve(meeting)
    worker.advance_to(nine - timedelta(minutes=12))
    assert withdraw(meeting)
    worker.advance("2h")
    assert (state(meeting), box.mails) == ("withdrawn", [])


def test_a_room_has_one_meeting_at_a_time(worker: ManualWorker, nine: datetime) -> None:
    ada, ben, cleo = (
        request(
            "attic", f"{name}@example.org", nine + start * HOUR / 2, nine + start * HOUR / 2 + HOUR
        )
        for name, start in (("ada", 0), ("ben", 1), ("cleo", 2))
    )
    assert approve(ada)
    with pytest.raises(Taken):
        approve(ben)
    assert state(ben) == "requested"
    assert approve(cleo)


def test_while_no_mail_goes_out_it_is_tried_again(
    bide_worker: WorkerFactory,
    worker: ManualWorker,
    nine: datetime,
    monkeypatch: pytest.MonkeyPatch,
    bide_store: ScratchStore,
) -> None:
    worker.close()
    worker = bide_worker(strategies.app, errors="collect")
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    with mailbox() as gone:
        monkeypatch.setenv("SMTP", gone.address)
    worker.advance_to(nine - timedelta(minutes=30))
    assert [type(error) for error in worker.errors] == [ConnectionRefusedError]
    assert state(meeting) == "refused"  # which the next attempt knows
    with mailbox(int(gone.address.partition(":")[2])) as back:
        worker.advance("1m")
        assert back.subjects() == ["ada@example.org: Your request for attic is refused"]
    assert bide_store.pending(QUEUE) == []


def test_no_reminder_comes_after_the_start(
    worker: ManualWorker, box: Mailbox, nine: datetime
) -> None:
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    approve(meeting)
    worker.advance_to(nine - timedelta(minutes=15))
    worker.store.clock.advance(20 * 60)  # nobody works
    worker.run_due()
    assert box.mails == []
    assert state(meeting) == "running"


def test_a_store_that_was_lost_is_loaded_again(worker: ManualWorker, nine: datetime) -> None:
    meeting = request("attic", "ada@example.org", nine, nine + HOUR)
    approve(meeting)
    worker.advance_to(nine - timedelta(minutes=5))
    worker.close()
    clock = worker.store.clock
    with ScratchStore(clock=clock) as fresh, ManualWorker(strategies.app, fresh) as other:
        other.advance_to(nine + HOUR)
        assert state(meeting) == "over"


@pytest.mark.full
@pytest.mark.process
def test_it_plays_with_a_real_worker(play: Play) -> None:
    told = play("meeting_room").splitlines()
    assert told[0] == "Ada, Ben and Cleo: approved, requested, withdrawn"
    assert told[2:] == [
        "it ends:           over, refused, withdrawn",
        "ada@example.org: Your meeting in the attic begins soon",
        "ben@example.org: Your request for the attic is refused",
    ]
