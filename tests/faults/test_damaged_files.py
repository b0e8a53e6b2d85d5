"""What is said about a file whose pages or log are damaged."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import bide
from bide import NotAStore, StoreCorrupt
from bide.engines.sqlite import SqliteEngine

pytestmark = pytest.mark.process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bide.db"


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
    assert b"CREATE TABLE bide_due_hour (" in content
    file.write_bytes(
        content.replace(b"CREATE TABLE bide_due_hour (", b"CREATE TABLE bide_due_hour \xff")
    )
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
