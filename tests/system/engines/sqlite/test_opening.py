"""How a file is opened, and who may read and write it."""

import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bide.engines.registry import opener
from bide.engines.sqlite import SqliteEngine, schema
from bide.engines.sqlite.connection import connect
from bide.engines.sqlite.schema import APPLICATION_ID, STEPS, recorded_version
from bide.model import commands as cmd
from bide.model.errors import (
    InvalidArgument,
    NotAStore,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from bide.model.message import Item
from bide.model.replies import Outcomes
from bide.testing.conformance.driver import Driver


def pragma(path: Path, text: str) -> object:
    raw = sqlite3.connect(path, isolation_level=None)
    try:
        row = raw.execute(f"PRAGMA {text}").fetchone()
    finally:
        raw.close()
    return row and row[0]


def furnished(path: Path) -> None:
    engine = SqliteEngine(path)
    Driver(engine).put(*(f"m{number}" for number in range(300)), data=b'"' + b"x" * 90 + b'"')
    engine.close()


def test_a_new_file_is_a_store_of_bides(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    SqliteEngine(path).close()
    assert pragma(path, "application_id") == APPLICATION_ID
    assert pragma(path, "journal_mode") == "wal"
    assert pragma(path, "integrity_check") == "ok"


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    path.touch()
    engine = SqliteEngine(path)
    assert Driver(engine).put("a")[0]
    engine.close()


def test_a_store_is_one_file_once_it_is_closed(tmp_path: Path) -> None:
    furnished(tmp_path / "bide.db")
    assert [entry.name for entry in tmp_path.iterdir()] == ["bide.db"]


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
def test_durability_is_what_was_asked_for(tmp_path: Path, durability: str, level: int) -> None:
    opened = connect(tmp_path / "bide.db", durability, 1.0)  # type: ignore[arg-type]
    assert opened.execute("PRAGMA synchronous").fetchone() == (level,)
    opened.close()


# What is refused, and left as it is.


def test_a_directory_is_refused_and_a_file_in_it_proposed(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"is a directory; name a file in it: .*bide\.db"):
        SqliteEngine(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"no directory .*/no to keep x\.db in; make it"):
        SqliteEngine(tmp_path / "no" / "x.db")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permission bits do not bind root, who may be running this.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreReadOnly, match=r"no file can be made in .*: this user may"):
        SqliteEngine(tmp_path / "bide.db")


NO_DESCRIPTOR_LEFT = """
import os, resource, sys
from bide.engines.sqlite import SqliteEngine
from bide.model.errors import StoreUnavailable
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
os.close(free := os.dup(0))
resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
try:
    SqliteEngine(sys.argv[1])
except StoreUnavailable as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
SqliteEngine(sys.argv[1]).close()
"""
"""In a process of its own: Python takes a folder that it cannot list for one without packages."""


@pytest.mark.process
def test_too_many_open_files_are_told(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTOR_LEFT, str(tmp_path / "bide.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    assert re.search(r"Too many open files.*\(ulimit -n\)", ended.stdout)
    assert (tmp_path / "bide.db").exists()


@pytest.mark.parametrize("content", [b"no database\n", b"x" * 5_000, b"SQLite format 3" * 100])
def test_a_file_of_another_kind_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(NotAStore, match=r"notes\.txt is not a SQLite database; it was left as"):
        SqliteEngine(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "found",
    [
        "CREATE TABLE bide_store (mine)",
        "CREATE TABLE bide_store (counted, version); INSERT INTO bide_store VALUES (0, 13)",
        f"CREATE TABLE message (seq); PRAGMA application_id = {APPLICATION_ID}",
        "CREATE TABLE bide_store (schema_version); INSERT INTO bide_store VALUES (NULL)",
        "CREATE TABLE bide_store (schema_version); INSERT INTO bide_store VALUES ('new')",
    ],
)
def test_tables_of_another_layout_are_left_as_they_are(tmp_path: Path, found: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.executescript(found)
    content = path.read_bytes()
    with pytest.raises(NotAStore, match=r"no layout that .* export each queue .* import into"):
        SqliteEngine(path)
    assert path.read_bytes() == content


def test_a_newer_schema_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    furnished(path)
    raw = sqlite3.connect(path)
    raw.execute("UPDATE bide_store SET schema_version = 99")
    raw.commit()
    raw.close()
    content = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=r"schema 99, this one knows up to \d.*upgrade"):
        SqliteEngine(path)
    assert path.read_bytes() == content


# In the file of an application.


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Provide the database of an application, which has tables called like those of old stores."""
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript(
        "CREATE TABLE message (mine); CREATE TABLE store (mine); CREATE TABLE queue (mine);"
        "CREATE INDEX message_id ON message (mine);"
        "PRAGMA user_version = 3; PRAGMA application_id = 7"
    )
    yield connection
    connection.close()


def objects(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def test_a_store_lives_beside_the_tables_of_an_application(
    tmp_path: Path, shop: sqlite3.Connection
) -> None:
    before = objects(shop)
    furnished(tmp_path / "shop.db")
    furnished(tmp_path / "alone.db")
    with closing(sqlite3.connect(tmp_path / "alone.db")) as alone:
        ours = objects(alone)
    assert all(name.startswith("bide_") for name in ours)
    assert objects(shop) == before | ours
    assert pragma(tmp_path / "shop.db", "user_version") == 3
    assert pragma(tmp_path / "shop.db", "application_id") == 7


def test_an_application_may_hold_its_file_while_the_store_is_made(
    tmp_path: Path, shop: sqlite3.Connection
) -> None:
    shop.execute("PRAGMA journal_mode = WAL")
    shop.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match=r"kept .* locked"):
        SqliteEngine(tmp_path / "shop.db", timeout=0.01)
    shop.execute("ROLLBACK")
    engine = SqliteEngine(tmp_path / "shop.db", timeout=0.01)
    assert Driver(engine).put("a")[0]
    engine.close()


def test_a_file_in_which_a_store_was_alone_may_get_tables_of_an_application(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bide.db"
    furnished(path)
    with closing(sqlite3.connect(path)) as shop:
        shop.execute("CREATE TABLE store (mine)")
    engine = SqliteEngine(path)
    assert len(Driver(engine).scan()) == 300
    engine.close()


def test_a_damaged_file_is_told_with_the_way_to_rescue_it(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    furnished(path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    damaged = pytest.raises(StoreCorrupt, match=r"is damaged.*Stop all workers and copy the file")
    with damaged, closing(SqliteEngine(path)) as engine:
        Driver(engine).scan()


def test_a_file_that_was_cut_short_is_an_error_of_bides(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    furnished(path)
    path.write_bytes(path.read_bytes()[:9_000])
    with pytest.raises(StoreError, match=r"bide\.db"), closing(SqliteEngine(path)) as engine:
        Driver(engine).scan()


# Migrations.


def test_a_store_of_version_0_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    pragma(path, f"application_id = {APPLICATION_ID}")
    engine = SqliteEngine(path)
    assert Driver(engine).put("a")[0]
    engine.close()


@pytest.mark.parametrize("reads", [False, True])
def test_an_older_store_is_migrated_with_all_that_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    path = tmp_path / "bide.db"
    furnished(path)
    steps = [*STEPS, "CREATE TABLE more (a);\nINSERT INTO more\nVALUES (1);\n"]
    monkeypatch.setattr(schema, "STEPS", steps)
    engine = SqliteEngine(path, read_only=reads)
    assert len(Driver(engine).scan()) == 300
    engine.close()
    SqliteEngine(path).close()  # once is enough
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM more").fetchone() == (1,)
        assert raw.execute("SELECT schema_version FROM bide_store").fetchall() == [(len(steps),)]


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bide.db"
    furnished(path)
    steps = [*STEPS, "CREATE TABLE more (a);\nCREATE TABLE more (a);\n"]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "STEPS", steps)
        with pytest.raises(StoreError, match="more"):
            SqliteEngine(path)
    engine = SqliteEngine(path)
    assert len(Driver(engine).scan()) == 300
    engine.close()


def test_a_reader_of_a_store_that_does_not_exist_makes_it(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "bide.db", read_only=True)
    assert Driver(engine).queues() == []
    engine.close()


CREATE = """
import sys
from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Put
from bide.model.message import Item
print("ready", flush=True)
sys.stdin.readline()
engine = SqliteEngine(sys.argv[1])
engine.execute([Put("q", [Item(sys.argv[2], b"1")])])
engine.close()
"""


@pytest.mark.process
def test_processes_that_make_one_store_at_once_do_not_get_in_each_others_way(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bide.db"

    def start(id: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CREATE, str(path), id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    processes = [start(f"m{number}") for number in range(6)]
    begun = [process.stdout is not None and process.stdout.readline() for process in processes]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert begun == ["ready\n"] * 6
    assert ends == [("", 0)] * 6
    engine = SqliteEngine(path)
    assert sorted(Driver(engine).scan()) == [f"m{number}" for number in range(6)]
    engine.close()


def test_a_path_that_is_too_long_for_sqlite_is_told(tmp_path: Path) -> None:
    folder = tmp_path
    while len(str(folder)) < 400:
        folder /= "x" * 80
    folder.mkdir(parents=True)
    path = folder / ("y" * (504 - len(str(folder)) - 1))
    SqliteEngine(path).close()
    longer = folder / f"{path.name}y"
    with pytest.raises(StoreUnavailable, match="length of the path"):
        SqliteEngine(longer)


GROUP = 54_321
"""A group that two users share."""


@pytest.fixture(params=[0o022, 0o077, 0o000], ids=["022", "077", "000"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Go through umasks: none of them matters."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the permissions of all files below a folder; each pipe is called `pipe`."""
    found = {}
    for path in folder.rglob("*"):
        name = "pipe" if path.is_fifo() else path.name
        found[name] = oct(stat.S_IMODE(path.stat().st_mode))
    return found


def opened(path: Path, options: str = "") -> SqliteEngine:
    engine = opener(f"sqlite:///{path}{options}")()
    assert isinstance(engine, SqliteEngine)
    engine.execute([cmd.Put("q", [Item("a", b"1")])])
    assert engine.notifier() is not None
    return engine


@pytest.mark.usefixtures("umask")
def test_a_new_store_is_for_its_user_alone(tmp_path: Path) -> None:
    engine = opened(tmp_path / "bide.db")
    assert modes(tmp_path) == {
        "bide.db": "0o600",
        "bide.db-wal": "0o600",
        "bide.db-shm": "0o600",
        "bide.db-bell": "0o700",
        "pipe": "0o600",
    }
    engine.close()


@pytest.mark.usefixtures("umask")
def test_a_store_for_a_group_is_for_the_group_whatever_the_umask(tmp_path: Path) -> None:
    engine = opened(tmp_path / "bide.db", "?mode=0660")
    assert modes(tmp_path) == {
        "bide.db": "0o660",
        "bide.db-wal": "0o660",
        "bide.db-shm": "0o660",
        "bide.db-bell": "0o770",
        "pipe": "0o660",
    }
    engine.close()


@pytest.mark.usefixtures("umask")
def test_a_reader_that_comes_first_makes_the_same_files(tmp_path: Path) -> None:
    reader = SqliteEngine(tmp_path / "bide.db", read_only=True)
    assert modes(tmp_path)["bide.db"] == "0o600"
    reader.close()


@pytest.mark.usefixtures("umask")
def test_the_file_behind_a_symbolic_link_is_made_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "bide.db").symlink_to(tmp_path / "data.db")
    engine = SqliteEngine(tmp_path / "bide.db")
    assert modes(tmp_path)["data.db"] == "0o600"
    engine.close()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660])
