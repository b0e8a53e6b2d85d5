"""A disk that cannot be written to, or is full."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bide
from bide import StoreFull, StoreReadOnly
from bide.engines.sqlite.engine import bytes_added as growth
from bide.model.commands import Put
from bide.model.message import Failure, Item

pytestmark = pytest.mark.process


# Read-only.


def as_nobody(action: Callable[[], Any], folder: Path) -> str:
    """Call something in a child that no permission bit is ignored for; return its error as text."""
    answer = folder / "answer"
    answer.touch()
    answer.chmod(0o666)
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65_534)
                os.setuid(65_534)
            text = repr(action())
        except BaseException as error:  # noqa: BLE001  (the parent looks at it)
            text = f"{type(error).__name__}: {error}"
        answer.write_text(text)
        os._exit(0)
    os.waitpid(child, 0)
    return answer.read_text()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="bide-"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_directory_that_cannot_be_written_to(open_folder: Path) -> None:
    locked = open_folder / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    orders = bide.Queue("orders", f"sqlite:///{locked}/bide.db")
    text = as_nobody(lambda: orders.put(1), open_folder)
    orders.close()
    assert text.startswith("StoreReadOnly: no file can be made in")
    assert "this user may not write there, or the file system is mounted read-only" in text


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_file_in_a_directory_that_cannot_be_written_to(open_folder: Path) -> None:
    locked = open_folder / "locked"
    locked.mkdir()
    file = locked / "bide.db"
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put(1, id="a")
    file.chmod(0o444)
    locked.chmod(0o555)
    orders = bide.Queue("orders", f"sqlite:///{file}")
    for action in (lambda: orders.put(1), lambda: orders.get("a")):
        text = as_nobody(action, open_folder)
        assert text.startswith(f"{StoreReadOnly.__name__}: {file} cannot be written to: check")
        assert "not mounted read-only" in text
    orders.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_file_that_cannot_be_written_to(open_folder: Path) -> None:
    file = open_folder / "bide.db"
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put(1, id="a")
    file.chmod(0o444)
    open_folder.chmod(0o755)
    readable = bide.Queue("orders", f"sqlite:///{file}")
    text = as_nobody(lambda: readable.put(1), open_folder)
    assert text.startswith(f"{StoreReadOnly.__name__}: {file} cannot be written to: check the perm")
    text = as_nobody(readable.claim, open_folder)
    assert text.startswith(f"{StoreReadOnly.__name__}: ")
    readable.close()


# Full.


@pytest.fixture(params=["8m", "20m", pytest.param("64m", marks=pytest.mark.full)])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(orders: bide.Queue, body: str, batch: int) -> None:
    """Put messages until the store takes no more, then one at a time."""
    number = 0
    while batch:
        messages = [bide.NewMessage(body, id=f"m{number + k}") for k in range(batch)]
        try:
            orders.put_many(messages)
            number += batch
        except StoreFull as error:
            assert "full except for the room that deleting" in str(error)  # noqa: PT017
            batch //= 10


@pytest.mark.parametrize(
    ("size", "batch", "linked"), [(1_000, 100, False), (200_000, 1, False), (1_000, 100, True)]
)
def test_a_store_that_fills_its_disk_can_be_emptied(
    small_disk: Path, size: int, batch: int, linked: bool
) -> None:
    file = small_disk / "bide.db"
    if linked:
        file = small_disk.with_name("link.db")
        file.symlink_to(small_disk / "bide.db")
    with bide.Queue("orders", f"sqlite:///{file}") as orders:
        orders.put("first", id="first", priority=9)
        fill(orders, "x" * size, batch)
        (delivery,) = orders.claim()
        assert delivery.id == "first"
        delivery.ack()
        assert orders.cancel("m0")
        stored = orders.counts().sizes.ready
        orders.purge(state="ready")
        counts = orders.counts()
        assert counts.flow.purged == stored > 5
        assert counts.sizes.ready == 0
        orders.put("x" * size, id="again")  # in the space of what was deleted
        assert orders.audit()


def test_a_store_on_a_disk_without_a_free_byte_is_full_and_opens_again_with_space(
    small_disk: Path,
) -> None:
    url = f"sqlite:///{small_disk}/bide.db"
    with bide.Queue("orders", url) as orders:
        orders.put("first")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4_096):
            pass
    with bide.Queue("orders", url) as orders:
        for call in (orders.counts, orders.claim, lambda: orders.put("second")):
            with pytest.raises(StoreFull, match="Free some space and try again"):
                call()
        filler.unlink()
        assert orders.put("second")
        assert orders.audit()


def test_messages_are_deleted_where_the_log_may_not_grow(tmp_path: Path) -> None:
    program = f"""
import resource, bide
orders = bide.Queue("orders", "sqlite:///{tmp_path}/bide.db")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
number = 0
try:
    while True:
        orders.put("x" * 5_000, id=f"m{{number}}")
        number += 1
except bide.StoreFull:
    pass
(delivery,) = orders.claim()
delivery.ack()
assert orders.cancel(f"m{{number - 1}}")
orders.purge(state="ready")
assert orders.counts().sizes.ready == 0
assert orders.audit()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""


def test_a_disk_that_is_full_is_told_and_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    program = f"""
import resource, bide
orders = bide.Queue("orders", "sqlite:///{tmp_path}/bide.db")
confirmed = 0
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (800_000, hard))
try:
    while True:
        orders.put("x" * 5_000, id=f"m{{confirmed}}")
        confirmed += 1
except bide.StoreFull as error:
    text = str(error)
assert confirmed > 10, confirmed
assert orders.counts().sizes.ready == confirmed, "what was confirmed is there"
try:
    orders.put("x" * 5_000)
    raise SystemExit("it was full, and is not any more?")
except bide.StoreFull:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert orders.put("x" * 5_000, id="after").done
assert orders.counts().flow.put == confirmed + 1
assert len(orders.claim(1_000)) == confirmed + 1
assert orders.audit()
orders.close()
print(text)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    assert "may not grow" in ended.stdout
    assert "what was confirmed before is safe" in ended.stdout
    connection = sqlite3.connect(tmp_path / "bide.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_headers_and_failures_take_room_too() -> None:
    bare, full = Item("a", b"x"), Item("a", b"x", headers={"h": "y" * 10_000})
    failed = Item("a", b"x", failures=(Failure(1, 0, "w", "z" * 5_000),))
    small = growth([Put("q", [bare])])
    assert growth([Put("q", [full])]) >= small + 10_000
    assert growth([Put("q", [failed])]) >= small + 5_000
