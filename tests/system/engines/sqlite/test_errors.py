import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite import connection as connection_module
from bide.engines.sqlite import engine as engine_module
from bide.model import commands as cmd
from bide.model.errors import Closed, StoreBusy, StoreError, StoreFull, StoreReadOnly
from bide.model.message import Item
from bide.model.replies import Counts
from bide.testing.conformance.driver import Driver

Connect = Callable[..., sqlite3.Connection]
real_connect = sqlite3.connect


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bide.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(path, timeout=0.01)
    yield engine
    engine.close()


@pytest.fixture
def connect_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[Connect], None]:
    """Let the engine open its files in another way."""

    def use(other: Connect) -> None:
        monkeypatch.setattr(sqlite3, "connect", other)

    return use


def test_locked_beyond_the_time_out_says_by_what_and_how_long(
    engine: SqliteEngine, path: Path
) -> None:
    driver = Driver(engine)
    driver.put("a")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for id in ("b", "a"):
        with pytest.raises(StoreBusy, match=r"kept .*bide\.db locked for 0\.01 s; nothing was"):
            engine.execute([cmd.Put("q", [Item(id, b"1")])])
    with pytest.raises(StoreBusy, match=r"open transaction of this one, .*fuser .*timeout=0\.02s"):
        engine.execute([cmd.Claim("q", 1, 1, "w")])
    other.execute("ROLLBACK")
    other.close()
    assert driver.take() == ["a"]


def test_a_reader_does_not_wait_for_a_writer(engine: SqliteEngine, path: Path) -> None:
    Driver(engine).put("a")
    reader = engine.reader()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert Driver(reader, watched=False).scan() == ["a"]
    other.close()
    reader.close()


def test_a_reader_sees_what_was_written_since(engine: SqliteEngine) -> None:
    reader = engine.reader()
    looking = Driver(reader, watched=False)
    assert looking.scan() == []
    Driver(engine).put("a")
    assert looking.scan() == ["a"]
    reader.close()


def test_a_reader_writes_nothing(engine: SqliteEngine) -> None:
    Driver(engine).put("a")
    reader = engine.reader()
    with pytest.raises(StoreReadOnly):
        reader.execute([cmd.Cancel("q", ["a"])])
    reader.close()
    assert Driver(engine).state("a") == "ready"


def test_the_log_shrinks_again_after_a_long_read_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LOG_BYTES", 200_000)
    monkeypatch.setattr(connection_module, "CHECKPOINT_PAGES", 10)
    engine = SqliteEngine(path)
    driver = Driver(engine)
    log = path.with_name("bide.db-wal")
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN")
        shell.execute("SELECT count(*) FROM bide_message").fetchone()
        for number in range(100):
            driver.put(f"a{number}")
        assert log.stat().st_size > 400_000
    for number in range(10):
        driver.put(f"b{number}")
    assert log.stat().st_size <= 200_000
    engine.close()


def test_the_log_stays_short_where_no_checkpoint_after_a_commit_reaches_its_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where several processes write without a pause.
    monkeypatch.setattr(connection_module, "CHECKPOINT_PAGES", 1_000_000)
    monkeypatch.setattr(connection_module, "LOG_BYTES", 200_000)
    monkeypatch.setattr(engine_module, "LOG_BYTES", 200_000)
    monkeypatch.setattr(engine_module, "CHECK_EVERY", -1.0)
    log = path.with_name("bide.db-wal")
    with closing(SqliteEngine(path)) as engine:
        driver, longest = Driver(engine), 0
        for number in range(200):
            driver.put(f"m{number}")
            longest = max(longest, log.stat().st_size)
        assert 200_000 < longest < 300_000
        assert len(driver.scan()) == 200


def test_a_file_that_cannot_be_written_can_be_read(
    engine: SqliteEngine, path: Path, connect_as: Callable[[Connect], None]
) -> None:
    Driver(engine).put("a")
    plain = sqlite3.connect

    def read_only(file: Path, **options: Any) -> sqlite3.Connection:
        opened: sqlite3.Connection = plain(f"file:{file}?mode=ro", uri=True, **options)
        return opened

    connect_as(read_only)
    refused = pytest.raises(StoreReadOnly, match="cannot be written to: check the permissions")
    with refused, closing(SqliteEngine(path)) as engine:
        engine.execute([cmd.Put("q", [Item("b", b"1")])])


