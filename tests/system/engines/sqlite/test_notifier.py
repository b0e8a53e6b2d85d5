import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

import bide
from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite import notifier as module
from bide.engines.sqlite.hints import send_hints
from bide.engines.sqlite.notifier import PipeNotifier
from bide.engines.waiting import readable
from bide.model.commands import Put
from bide.model.errors import StoreError
from bide.model.message import Item
from bide.testing.hooks import lane_of
from tests.cluster import eventually

Open = Callable[[], PipeNotifier]


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(mkdtemp(prefix="bide"))
    path = folder / "q.db"
    path.touch()
    yield path
    path.unlink()
    folder.rmdir()  # fails when a notifier left a trace


@pytest.fixture
def listen(path: Path) -> Iterator[Open]:
    notifiers: list[PipeNotifier] = []

    def opened() -> PipeNotifier:
        notifier = PipeNotifier(path)
        notifiers.append(notifier)
        return notifier

    yield opened
    for notifier in notifiers:
        notifier.close()


def test_a_hint_reaches_all_but_its_sender(path: Path, listen: Open) -> None:
    mine, first, second = listen(), listen(), listen()
    send_hints(path, {"q": 123}, mine.address)
    assert first.listen() == second.listen() == [("q", 123)]
    send_hints(path, {"r": 4}, first.address)
    assert mine.listen() == [("r", 4)]  # and nothing before it


def test_hints_that_gather_arrive_at_once(path: Path, listen: Open) -> None:
    notifier = listen()
    for number in range(5):
        send_hints(path, {"q": number}, None)
    assert notifier.listen() == [("q", number) for number in range(5)]


def test_where_nobody_listens_nobody_is_rung(path: Path, listen: Open) -> None:
    with pytest.raises(FileNotFoundError):
        send_hints(path, {"q": 1}, None)
    send_hints(path, {"q": 1}, listen().address)


def test_a_flood_of_hints_neither_blocks_nor_fails(path: Path, listen: Open) -> None:
    notifier = listen()
    for number in range(3_000):
        send_hints(path, {"q": number}, None)
    assert notifier.listen()[0] == ("q", 0)


def test_a_notifier_whose_process_died_is_removed(path: Path, listen: Open) -> None:
    living = listen()
    dead = PipeNotifier(path)
    os.close(dead.pipe)  # as the death of its process does
    send_hints(path, {"q": 1}, None)
    assert not Path(dead.address).exists()
    assert living.listen() == [("q", 1)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_pipe_of_a_dead_process_is_removed_while_a_child_of_it_lives(
    path: Path, listen: Open
) -> None:
    dead = PipeNotifier(path)
    forked, tell_forked = os.pipe()
    may_end, let_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_end)
        os.write(tell_forked, b"x")
        os.read(may_end, 1)  # until the parent closes its end
        os._exit(0)
    os.read(forked, 1)
    living = listen()  # after the fork: the child knows nothing of it
    os.close(dead.pipe)  # as the death of its process does
    send_hints(path, {"q": 1}, None)
    os.close(let_end)
    os.waitpid(child, 0)
    assert not Path(dead.address).exists()
    assert living.listen() == [("q", 1)]
    for end in (forked, tell_forked, may_end):
        os.close(end)


def test_lines_of_strangers_are_passed_over(path: Path, listen: Open) -> None:
    notifier = listen()
    with Path(notifier.address).open("wb") as stranger:
        stranger.write(b'hello\n\xff\n[1]\n\n["\xff",1]\n["q",' + b"9" * 999 + b"]\n")
    send_hints(path, {"q": 7}, None)
    assert notifier.listen() == [("q", 7)]


