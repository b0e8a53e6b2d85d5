"""What a killed worker process held is delivered again as soon as another process starts."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.consuming import dead_holders
from bide.consuming.dead_holders import end_leases_of_dead
from bide.engines.memory import MemoryEngine
from bide.model.commands import BULK, Claim, Command, Find, Put, Release, Scan
from bide.model.errors import AccessDenied
from bide.model.message import LAPSED, Item, Message
from bide.model.replies import Found, expect
from bide.observing.heartbeat import READ_MOST, REGISTER, Report, put_report, report_id
from bide.observing.process_origin import UNKNOWN, of_this_process
from tests.system.worker.processes import children, counts, log, said, wait_for, worker
from tests.system.worker.worker_app import Scene

pytestmark = pytest.mark.skipif(
    of_this_process() == UNKNOWN, reason="only Linux describes processes in /proc"
)

HOLDS = """
import asyncio, os, bide
app = bide.App()

@app.handler("q", lease="10m", concurrency=1)
async def handle(body: dict, delivery: bide.Handling) -> None:
    print("began", delivery.id, delivery.attempt, flush=True)
    if body["holds"] and delivery.attempt == 1:
        await asyncio.Event().wait()
    print("ended", delivery.id, delivery.attempt, flush=True)
"""
HOST = socket.gethostname()


def put_held(folder: Path, *ids: str) -> None:
    with bide.Queue("q", f"sqlite:///{folder / 'bide.db'}") as queue:
        for id in ids:
            queue.put({"holds": True}, id=id)


def message_of(folder: Path, id: str) -> Message | None:
    with bide.Queue("q", f"sqlite:///{folder / 'bide.db'}") as queue:
        return queue.get(id)


def holder_of(folder: Path, id: str) -> int:
    """Return the process that holds a message."""
    message = message_of(folder, id)
    assert message is not None
    host, _, pid = (message.holder or "").rpartition(":")
    assert host == HOST
    return int(pid)


def has_died(pid: int) -> str:
    return f"{HOST}:{pid} has died and held 1 message of q: it is delivered again now"


@pytest.mark.process
def test_what_a_killed_process_held_goes_to_the_next_one(tmp_path: Path) -> None:
    put_held(tmp_path, "a")
    with worker(tmp_path, HOLDS) as process:
        wait_for(said(tmp_path, "began a 1"), tmp_path)
        (killed,) = children(process)
        os.kill(killed, signal.SIGKILL)
        wait_for(said(tmp_path, "ended a 2"), tmp_path)
        wait_for(said(tmp_path, has_died(killed)), tmp_path)
        wait_for(lambda: counts(tmp_path).flow.acked == 1, tmp_path)
    assert (counts(tmp_path).flow.retried, counts(tmp_path).flow.lapsed) == (1, 0)
    with bide.Queue("q", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
        assert queue.audit()


@pytest.mark.process
def test_what_a_killed_worker_held_goes_to_the_one_that_is_started_next(tmp_path: Path) -> None:
    put_held(tmp_path, "a", "b")
    with worker(tmp_path, HOLDS, "--processes", "2") as process:
        wait_for(lambda: all(said(tmp_path, f"began {id} 1")() for id in "ab"), tmp_path)
        killed = children(process)
        for pid in (process.pid, *killed):
            os.kill(pid, signal.SIGKILL)
    with worker(tmp_path, HOLDS):
        wait_for(lambda: all(said(tmp_path, f"ended {id} 2")() for id in "ab"), tmp_path)
        wait_for(lambda: counts(tmp_path).flow.acked == 2, tmp_path)
    assert all(log(tmp_path).count(has_died(pid)) == 1 for pid in killed)


@pytest.mark.process
def test_what_living_processes_hold_stays_theirs(tmp_path: Path) -> None:
    put_held(tmp_path, "a", "b")
    with worker(tmp_path, HOLDS, "--processes", "2") as process:
        wait_for(lambda: all(said(tmp_path, f"began {id} 1")() for id in "ab"), tmp_path)
        living, killed = holder_of(tmp_path, "a"), holder_of(tmp_path, "b")
        assert {living, killed} == set(children(process))
        os.kill(living, signal.SIGSTOP)  # it stands still, which is not dead
        os.kill(killed, signal.SIGKILL)
        wait_for(said(tmp_path, "ended b 2"), tmp_path)
        assert holder_of(tmp_path, "a") == living
        message = message_of(tmp_path, "a")
        assert message is not None
        assert (message.state, message.failures) == ("leased", ())
        os.kill(living, signal.SIGCONT)
    assert has_died(living) not in log(tmp_path)


def origin(start: str | None = None, *, boot: str | None = None) -> str:
    """Return the origin of a process of this machine: of this one, or with another start or boot.

    One with another start is dead: this process has its id now.
    """
    if of_this_process() == UNKNOWN:
        return UNKNOWN
    own_boot, *namespaces, pid, own_start = of_this_process().split()
    return " ".join([boot or own_boot, *namespaces, pid, start or own_start])


DEAD = "1"
OTHER_BOOT = "0b2a0a4e-54a5-4f0e-9d6c-2f1f2f3d4c5b"


class Store:
    """A store with messages that are leased for a day, and the reports of their holders."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.commands: list[Command] = []
        """Those that `ask` has got."""
        self.before: Callable[[Command], None] = lambda command: None
        """Called with each of them before it is executed."""

    def do(self, *commands: Command) -> list[Any]:
        return list(self.engine.execute(commands))

    async def ask(self, command: Command) -> Any:
        self.before(command)
        self.commands.append(command)
        (reply,) = self.do(command)
        return reply

    def hold(self, holder: str, *ids: str, queue: str = "q") -> None:
        """Let a worker hold messages."""
        items = [Item(id, b"1") for id in ids]
        self.do(Put(queue, items), Claim(queue, len(ids), 86_400_000, holder))

    def report(self, holder: str, origin: str, *queues: str, id: str | None = None) -> None:
        """Put the report of a process, which works on `q` by default."""
        report = Report({holder: list(queues or ["q"])}, origin=origin)
        self.do(put_report(id or report_id(holder, origin), report))

    def end(self, *queues: str) -> list[tuple[str, str | None, list[str]]]:
        """End leases as a process that works on `q` by default; return what was released."""
        self.commands.clear()
        asyncio.run(end_leases_of_dead(self.ask, queues or ["q"]))
        return [
            (command.queue, command.holder, command.ids)
            for command in self.commands
            if isinstance(command, Release)
        ]

    def message(self, id: str, queue: str = "q") -> Message:
        (found,) = self.do(Find(queue, [id]))
        (message,) = expect(Found, found).messages
        assert message is not None
        return message