def test_a_file_that_exists_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "bide.db"
    opened(path).close()
    path.chmod(mode)
    engine = opened(path)
    found = modes(tmp_path)
    assert {found[name] for name in ("bide.db", "bide.db-wal", "bide.db-shm", "pipe")} == {
        oct(mode)
    }
    engine.close()


@pytest.mark.parametrize("mode", ["0644", "0640", "660", "0777", "rw", "0o600"])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"mode='{mode}' must be 0600 .* or 0660"):
        opener(f"sqlite:///bide.db?mode={mode}")


# Two users. A test that does not run as root cannot be another user.

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of a group, as the page on operations says to make it."""
    above = Path(tempfile.mkdtemp(prefix="bide-"))
    above.chmod(0o755)
    folder = above / "shop"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(above)


def as_user(uid: int, groups: list[int], action: Callable[[], str]) -> str:
    """Run something in a child that is another user; return what it returns, or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(0o022)
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            text = action()
        except BaseException as error:  # noqa: BLE001  (the parent looks at it)
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def put_and_wait(path: Path, id: str, options: str = "") -> str:
    """Put a message and listen, as a worker does; leave the files behind, as a killed one does."""
    engine = opener(f"sqlite:///{path}{options}")()
    (reply,) = engine.execute([cmd.Put("q", [Item(id, b"1")])])
    assert isinstance(reply, Outcomes)
    notifier = engine.notifier()
    return f"{reply.outcomes[0].done} {notifier is not None}"


