"""Who may read and write the files of a store."""

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bide.engines.registry import opener
from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Outcomes

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