def test_it_counts_as_a_lapse_of_that_holder(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = Store()
    store.hold("web1:7", "a", "b")
    store.hold("web1:8", "c")
    store.report("web1:7", origin(DEAD))
    store.report("web1:8", origin())
    assert store.end() == [("q", "web1:7", ["a", "b"])]
    for id in "ab":
        (failure,) = store.message(id).failures
        assert (failure.holder, failure.reason, failure.lapsed) == ("web1:7", LAPSED, True)
        assert store.message(id).state == "ready"
    assert store.message("c").state == "leased"
    line = "web1:7 has died and held 2 messages of q: they are delivered again now"
    assert caplog.messages == [line]
    assert store.end() == []  # the report is there still, and nothing is held


@pytest.mark.parametrize(
    "unsure",
    [
        UNKNOWN,
        "garbled",
        origin() + " 1",
        origin(DEAD, boot=OTHER_BOOT),
        origin(DEAD).replace(" ", "\n"),
    ],
    ids=["unknown", "garbled", "too long", "of another boot", "in lines"],
)
def test_of_whom_it_is_not_certain_all_stays(unsure: str) -> None:
    store = Store()
    store.hold("web1:7", "a")
    store.report("web1:7", unsure)
    assert store.end() == []
    assert [type(command) for command in store.commands] == [Scan]  # of the register
    store.hold("web1:8", "b")
    store.report("web1:8", origin(DEAD))
    assert store.end() == [("q", "web1:8", ["b"])]


def test_a_report_with_an_endless_origin_is_skipped() -> None:
    store = Store()
    store.hold("web1:7", "a")
    store.report("web1:7", origin(DEAD) + " " * 1_000_000)
    store.do(Put(REGISTER, [Item("x", b"{"), Item("y", b"\xff", json=False)]))
    assert store.end() == []


@pytest.mark.parametrize(
    "other",
    [origin(), UNKNOWN, origin(DEAD, boot=OTHER_BOOT)],
    ids=["alive", "unknown", "of another boot"],
)
def test_a_name_that_another_process_has_too_keeps_all(other: str) -> None:
    store = Store()
    store.hold("shared", "a")
    store.report("shared", origin(DEAD), id="first")
    store.report("shared", other, id="second")
    assert store.end() == []


def test_processes_of_one_name_have_reports_of_their_own() -> None:
    """As in containers that share the name of their host: else the last report hides the others."""
    ids = {report_id("web1:7", origin(start)) for start in ("1", "2", "3")}
    assert len(ids) == 3
    assert all(id.startswith("web1:7 ") for id in ids)
    assert report_id("web1:7", UNKNOWN) == "web1:7"


def test_one_that_has_the_name_meanwhile_keeps_what_it_has_claimed() -> None:
    store = Store()
    store.report("web1:7", origin(DEAD))

    def begin(command: Command) -> None:
        if command == Scan("q", "leased"):
            store.before = lambda command: None
            store.report("web1:7", origin())
            store.hold("web1:7", "a")

    store.before = begin
    assert store.end() == []
    assert store.message("a").state == "leased"


def test_what_others_have_claimed_meanwhile_stays_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    store = Store()
    store.hold("web1:7", "a", "b")
    store.report("web1:7", origin(DEAD))

    def claim(command: Command) -> None:
        if isinstance(command, Release) and command.reason == LAPSED:
            store.do(Release("q", ["a"]), Claim("q", 1, 86_400_000, "web1:8"))

    store.before = claim
    assert store.end() == [("q", "web1:7", ["a", "b"])]
    assert (store.message("a").state, store.message("a").holder) == ("leased", "web1:8")
    assert store.message("b").state == "ready"
    assert "held 1 message of q" in caplog.text


def test_only_queues_of_both_processes_count() -> None:
    store = Store()
    for queue in ("mine", "ours", "theirs"):
        store.hold("web1:7", "a", queue=queue)
    store.report("web1:7", origin(DEAD), "ours", "theirs")
    assert store.end("mine", "ours") == [("ours", "web1:7", ["a"])]
    scanned = {command.queue for command in store.commands if isinstance(command, Scan)}
    assert scanned == {REGISTER, "ours"}
    assert store.end("mine") == []


def test_several_dead_processes_and_queues_at_once() -> None:
    store = Store()
    for queue in ("q", "r"):
        store.hold("web1:7", "a", queue=queue)
        store.hold("web1:8", "b", queue=queue)
        store.hold("web1:9", "c", queue=queue)
    store.report("web1:7", origin(DEAD), "q", "r")
    store.report("web1:8", origin("2"), "r")
    assert sorted(store.end("q", "r")) == [
        ("q", "web1:7", ["a"]),
        ("r", "web1:7", ["a"]),
        ("r", "web1:8", ["b"]),
    ]


def test_many_leases_are_ended_in_parts_and_within_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(dead_holders, "MOST_LEASED", BULK + 500)
    store = Store()
    ids = [f"{number:04}" for number in range(BULK + 700)]
    for begin in range(0, len(ids), BULK):
        store.hold("web1:7", *ids[begin : begin + BULK])
    store.report("web1:7", origin(DEAD))
    assert [len(released) for _, _, released in store.end()] == [BULK, 500]
    assert f"held {BULK + 500:,} messages of q: they are" in caplog.text


def test_with_more_reports_than_are_read_nothing_is_certain() -> None:
    store = Store()
    store.hold("web1:7", "a")
    store.report("web1:7", origin(DEAD))
    for number in range(READ_MOST):
        store.report(f"web2:{number}", origin(DEAD, boot=OTHER_BOOT))
    assert store.end() == []


@pytest.mark.parametrize("refused", [Scan, Release])
def test_a_worker_that_may_not_goes_on_without(
    refused: type[Command], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "bide.worker")
    store = Store()
    store.hold("web1:7", "a")
    store.report("web1:7", origin(DEAD))

    def refuse(command: Command) -> None:
        if isinstance(command, refused):
            raise AccessDenied("the token has no right 'admin'")

    store.before = refuse
    assert store.end() == []
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert "delivered again when its leases end: the token has no right" in record.message
    assert store.message("a").state == "leased"


def beats(scene: Scene) -> int:
    """Return how many reports this process has sent."""
    return sum(command.queue == REGISTER for command in scene.sent(Put))


def test_a_worker_looks_once_before_it_deletes_old_reports(scene: Scene) -> None:
    handled: list[int] = []

    @scene.app.handler("q")
    async def handle(body: int, delivery: bide.Handling) -> None:
        handled.append(delivery.attempt)

    async def claim(holder: str) -> None:
        await scene.put(1, id=holder)
        await scene.lane.acall(Claim("q", 1, 86_400_000, holder))

    async def story() -> None:
        await claim("web1:7")
        await scene.lane.acall(put_report("first", Report({"web1:7": ["q"]}, origin=origin(DEAD))))
        scene.clock.advance(3_600)  # a first beat deletes reports as old as that
        async with scene.at_work():
            await scene.pass_time(lambda: handled == [2])
            await claim("web1:8")
            report = Report({"web1:8": ["q"]}, origin=origin(DEAD))
            await scene.lane.acall(put_report("second", report))
            before = beats(scene)
            await scene.pass_time(lambda: beats(scene) >= before + 3)
        assert [command.ids for command in scene.sent(Release)] == [["web1:7"]]

    scene.play(story())


def test_what_a_worker_itself_has_claimed_by_the_name_of_a_dead_one_stays(scene: Scene) -> None:
    begun: list[int] = []

    @scene.app.handler("q", lease="10m")
    async def handle(body: int, delivery: bide.Handling) -> None:
        begun.append(delivery.attempt)
        await asyncio.Event().wait()

    async def story() -> None:
        report = Report({"w": ["q"]}, origin=origin(DEAD))
        await scene.lane.acall(put_report(report_id("w", report.origin), report))
        await scene.put(1)
        async with scene.at_work(holder="w"):
            await scene.pass_time(lambda: begun and beats(scene) >= 3)
            assert begun == [1]
        assert scene.sent(Release) == []

    scene.play(story())


def test_a_store_that_fails_then_does_not_stop_it(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    def is_release(command: Command) -> bool:
        return isinstance(command, Release)

    async def story() -> None:
        await scene.put(1, id="held")
        await scene.lane.acall(Claim("q", 1, 600_000, "web1:7"))
        await scene.lane.acall(put_report("first", Report({"web1:7": ["q"]}, origin=origin(DEAD))))
        scene.engine.fail(bide.StoreUnavailable("away"), when=is_release, times=None)
        async with scene.at_work():
            await scene.pass_time(lambda: beats(scene) >= 3)
            await scene.put(2, id="fresh")
            await scene.acked(1)
        assert (await scene.find("held")).state == "leased"

    scene.play(story())