@needs_root
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_users_of_a_group_share_a_store(shared: Path) -> None:
    path = shared / "bide.db"
    first = as_user(60_001, [GROUP], lambda: put_and_wait(path, "a", "?mode=0660"))
    assert first == "True True"
    assert as_user(60_002, [GROUP], lambda: put_and_wait(path, "b")) == "True True"
    assert as_user(60_001, [GROUP], lambda: put_and_wait(path, "c")) == "True True"
    groups = {entry.stat().st_gid for entry in path.parent.rglob("*")}
    assert groups == {GROUP}
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM bide_message").fetchone() == (3,)
    connection.close()


@needs_root
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_another_user_cannot_open_a_store_of_one_user(shared: Path) -> None:
    path = shared / "bide.db"
    assert as_user(60_001, [GROUP], lambda: put_and_wait(path, "a")) == "True True"
    refused = as_user(60_002, [GROUP], lambda: put_and_wait(path, "b"))
    assert refused.startswith("StoreUnavailable: ")
    assert "for the user who made them, unless the URL that made them ends in ?mode=0660" in refused


@needs_root
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_what_root_makes_beside_a_store_belongs_to_its_user(shared: Path) -> None:
    path = shared / "bide.db"
    assert as_user(60_001, [GROUP], lambda: put_and_wait(path, "a")) == "True True"
    for entry in path.parent.glob("bide.db-*"):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    killed: list[SqliteEngine] = []  # its files stay

    def work() -> str:
        killed.append(opened(path))
        return "killed"

    assert as_user(0, [], work) == "killed"
    assert {entry.name for entry in path.parent.glob("bide.db-*")} == {
        "bide.db-wal",
        "bide.db-shm",
        "bide.db-bell",
    }
    assert {entry.stat().st_uid for entry in path.parent.rglob("*")} == {60_001}
    assert as_user(60_001, [GROUP], lambda: put_and_wait(path, "b")) == "True True"


def test_a_file_that_is_locked_in_between_is_not_one_of_an_unknown_layout(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    with closing(SqliteEngine(path)) as engine:
        engine.execute([cmd.Count("q")])
    with (
        closing(sqlite3.connect(path)) as reader,
        closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other,
    ):
        other.execute("PRAGMA journal_mode = DELETE")  # in which a writer keeps readers out
        reader.execute("PRAGMA busy_timeout = 0")

        def run(statement: str) -> sqlite3.Cursor:
            if "schema_version" in statement and not other.in_transaction:
                other.execute("BEGIN EXCLUSIVE")
            return reader.execute(statement)

        with pytest.raises(sqlite3.OperationalError, match="locked"):
            recorded_version(run, path)