def test_what_somebody_else_reads_is_lost_and_the_rest_is_heard(
    path: Path, listen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = listen()

    def stolen(pipe: int, *, seconds: float) -> bool:
        """Read the hint before the listener does, once."""
        monkeypatch.undo()
        readable(pipe, seconds=seconds)
        os.read(pipe, 1_000)
        threading.Timer(0.05, send_hints, (path, {"q": 2}, None)).start()
        return True

    monkeypatch.setattr("bide.engines.sqlite.notifier.readable", stolen)
    send_hints(path, {"q": 1}, None)
    assert living.listen() == [("q", 2)]


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_among_the_pipes_is_not_written_to(
    path: Path, listen: Open, tmp_path: Path, linked: bool
) -> None:
    """A group that shares a store may put one there, or a link to a file of its victim."""
    notifier = listen()
    planted, victim = Path(f"{path}-bell/planted"), tmp_path / "victim"
    victim.write_text("as it was")
    if linked:
        planted.symlink_to(victim)
    else:
        planted.hardlink_to(victim)
    send_hints(path, {"q": 1}, None)
    assert (victim.read_text(), notifier.listen()) == ("as it was", [("q", 1)])
    planted.unlink()


@pytest.mark.parametrize("when", ["before it is open", "before it has its rights"])
def test_a_pipe_that_a_sender_removes_while_it_is_made_is_made_again(
    path: Path, listen: Open, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The sender has met it before it was open, as that of a dead process."""
    if when == "before it is open":
        real = os.mkfifo

        def interrupted(address: str, mode: int) -> None:
            monkeypatch.setattr(os, "mkfifo", real)
            real(address, mode)
            send_hints(path, {"q": 1}, None)

        monkeypatch.setattr(os, "mkfifo", interrupted)
    else:
        really_open = os.open

        def opened(address: str, flags: int) -> int:
            monkeypatch.setattr(os, "open", really_open)
            pipe = really_open(address, flags)
            Path(address).unlink()
            return pipe

        monkeypatch.setattr(os, "open", opened)
    notifier = listen()
    send_hints(path, {"q": 2}, None)
    assert notifier.listen() == [("q", 2)]


def test_a_pipe_that_others_may_not_write_to_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose users do not include the owner of the file."""

    def refuse(*args: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    os.close(free := os.dup(0))
    Path(f"{path}-bell").mkdir()
    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(OSError, match="Invalid argument"):
        PipeNotifier(path)
    os.close(now := os.dup(0))
    assert now == free
    Path(f"{path}-bell").rmdir()  # fails if a pipe is left


def test_close_wakes_who_listens(listen: Open) -> None:
    notifier = listen()
    heard: list[list[tuple[str, int]]] = []
    thread = threading.Thread(target=lambda: heard.append(notifier.listen()))
    thread.start()
    notifier.close()
    thread.join(60)
    assert heard == [[]]


def test_a_notifier_that_was_closed_stays_so(listen: Open) -> None:
    notifier = listen()
    notifier.close()
    assert not Path(notifier.address).exists()
    assert [notifier.listen() for _ in range(2)] == [[], []]
    notifier.close()


def test_a_long_path_has_pipes_as_well(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 90) / ("y" * 90)
    folder.mkdir(parents=True)
    path = folder / "q.db"
    path.touch()
    notifier = PipeNotifier(path)
    send_hints(path, {"q": 123}, None)
    assert notifier.listen() == [("q", 123)]
    notifier.close()
    assert notifier.listen() == []
    assert sorted(folder.iterdir()) == [path]


def test_a_folder_without_pipes_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    path.with_name("q.db-bell").touch()  # no folder: nothing can be made there
    engine = SqliteEngine(path)
    with pytest.raises(StoreError, match=r"q.db-bell: .*; use a file system that has named pipes"):
        engine.notifier()
    engine.close()


@pytest.mark.parametrize("when", ["before the rights", "before the pipe"])
def test_a_folder_that_the_last_listener_removes_meanwhile_is_made_again(
    path: Path, listen: Open, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As workers that start while others end meet it."""
    name = "chmod" if when == "before the rights" else "mkdir"
    real = getattr(os, name)

    def interrupted(folder: str, *mode: int) -> None:
        monkeypatch.setattr(os, name, real)
        if name == "mkdir":
            raise FileExistsError  # it was there, and is gone
        Path(folder).rmdir()
        real(folder, *mode)

    monkeypatch.setattr(os, name, interrupted)
    notifier = listen()
    send_hints(path, {"q": 5}, None)
    assert notifier.listen() == [("q", 5)]


@pytest.mark.parametrize("linked", [False, True])
def test_engines_on_one_file_hear_each_other(path: Path, linked: bool) -> None:
    path.unlink()
    one, other = SqliteEngine(path), SqliteEngine(path)
    if linked:
        other.close()
        link = path.with_name("link.db")
        link.symlink_to(path)
        other = SqliteEngine(link)
    notifier = one.notifier()
    assert notifier is not None
    assert one.notifier() is notifier
    assert other.execute([Put("p", [Item("a", b"1")]), Put("q", [Item("a", b"1", delay=9)])], 5)
    assert sorted(notifier.listen()) == [("p", 5), ("q", 14)]
    assert other.execute([Put("q", [Item("b", b"1", delay=3)])], 5)
    assert notifier.listen() == [("q", 8)]
    one.close()
    other.close()
    path.with_name("link.db").unlink(missing_ok=True)


@pytest.mark.parametrize("what", ["pipe", "folder"])
def test_a_notifier_whose_pipe_was_deleted_makes_another_one(
    path: Path, listen: Open, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.01)
    notifier = listen()
    deleted = Path(notifier.address)
    if what == "pipe":
        deleted.unlink()
    else:
        shutil.rmtree(deleted.parent)
    hints: list[list[tuple[str, int]]] = []
    listening = threading.Thread(target=lambda: hints.append(notifier.listen()))
    listening.start()
    eventually(lambda: notifier.is_listening)
    assert notifier.address != str(deleted)
    send_hints(path, {"q": 1}, None)
    listening.join(60)
    assert hints == [[("q", 1)]]


def test_a_notifier_that_cannot_make_another_pipe_tries_again(
    path: Path, listen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.01)
    attempts: list[None] = []
    makes = module.make_pipe

    def make(path: Path) -> tuple[int, str]:
        attempts.append(None)
        return makes(path)

    monkeypatch.setattr(module, "make_pipe", make)
    notifier = listen()
    folder = Path(notifier.address).parent
    shutil.rmtree(folder)
    folder.touch()
    listening = threading.Thread(target=notifier.listen)
    listening.start()
    eventually(lambda: len(attempts) > 2)
    assert not notifier.is_listening
    folder.unlink()
    eventually(lambda: notifier.is_listening)
    notifier.close()
    listening.join(60)
    assert not folder.exists()


def test_a_notifier_that_is_closed_while_it_makes_another_pipe_leaves_no_trace(
    path: Path, listen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = listen()
    shutil.rmtree(Path(notifier.address).parent)
    makes = module.make_pipe

    def make(path: Path) -> tuple[int, str]:
        made = makes(path)
        notifier.close()
        return made

    monkeypatch.setattr(module, "CHECK", 0.01)
    monkeypatch.setattr(module, "make_pipe", make)
    assert notifier.listen() == []
    assert not Path(notifier.address).parent.exists()


def test_a_process_that_only_listens_makes_another_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.01)
    heard: list[str] = []
    with bide.Queue("q", f"sqlite:///{tmp_path}/bide.db") as queue:
        lane_of(queue).listen(lambda queue, wake: heard.append(queue))
        (pipe,) = (tmp_path / "bide.db-bell").iterdir()
        pipe.unlink()
        eventually(lambda: not lane_of(queue).notifications_lost)
        send_hints(tmp_path / "bide.db", {"q": 1}, None)
        eventually(lambda: heard == ["q"])


def test_it_knows_that_others_cannot_reach_it(listen: Open) -> None:
    notifier, removed = listen(), listen()
    Path(removed.address).unlink()
    assert (notifier.is_listening, removed.is_listening) == (True, False)
    notifier.close()
    assert not notifier.is_listening