def test_a_full_disk_undoes_the_batch_and_harms_nothing(
    path: Path, connect_as: Callable[[Connect], None]
) -> None:
    plain = sqlite3.connect

    def small(file: Path, **options: Any) -> sqlite3.Connection:
        opened: sqlite3.Connection = plain(file, **options)
        opened.execute("PRAGMA max_page_count = 60")
        return opened

    connect_as(small)
    engine = SqliteEngine(path)
    driver = Driver(engine)
    stored = [f"a{number}" for number in range(10)]
    driver.put(*stored)
    body = b'"' + b"x" * 9_000 + b'"'
    with pytest.raises(StoreFull, match="is full; the command was not executed"):
        engine.execute(
            [
                cmd.Cancel("q", stored),
                cmd.Put("q", [Item(f"b{number}", body) for number in range(50)]),
            ]
        )
    confirmed = fill(engine, body, driver.now)  # the short way for one message meets it too
    assert 0 < len(confirmed) < 50
    assert sorted(driver.scan()) == sorted(stored + confirmed)
    driver.counts()
    driver.cancel(*confirmed)
    assert sorted(driver.take()) == stored
    engine.close()


def fill(engine: SqliteEngine, body: bytes, now: int) -> list[str]:
    """Put up to 50 messages one at a time until the store is full; return which were stored."""
    confirmed: list[str] = []
    for number in range(50):
        try:
            engine.execute([cmd.Put("q", [Item(f"c{number}", body)])], now)
        except StoreFull:
            break
        confirmed.append(f"c{number}")
    return confirmed


FILL = """
import resource, signal, sys
from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Put
from bide.model.errors import StoreError
from bide.model.message import Item
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
engine = SqliteEngine(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
number = 0
try:
    while True:
        engine.execute([Put("q", [Item(f"m{number}", b"1" * 5_000)])], 0)
        number += 1
except StoreError as error:
    print(number, type(error).__name__, error)
"""


