"""A child of a fork begins anew, and the parent notices nothing."""

import ctypes
import gc
import multiprocessing
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite.connection import connect as connection_of
from bide.lane import executor, shared
from bide.lane.shared import open_lane
from bide.model.identity import new_id, new_ids
from bide.testing.hooks import count_waiting, engine_of, is_executing, is_forking, lane_of
from tests.unit.lane.commands import PATIENCE, claim, spawn, waiting
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    # Python 3.12 warns of what these tests are about: a fork while other threads run.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def fork_as_uwsgi_does() -> int:
    """Fork without telling Python."""
    return ctypes.PyDLL(None).fork()  # type: ignore[no-any-return]


def in_child(action: Callable[[], Any], fork: Callable[[], int] = os.fork) -> str:
    """Fork, and return as text what the action returned or raised in the child.

    If Python does not know of the fork, and a thread waited for its global lock at that time, the
    child waits for this thread for ever: then another one is forked.
    """
    for patience in (PATIENCE,) if fork is os.fork else (5.0, 10.0, PATIENCE):
        reading, writing = os.pipe()
        child = fork()
        if child == 0:
            try:
                text = repr(action())
            except BaseException as error:  # noqa: BLE001  (the parent looks at it)
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
            os._exit(0)
        os.close(writing)
        answers, _, _ = select.select([reading], [], [], patience)
        if not answers:
            os.kill(child, signal.SIGKILL)
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read().decode()
        _, status = os.waitpid(child, 0)
        if sys.version_info >= (3, 13) and os.WIFSIGNALED(status) and fork is not os.fork:
            pytest.skip("Python 3.13 crashes after a fork of which it knows nothing")
        if answers:
            return text
    raise TimeoutError("the child hangs")


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db") as queue:
        queue.put("from the parent", id="parent")
        queue.counts()
        yield queue


def test_a_file_is_opened_again_in_the_child(orders: bide.Queue) -> None:
    assert in_child(lambda: orders.put(1, id="child").done) == "True"
    assert in_child(lambda: orders.counts().sizes.ready) == "2"
    assert {message.id for message in orders.scan()} == {"parent", "child"}
    assert orders.audit()


def test_the_parent_goes_on_with_its_own_connection(orders: bide.Queue) -> None:
    engine = engine_of(lane_of(orders))
    in_child(lambda: orders.put(1))
    orders.put(2)
    assert engine_of(lane_of(orders)) is engine
    assert orders.counts().sizes.ready == 3


