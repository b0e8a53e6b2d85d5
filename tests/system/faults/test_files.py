"""Files under running processes: deleted, replaced, locked, damaged."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

import pytest

import bide
from bide import LeaseLost, NotAStore, StoreBusy, StoreCorrupt, StoreError
from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite.notifier import PipeNotifier
from bide.testing.hooks import has_waiting_queues, lane_of, notifier_of
from tests.unit.lane.commands import PATIENCE, spawn
from tests.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bide.db"


@pytest.fixture
def orders(file: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"sqlite:///{file}?timeout=300ms") as orders:
        yield orders


def settle(orders: bide.Queue) -> None:
    """Wait until a worker would have noticed that its file is another one."""
    time.sleep(0.03)


def remove(file: Path) -> None:
    for path in file.parent.glob(f"{file.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# Deleted and replaced.


@pytest.mark.parametrize("everything", [False, True])
def test_a_file_deleted_under_a_worker_is_made_anew(
    orders: bide.Queue, file: Path, everything: bool
) -> None:
    orders.put(1, id="before")
    (held,) = orders.claim()
    orders.put(2, id="waiting")
    assert orders.counts().sizes.total == 2
    remove(file) if everything else file.unlink()
    settle(orders)
    assert orders.put(3, id="after").done
    assert [message.id for message in orders.scan()] == ["after"]
    with pytest.raises(LeaseLost):
        held.ack()
    assert orders.audit()


def test_a_worker_who_waits_notices_that_the_file_was_deleted(
    orders: bide.Queue, file: Path
) -> None:
    waiter = spawn(orders.claim, wait=PATIENCE)
    until(lambda: has_waiting_queues(lane_of(orders)))
    remove(file)
    with bide.Queue("orders", f"sqlite:///{file}?durability=normal") as other:
        other.put("new file")
    assert waiter.result(PATIENCE)[0].body == "new file"


def test_a_backup_put_in_its_place_is_what_counts_from_then_on(
    orders: bide.Queue, file: Path
) -> None:
    orders.put(1, id="old")
    backup = file.with_name("backup.db")
    with sqlite3.connect(file) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    source.close()
    target.close()
    orders.put(2, id="after the backup")
    remove(file)
    backup.rename(file)
    settle(orders)
    assert [message.id for message in orders.scan()] == ["old"]
    orders.put(3, id="new")
    (first, second) = orders.claim(2)
    assert {first.id, second.id} == {"old", "new"}
    assert orders.audit()


# Gone, and back.


def outside(file: Path, body: str) -> None:
    """Put a message from another process."""
    program = f"import bide; bide.Queue('orders', 'sqlite:///{file}').put({body!r})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.fixture
def moved() -> Iterator[tuple[Path, Path]]:
    """A directory, and where it goes meanwhile. Short: an address of a socket is."""
    folder = Path(mkdtemp(prefix="bide"))
    yield folder / "data", folder / "elsewhere"
    shutil.rmtree(folder)


def test_a_directory_renamed_away_and_back_is_found_again(moved: tuple[Path, Path]) -> None:
    data, elsewhere = moved
    data.mkdir()
    file = data / "bide.db"
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put("before")
        assert orders.counts().sizes.ready == 1  # whoever looks has a connection of their own
        inode = file.stat().st_ino
        data.rename(elsewhere)
        settle(orders)
        calls = (orders.claim, lambda: orders.put(1), orders.counts, orders.audit, orders.forecast)
        for _ in range(2):
            for call in calls:
                with pytest.raises(bide.StoreUnavailable, match="there is no directory"):
                    call()
        elsewhere.rename(data)
        assert file.stat().st_ino == inode
        outside(file, "meanwhile")
        assert orders.counts().sizes.ready == 2
        assert [delivery.body for delivery in orders.claim(2)] == ["before", "meanwhile"]
        assert orders.put("lone")
        assert orders.put("prepared")
        with bide.Queue("orders", f"sqlite:///{file}") as same_lane:
            assert same_lane.audit()


def listening(orders: bide.Queue) -> Path:
    notifier = notifier_of(lane_of(orders))
    assert isinstance(notifier, PipeNotifier)
    return Path(notifier.address)


def test_a_process_that_waits_is_woken_at_once_after_its_directory_came_back(
    moved: tuple[Path, Path],
) -> None:
    data, elsewhere = moved
    data.mkdir()
    file = data / "bide.db"
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        assert orders.claim(wait=0.01) == []
        notifier = listening(orders)
        data.rename(elsewhere)
        settle(orders)
        with pytest.raises(bide.StoreUnavailable):
            orders.claim(wait=0.01)
        elsewhere.rename(data)
        shutil.rmtree(f"{file}-bell")  # as a restored copy has none
        until(lambda: orders.claim(wait=0.01) == [] and listening(orders) != notifier)
        assert listening(orders).exists()
        heard: list[str] = []
        lane_of(orders).listen(lambda queue, wake: heard.append(queue))
        outside(file, "new")
        until(lambda: heard)


def test_a_store_that_was_away_at_the_first_wait_is_listened_to_later(
    moved: tuple[Path, Path],
) -> None:
    data, elsewhere = moved
    data.mkdir()
    file = data / "bide.db"
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        assert orders.counts().sizes.total == 0
        data.rename(elsewhere)
        with pytest.raises(bide.StoreUnavailable):
            orders.claim(wait=PATIENCE)  # it looks again after a second
        elsewhere.rename(data)
        assert orders.claim(wait=0.01) == []
        assert listening(orders).exists()


def test_a_file_replaced_by_another_while_it_was_away_is_what_counts(
    moved: tuple[Path, Path],
) -> None:
    data, elsewhere = moved
    data.mkdir()
    file = data / "bide.db"
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put("first", id="first")
        data.rename(elsewhere)
        settle(orders)
        with pytest.raises(bide.StoreUnavailable):
            orders.claim()
        data.mkdir()
        outside(file, "second")
        assert orders.put("first", id="first").done
        assert [delivery.body for delivery in orders.claim(9)] == ["second", "first"]
        shutil.rmtree(data)
        elsewhere.rename(data)
        settle(orders)
        assert [delivery.body for delivery in orders.claim(9)] == ["first"]
        assert orders.audit()


def test_something_in_the_way_of_the_directory_is_named(moved: tuple[Path, Path]) -> None:
    data, elsewhere = moved
    data.mkdir()
    with bide.Queue("orders", f"sqlite:///{data / 'bide.db'}") as orders:
        orders.put(1)
        data.rename(elsewhere)
        data.touch()
        settle(orders)
        with pytest.raises(bide.StoreUnavailable, match="there is no directory"):
            orders.put(2)
        data.unlink()
        elsewhere.rename(data)
        assert orders.put(3)


def test_a_link_to_another_store_leaves_the_first_one_to_those_who_use_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.engines.sqlite.engine.CHECK_EVERY", 0.0)
    first, second = file.with_name("first.db"), file.with_name("second.db")
    file.symlink_to(first)
    with (
        bide.Queue("orders", f"sqlite:///{file}") as orders,
        bide.Queue("orders", f"sqlite:///{first}") as others,
    ):
        orders.put(1, id="a")
        assert others.put(2, id="b")
        file.unlink()
        file.symlink_to(second)
        assert orders.put(3, id="c")
        assert others.put(4, id="d")
        assert [message.id for message in orders.scan()] == ["c"]
        assert [message.id for message in others.scan()] == ["a", "b", "d"]


def test_something_else_put_in_its_place_is_refused_and_left_alone(
    orders: bide.Queue, file: Path
) -> None:
    orders.put(1)
    remove(file)
    file.write_bytes(b"holiday" * 1_000)
    settle(orders)
    with pytest.raises(NotAStore, match="left as it is"):
        orders.put(2)
    assert file.read_bytes() == b"holiday" * 1_000
    file.unlink()
    assert orders.put(3)


def test_a_folder_of_bells_that_was_deleted_keeps_nobody_from_closing(file: Path) -> None:
    orders = bide.Queue("orders", f"sqlite:///{file}")
    waiter = spawn(orders.claim, wait=60)
    until(lambda: notifier_of(lane_of(orders)) is not None and has_waiting_queues(lane_of(orders)))
    shutil.rmtree(f"{file}-bell")
    spawn(orders.close).result(PATIENCE)
    assert isinstance(waiter.exception(PATIENCE), bide.Closed)


# Locked.


def test_locked_beyond_the_time_out_names_the_file_and_the_mend(
    orders: bide.Queue, file: Path
) -> None:
    orders.put(1, id="a")
    program = (
        "import sqlite3, sys\n"
        f"other = sqlite3.connect({str(file)!r}, isolation_level=None)\n"
        "other.execute('BEGIN EXCLUSIVE')\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    for call in (lambda: orders.put(2), orders.claim, lambda: orders.cancel("a")):
        with pytest.raises(StoreBusy, match=r"kept .*bide\.db locked for 0\.3 s; nothing was chan"):
            call()
    assert orders.counts().sizes.ready == 1  # whoever looks does not wait
    other.communicate("")
    assert orders.put(2)
    assert orders.counts().flow.put == 2


def test_an_error_of_the_store_in_one_thread_leaves_the_others_working(
    orders: bide.Queue, file: Path
) -> None:
    barrier = threading.Barrier(8)

    def work(number: int) -> int:
        barrier.wait()
        done = 0
        for _ in range(20):
            try:
                done += orders.put(number).done
            except StoreError:
                continue
        return done

    workers = [spawn(work, number) for number in range(8)]
    total = sum(worker.result(PATIENCE) for worker in workers)
    assert orders.counts().flow.put == total == 160


def fill(file: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put_many(bide.NewMessage(body="x" * 200, id=f"m{n}", delay=n) for n in range(5_000))


def test_pages_overwritten_in_the_middle_are_told_and_nothing_more_is_written(
    file: Path,
) -> None:
    fill(file)
    content = bytearray(file.read_bytes())
    for page in range(4, len(content) // 4096 - 2):
        content[page * 4096 : page * 4096 + 512] = os.urandom(512)
    file.write_bytes(content)
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        for call in (lambda: orders.claim(500), lambda: list(orders.scan()), orders.audit):
            with pytest.raises(StoreCorrupt, match=r"is damaged.*Stop all workers"):
                call()
    assert file.read_bytes() == content


def test_a_header_overwritten_is_no_database_any_more(file: Path) -> None:
    fill(file)
    content = file.read_bytes()
    file.write_bytes(b"\0" * 100 + content[100:])
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        with pytest.raises(NotAStore, match="left as it is"):
            orders.put(1)
    assert file.read_bytes() == b"\0" * 100 + content[100:]


def test_a_list_of_tables_overwritten_under_a_running_process_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.engines.sqlite.engine.CHECK_EVERY", 0.0)
    fill(file)
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put(1)
        with closing(sqlite3.connect(file)) as other:  # so that the process reads the file again
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with file.open("r+b") as raw:
            raw.seek(100)
            raw.write(b"\xff" * 400)
        for call in (lambda: orders.put(2), orders.claim):
            with pytest.raises(StoreCorrupt, match="is damaged"):
                call()


def test_a_list_of_tables_that_is_no_text_is_told(file: Path) -> None:
    fill(file)
    content = file.read_bytes()
    assert b"CREATE TABLE bide_hour (" in content
    file.write_bytes(content.replace(b"CREATE TABLE bide_hour (", b"CREATE TABLE bide_hour \xff"))
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        with pytest.raises(StoreCorrupt, match="is damaged"):
            orders.put(1)


def test_a_file_cut_in_the_middle_is_told(file: Path) -> None:
    fill(file)
    os.truncate(file, file.stat().st_size // 8192 * 4096)
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        with pytest.raises(StoreCorrupt, match="is damaged"):
            orders.audit()


@pytest.mark.parametrize("linked", [False, True])
def test_a_log_that_is_deleted_while_it_is_in_use_loses_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    monkeypatch.setattr("bide.engines.sqlite.engine.CHECK_EVERY", 0.0)
    log = file.with_name(f"{file.name}-wal")
    named = file.with_name("link.db") if linked else file
    if linked:
        named.symlink_to(file)
    with bide.Queue("orders", f"sqlite:///{named}") as orders:
        for number in range(5):
            orders.put(number, id=f"m{number}")
        log.unlink()
        with pytest.raises(StoreCorrupt, match="was cut or deleted"):
            SqliteEngine(file)
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match="was deleted or replaced while"):
                orders.put(6, id="m6")
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        assert sorted(message.id for message in orders.scan()) == [f"m{n}" for n in range(5)]
        assert orders.audit()
        orders.put(6, id="m6")


def test_an_index_of_the_log_that_is_deleted_while_it_is_in_use_breaks_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts then makes an index of its own, and does not see what others write."""
    monkeypatch.setattr("bide.engines.sqlite.engine.CHECK_EVERY", 0.0)
    program = f"""
import sys, bide
orders = bide.Queue("orders", "sqlite:///{file}")
for line in sys.stdin:
    print(orders.put(line), flush=True)
"""
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put_many([bide.NewMessage(1, id=f"m{number}") for number in range(99)])
        file.with_name(f"{file.name}-shm").unlink()
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as later:
            assert later.stdin is not None
            assert later.stdout is not None
            for _ in range(2):
                print("put", file=later.stdin, flush=True)
                assert later.stdout.readline()
                with pytest.raises(
                    StoreCorrupt, match=r"bide\.db-shm was deleted .* bide\.db-wal,"
                ):
                    orders.put(2)
            orders.close()
            later.stdin.close()
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        assert orders.counts().sizes.total == 101
        assert orders.audit()


def test_a_log_that_is_cut_is_told(file: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put_many(bide.NewMessage(body="x" * 200, id=f"m{n}") for n in range(200))
        os.truncate(file.with_name(f"{file.name}-wal"), 4096)
        with closing(sqlite3.connect(file)) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("SELECT count(*) FROM bide_message").fetchone()
        with pytest.raises(StoreCorrupt, match="was cut or deleted"):
            SqliteEngine(file)