@pytest.mark.process
def test_a_file_that_may_not_grow_is_an_error_that_names_the_disk(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    number, kind, _ = done.stdout.split(maxsplit=2)
    assert kind in ("StoreFull", "StoreError")
    assert "disk" in done.stdout
    engine = SqliteEngine(path)
    (counts,) = engine.execute([cmd.Count("q", recount=True)], 0)
    assert isinstance(counts, Counts)
    assert counts.sizes.total == int(number) > 0
    assert (counts.recount, counts.strays) == (counts.sizes, 0)
    engine.close()


# Another file of the same name.


@pytest.fixture
def vigilant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every command whether the file is still the same."""
    monkeypatch.setattr(engine_module, "CHECK_EVERY", -1.0)


@pytest.mark.usefixtures("vigilant")
def test_a_file_that_was_deleted_is_made_anew(
    engine: SqliteEngine, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(engine, watched=False)
    driver.put("a")
    for file in path.parent.glob("bide.db*"):
        file.unlink()
    assert caplog.messages == []
    assert driver.find("a") == [None]
    driver.put("b")
    assert caplog.messages == [
        f"{path} was deleted, moved away or replaced while it was in use; from now on the file of "
        "that name is the store, a new and empty one"
    ]
    other = SqliteEngine(path)
    assert Driver(other).scan() == ["b"]
    other.close()


@pytest.mark.usefixtures("vigilant")
def test_a_file_that_was_put_back_from_a_backup_is_the_one_used(
    engine: SqliteEngine, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backup = SqliteEngine(tmp_path / "backup.db")
    Driver(backup).put("old")
    backup.close()
    driver = Driver(engine, watched=False)
    driver.put("a")
    for file in path.parent.glob("bide.db-*"):
        file.unlink()
    (tmp_path / "backup.db").replace(path)
    assert driver.scan() == ["old"]
    assert driver.put("b", "c")
    assert driver.put("d")
    assert sorted(driver.scan()) == ["b", "c", "d", "old"]
    (told,) = caplog.messages
    assert told.startswith(f"{path} was deleted, moved away or replaced while it was in use")
    assert told.endswith(" is the store")


@pytest.mark.usefixtures("vigilant")
@pytest.mark.parametrize("is_backup", [True, False])
def test_the_log_goes_with_its_file_and_not_into_the_one_put_in_its_place(
    engine: SqliteEngine, path: Path, tmp_path: Path, is_backup: bool
) -> None:
    backup, moved = tmp_path / "backup.db", tmp_path / "moved.db"
    driver, other = Driver(engine, watched=False), SqliteEngine(path)
    reader = engine.reader()
    driver.put("old")
    with closing(sqlite3.connect(path)) as source:
        source.execute("VACUUM INTO ?", (str(backup),))
        source.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(100):  # the pages of the file are others than those of the backup now
        driver.put(f"lost{number}")
    path.rename(moved)
    if is_backup:
        backup.rename(path)
    there = ["old"] if is_backup else []
    assert Driver(reader).scan() == there
    assert driver.put("a")
    assert Driver(other).put("b")
    assert driver.put("c")
    assert sorted(Driver(reader).scan()) == sorted(["a", "b", "c", *there])
    reader.close()
    other.close()
    for file, count in ((path, 3 + len(there)), (moved, 101)):
        with closing(sqlite3.connect(file)) as found:
            assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert found.execute("SELECT count(*) FROM bide_message").fetchone() == (count,)


@pytest.mark.usefixtures("vigilant")
def test_a_log_of_the_file_before_that_cannot_be_deleted_is_told(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    Driver(engine).put("a")
    path.rename(path.with_name("moved.db"))
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match=r"cannot be opened .*bide\.db-wal.*permissions"):
        engine.execute([cmd.Count("q")])
    assert not path.exists()


@pytest.mark.usefixtures("vigilant")
def test_a_file_that_was_away_and_came_back_is_nothing_to_tell_of(
    engine: SqliteEngine, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(engine, watched=False)
    driver.put("a")
    elsewhere = tmp_path.rename(tmp_path.with_name("elsewhere"))
    with pytest.raises(StoreError, match="there is no directory"):
        engine.execute([cmd.Count("q")])
    elsewhere.rename(tmp_path)
    assert driver.scan() == ["a"]
    assert caplog.messages == []


@pytest.mark.usefixtures("vigilant")
def test_a_file_that_was_replaced_by_something_else_is_refused(
    engine: SqliteEngine, path: Path
) -> None:
    Driver(engine).put("a")
    for file in path.parent.glob("bide.db*"):
        file.unlink()
    path.write_text("no database at all, but a letter to the editor")
    with pytest.raises(StoreError, match="not a SQLite database"):
        engine.execute([cmd.Count("q")])


@pytest.mark.usefixtures("vigilant")
def test_a_file_that_was_refused_is_no_hindrance_once_it_is_gone(
    engine: SqliteEngine, path: Path
) -> None:
    Driver(engine).put("a")
    for file in path.parent.glob("bide.db*"):
        file.unlink()
    path.write_text("no database at all, but a letter to the editor")
    for _ in range(2):
        with pytest.raises(StoreError, match="not a SQLite database"):
            engine.execute([cmd.Count("q")])
    path.unlink()
    driver = Driver(engine, watched=False)
    assert driver.put("b")
    assert driver.scan() == ["b"]


def test_a_closed_engine_says_so(engine: SqliteEngine) -> None:
    engine.close()
    with pytest.raises(Closed, match="this engine was closed"):
        engine.execute([cmd.Count("q")])


@pytest.mark.parametrize("reads", [False, True])
def test_an_interrupt_while_the_transaction_begins_leaves_none_open(
    path: Path, connect_as: Callable[[Connect], None], reads: bool
) -> None:
    struck: list[str] = []

    class Interrupted(sqlite3.Connection):
        """Python raises what came during a call when the call has returned."""

        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            cursor = super().execute(statement, *parameters)
            if armed and statement.startswith("BEGIN"):
                struck.append(armed.pop())
                raise KeyboardInterrupt
            return cursor

    armed: list[str] = []
    connect_as(partial(real_connect, factory=Interrupted))
    with closing(SqliteEngine(path, timeout=0.01)) as engine, closing(engine.reader()) as reader:
        Driver(engine).put("a")
        armed.append("now")
        with pytest.raises(KeyboardInterrupt):
            (reader if reads else engine).execute([cmd.Count("q")])
        assert struck == ["now"]
        with closing(SqliteEngine(path, timeout=0.01)) as other:
            assert Driver(other).put("b")[0]
        assert Driver(engine).take(2) == ["a", "b"]
        assert Driver(reader, watched=False).scan() == ["a", "b"]