def test_the_child_goes_on_beside_others_when_the_parent_has_closed(
    orders: bide.Queue, tmp_path: Path
) -> None:
    closed, child_may = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:  # as a daemon does
        failed = 1
        try:
            for turn in range(3):
                os.read(closed, 1)
                orders.put(turn, id=f"child-{turn}")
                os.write(tell, b"x")
            failed = orders.counts().flow.put - 7
        finally:
            os._exit(failed)
    os.close(tell)
    orders.close()
    with bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db") as other:
        for turn in range(3):
            other.put(turn, id=f"other-{turn}")
            os.write(child_may, b"x")
            os.read(told, 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        names = {f"{who}-{turn}" for who in ("child", "other") for turn in range(3)}
        assert {message.id for message in other.scan()} == names | {"parent"}
        assert other.audit()
    with closing(sqlite3.connect(tmp_path / "bide.db")) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for end in (closed, child_may, told):
        os.close(end)


def test_a_fork_beside_a_long_transaction_leaves_the_file_to_the_parent(
    orders: bide.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FORK_WAITS", 0.01)
    with closing(sqlite3.connect(tmp_path / "bide.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        putting = spawn(orders.put, 1)
        until(lambda: is_executing(lane_of(orders)))
        text = in_child(lambda: orders.put(2))
        again = in_child(lambda: bide.Queue("mails", f"sqlite:///{tmp_path}/bide.db").put(1))
        other.execute("ROLLBACK")
    assert putting.result(PATIENCE)
    for refused in (text, again):
        assert refused.startswith("StoreUnavailable:")
        assert "was in use while this process was forked, by another thread" in refused
    assert orders.put(3)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_fork_beside_a_long_opening_leaves_the_file_to_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    monkeypatch.setattr(executor, "FORK_WAITS", 0.01)
    url = f"sqlite:///{tmp_path}/bide.db"
    if not is_new:
        with bide.Queue("orders", url) as earlier:
            earlier.put(0)
    connected, may_go_on = threading.Event(), threading.Event()

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connection_of(*arguments, **options)
        if not connected.is_set():
            connected.set()
            assert may_go_on.wait(PATIENCE)
        return connection

    monkeypatch.setattr("bide.engines.sqlite.engine.connect", connect)
    with bide.Queue("orders", url) as orders:
        putting = spawn(orders.put, 1)
        assert connected.wait(PATIENCE)
        text = in_child(lambda: orders.put(2))
        may_go_on.set()
        assert putting.result(PATIENCE)
        assert orders.audit()
    assert text.startswith("StoreUnavailable:")
    assert "was in use while this process was forked, by another thread" in text


def test_a_file_that_could_not_be_opened_is_opened_in_the_child(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db?timeout=0.01") as orders,
        closing(sqlite3.connect(tmp_path / "bide.db", isolation_level=None)) as other,
    ):
        other.execute("CREATE TABLE shop (article)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(bide.StoreBusy) as refusal:
            orders.put(1)
        other.close()
        assert in_child(lambda: orders.put(2).done) == "True"
        assert refusal.tb is not None  # its frames keep what could not be opened


def test_a_fork_that_did_not_wait_to_the_end_takes_no_lock_from_another(
    orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FORK_WAITS", 0.01)
    lane = lane_of(orders)
    engine = engine_of(lane)
    assert isinstance(engine, SqliteEngine)
    leave = engine.leave

    def fork_in_vain() -> None:
        """Do what a fork does before and after it; locks of others would block a real one here."""
        executor.before_fork()
        executor.after_fork_in_parent()

    def leave_slowly() -> None:
        spawn(fork_in_vain).result(PATIENCE)
        leave()

    monkeypatch.setattr(engine, "leave", leave_slowly)
    assert in_child(lambda: "child") == "'child'"
    assert not spawn(is_forking).result(PATIENCE)
    assert not spawn(is_executing, lane).result(PATIENCE)
    assert orders.put(1)


def test_a_fork_waits_for_the_connection_of_the_first_read(tmp_path: Path) -> None:
    """A program of its own: what it calls before each fork stays."""
    program = """
import os, threading
import bide
from bide.engines.sqlite import SqliteEngine

connected, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # called before that of bide
reader_of = SqliteEngine.reader

def reader(engine):
    opened = reader_of(engine)
    connected.set()
    assert forking.wait(60)
    return opened

SqliteEngine.reader = reader
orders = bide.Queue("orders", "sqlite:///bide.db")
orders.put(1, id="parent")
reading = threading.Thread(target=orders.get, args=("parent",))
reading.start()
assert connected.wait(60)
child = os.fork()
if child == 0:
    failed = 1
    try:
        failed = not orders.put(2, id="child").done or orders.get("parent") is None
    finally:
        os._exit(failed)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
reading.join(60)
assert orders.get("child") is not None
orders.close()
"""
    subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        cwd=tmp_path,
        check=True,
        timeout=PATIENCE,
    )


def test_no_store_is_opened_that_a_fork_has_not_waited_for(
    orders: bide.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(lane_of(orders))
    assert isinstance(engine, SqliteEngine)
    leave, late_puts = engine.leave, []

    def put() -> bool:
        with bide.Queue("mails", f"sqlite:///{tmp_path}/mails.db") as mails:
            return mails.put(1).done

    def leave_late() -> None:
        late_puts.append(spawn(put))
        until(lambda: late_puts[0].done() or spawn(is_forking).result(PATIENCE))
        leave()

    monkeypatch.setattr(engine, "leave", leave_late)
    assert in_child(put) == "True"
    assert late_puts[0].result(PATIENCE)


def test_the_connection_of_the_parent_is_not_closed_in_the_child(orders: bide.Queue) -> None:
    engine = weakref.ref(engine_of(lane_of(orders)))
    assert in_child(lambda: (gc.collect() >= 0, engine() is not None)[1]) == "True"


def test_claims_of_the_parent_are_not_the_childs(orders: bide.Queue) -> None:
    waiter = spawn(lane_of(orders).call, claim(queue="empty"), wait=60)
    waiting(lane_of(orders))
    assert in_child(lambda: count_waiting(lane_of(orders))) == "0"
    assert in_child(lambda: orders.claim(wait=5)[0].id) == "'parent'"
    assert not waiter.done()


def test_the_child_hands_in_through_a_thread_of_its_own(orders: bide.Queue) -> None:
    assert orders.claim()  # the parent's lane has a thread now
    assert in_child(lambda: orders.claim(wait=0.01)) == "[]"


def test_a_child_of_which_python_knows_nothing_leaves_the_file_to_the_parent(
    orders: bide.Queue,
) -> None:
    assert orders.claim(1, wait=1)  # the lane's thread, which the child has not
    text = in_child(lambda: orders.claim(1, wait=1), fork_as_uwsgi_does)
    assert text.startswith("StoreUnavailable:")
    assert "in uWSGI set lazy-apps = true" in text
    assert in_child(orders.close, fork_as_uwsgi_does) == "None"
    assert orders.put(3)
    assert orders.audit()


def test_a_child_of_which_python_knows_nothing_opens_a_file_that_nobody_had_opened(
    tmp_path: Path,
) -> None:
    with bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db") as orders:
        assert in_child(lambda: orders.put(1).done, fork_as_uwsgi_does) == "True"
        assert in_child(lambda: len(orders.claim(1, wait=1)), fork_as_uwsgi_does) == "1"
        assert orders.audit()


def test_no_child_makes_the_ids_of_another() -> None:
    def behind_the_time() -> list[str]:
        return [new_id()[10:], new_ids(1)[0][10:]]

    made = [in_child(behind_the_time, fork) for fork in (fork_as_uwsgi_does, os.fork) * 2]
    assert len(set(made)) == len(made)


def test_a_memory_queue_stays_with_the_parent() -> None:
    with bide.Queue("orders", "memory://") as queue:
        queue.put(1)
        text = in_child(lambda: queue.put(2))
        assert text.startswith("StoreUnavailable: memory:// exists in the process that made it")
        assert "sqlite:///" in text
        assert queue.counts().sizes.ready == 1


def test_a_memory_queue_made_in_the_child_is_its_own() -> None:
    def child() -> tuple[int, int]:
        with bide.Queue("orders", "memory://") as mine:
            mine.put(1)
            return mine.counts().flow.put, len(mine.claim())

    with bide.Queue("orders", "memory://") as queue:
        queue.put(1)
        assert in_child(child) == "(1, 1)"


def test_closing_in_the_child_closes_nothing_of_the_parent(orders: bide.Queue) -> None:
    in_child(orders.close)
    assert orders.put("still open").done

    def use_after_close() -> None:
        orders.close()
        orders.put(1)

    text = in_child(use_after_close)
    assert text.startswith("Closed:")


def test_two_queues_of_the_parent_are_closed_one_by_one_in_the_child(
    orders: bide.Queue, tmp_path: Path
) -> None:
    with bide.Queue("mails", f"sqlite:///{tmp_path}/bide.db") as mails:
        assert lane_of(mails) is lane_of(orders)

        def close_one() -> bool:
            orders.close()
            return mails.put(1).done

        assert in_child(close_one) == "True"


def test_the_child_of_multiprocessing_works_too(orders: bide.Queue) -> None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=orders.put, args=("from the child",))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert orders.counts().sizes.ready == 2


def test_forks_in_the_middle_of_a_batch_split_none(orders: bide.Queue) -> None:
    stop = threading.Event()

    def work() -> int:
        done = 0
        while not stop.is_set():
            orders.put(done)
            orders.ack(orders.claim(2))
            done += 1
        return done

    workers = [spawn(work) for _ in range(3)]
    until(lambda: orders.counts().flow.acked > 3)
    try:
        for number in range(15):
            assert in_child(partial(orders.put, 1, id=f"c{number}")).startswith("Outcome(")
    finally:
        stop.set()
    assert sum(worker.result(PATIENCE) for worker in workers) > 0
    assert orders.audit()


def test_the_lock_of_the_shared_lanes_is_not_inherited() -> None:
    with shared._lock:
        assert in_child(lambda: open_lane("memory://fresh") is not None) == "True"


def test_new_ids_differ_in_the_child() -> None:
    new_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "".join([*(new_id() for _ in range(25)), *new_ids(25)]).encode())
        os._exit(0)
    mine = [*(new_id() for _ in range(25)), *new_ids(25)]
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    theirs = [text[start : start + 26] for start in range(0, len(text), 26)]
    assert len(theirs) == 50
    assert not set(mine) & set(theirs)
    assert {id[:20] for id in mine} != {id[:20] for id in theirs}
