import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite.bell import SocketBell, ring_all

Open = Callable[[], SocketBell]


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(mkdtemp(prefix="bide"))  # short: an address of a socket has 100 characters
    path = folder / "q.db"
    path.touch()
    yield path
    path.unlink()
    folder.rmdir()  # fails when a bell left a trace


@pytest.fixture
def listen(path: Path) -> Iterator[Open]:
    bells: list[SocketBell] = []

    def opened() -> SocketBell:
        bell = SocketBell.open(path)
        assert bell is not None
        bells.append(bell)
        return bell

    yield opened
    for bell in bells:
        bell.close()


def test_a_ring_is_heard_by_all_but_the_one_who_rings(path: Path, listen: Open) -> None:
    mine, first, second = listen(), listen(), listen()
    assert ring_all(path, "q", 123, mine)
    assert first.listen() == second.listen() == [("q", 123)]
    assert ring_all(path, "r", 4, first)
    assert mine.listen() == [("r", 4)]  # and nothing before it


def test_rings_that_gather_are_heard_at_once(path: Path, listen: Open) -> None:
    bell = listen()
    for number in range(5):
        ring_all(path, "q", number, None)
    assert bell.listen() == [("q", number) for number in range(5)]


def test_where_nobody_listens_nobody_is_rung(path: Path, listen: Open) -> None:
    assert not ring_all(path, "q", 1, None)
    assert not ring_all(path, "q", 1, listen())


def test_a_flood_of_rings_neither_blocks_nor_fails(path: Path, listen: Open) -> None:
    bell = listen()
    for number in range(3_000):
        assert ring_all(path, "q", number, None)
    assert bell.listen()[0] == ("q", 0)


def test_a_bell_whose_process_died_is_removed(path: Path, listen: Open) -> None:
    living = listen()
    dead = SocketBell.open(path)
    assert dead is not None
    dead._listener.close()  # as the death of its process does
    ring_all(path, "q", 1, None)
    assert not Path(dead.address).exists()
    assert living.listen() == [("q", 1)]


def test_the_datagrams_of_strangers_are_passed_over(path: Path, listen: Open) -> None:
    bell = listen()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for data in (b"hello", b"\xff\xff", b"\x91\x01"):
            stranger.sendto(data, bell.address)
    ring_all(path, "q", 7, None)
    assert bell.listen() == [("q", 7)]


def test_close_wakes_who_listens(listen: Open) -> None:
    bell = listen()
    heard: list[list[tuple[str, int]]] = []
    thread = threading.Thread(target=lambda: heard.append(bell.listen()))
    thread.start()
    bell.close()
    thread.join(10)
    assert heard == [[]]


@pytest.mark.parametrize("listening", [False, True])
def test_a_bell_that_was_deleted_is_bound_anew(path: Path, listen: Open, listening: bool) -> None:
    bell = listen()
    heard: list[list[tuple[str, int]]] = []
    thread = threading.Thread(target=lambda: heard.append(bell.listen()))
    if listening:
        thread.start()
    shutil.rmtree(f"{path}-bell")
    bell.renew(path)
    address = bell.address
    bell.renew(path)
    assert bell.address == address
    assert ring_all(path, "q", 3, None)
    if not listening:
        thread.start()
    thread.join(10)
    assert heard == [[("q", 3)]]


def test_a_bell_that_was_closed_stays_so(path: Path, listen: Open) -> None:
    bell = listen()
    bell.close()
    bell.renew(path)
    assert not Path(f"{path}-bell/{Path(bell.address).name}").exists()
    assert bell.listen() == []


def test_a_path_too_long_for_a_socket_is_reached_through_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 90) / ("y" * 90)
    folder.mkdir(parents=True)
    path = folder / "q.db"
    path.touch()
    bell = SocketBell.open(path)
    assert bell is not None
    assert ring_all(path, "q", 123, None)
    assert bell.listen() == [("q", 123)]
    bell.close()
    assert bell.listen() == []
    assert sorted(folder.iterdir()) == [path]
    assert not ring_all(path, "q", 123, None)


def test_a_folder_without_sockets_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "q.db"
    path.touch()
    path.with_name("q.db-bell").touch()  # no folder: nothing can be bound there
    assert SocketBell.open(path) is None
    assert "noticed with a delay" in caplog.text


def test_engines_on_one_file_hear_each_other(path: Path) -> None:
    path.unlink()
    one, other = SqliteEngine(path), SqliteEngine(path)
    bell = one.doorbell()
    assert bell is not None
    assert one.doorbell() is bell
    other.ring("q", 5)
    assert bell.listen() == [("q", 5)]
    one.close()
    other.close()
