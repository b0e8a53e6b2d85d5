"""Several servers on one store: nothing is sent twice, and the death of one is made up for."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from bide.consuming import dead_holders
from bide.engines.sqlite import SqliteEngine
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Command, Put, Scan
from bide.model.errors import StoreUnavailable
from bide.observing.heartbeat import REGISTER
from bide.observing.process_origin import UNKNOWN, of_this_process
from bide.targets.http import subscription_worker
from bide.targets.http.addresses import AddressGate
from bide.targets.http.encryption import KEY, new_key
from bide.targets.http.peers import PUSHERS, Peers, R
from bide.targets.http.records import Records
from bide.targets.http.stats import Deliveries
from bide.targets.pusher import Pusher
from bide.testing import FakeClock
from tests.system.targets.http.environment import LOOPBACK, Stage, until
from tests.system.targets.http.receiver import Got, answer, receiver


@contextmanager
def another(stage: Stage) -> Iterator[Lane]:
    """Open the store once more, as another process would."""
    lane = Lane(lambda: SqliteEngine(stage.path, durability="normal"), stage.clock)
    try:
        yield lane
    finally:
        lane.close()


@asynccontextmanager
async def joined_by(stage: Stage, one: Pusher) -> AsyncIterator[Pusher]:
    """Let another server be at work on the store; both know of each other."""
    with another(stage) as lane:
        other = Pusher(lane, stage.clock, gate=AddressGate(LOOPBACK), holder="other")
        task = asyncio.create_task(other.run(0.0))
        try:
            await stage.pass_time(lambda: one.servers == other.servers == ["one", "other"])
            yield other
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_two_servers_share_the_work_without_doubles(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url, concurrency=8)
            async with stage.pushing(holder="one") as one, joined_by(stage, one) as other:
                await until(lambda: one.workers["shop"].share == 4)
                gate = asyncio.Event()

                async def hold(got: Got, _: object) -> bytes:
                    await gate.wait()
                    return answer(200)

                it.script = hold
                await stage.put(*range(300))
                await until(lambda: it.under_way == 8)  # all together, and no more
                gate.set()
                await stage.acked(300)
                tallies = [pusher.workers["shop"].tally for pusher in (one, other)]
            assert it.most == 8
            assert len(Counter(got.id for got in it.got)) == len(it.got) == 300
            assert min(tally.claimed for tally in tallies) > 0
            assert sum(tally.claimed for tally in tallies) == 300

    stage.play(story())


def test_a_server_that_others_took_for_dead_counts_itself(stage: Stage) -> None:
    """Such as one that was suspended: another reads its entry, it renews it, the other deletes."""

    class Suspended(Peers):
        async def ask(self, kind: type[R], command: Command) -> R:
            if isinstance(command, Scan):
                await stage.lane.acall(Cancel(PUSHERS, ["suspended"]))
            return await super().ask(kind, command)

    async def story() -> None:
        await stage.records.peers.present("alive")
        assert await Suspended(stage.lane).present("suspended") == ["alive", "suspended"]

    stage.play(story())


def test_the_rate_is_that_of_all_servers_together(stage: Stage) -> None:
    async def story() -> None:
        await stage.subscribe("https://example.org/", rate=10, concurrency=5)
        async with stage.pushing(holder="one") as one:
            async with joined_by(stage, one) as other:
                workers = [pusher.workers["shop"] for pusher in (one, other)]
                await stage.pass_time(lambda: {4, 6} == {worker.pace.rate for worker in workers})
                assert sorted(worker.share for worker in workers) == [2, 3]
            # The one that stays gets it all.
            await stage.pass_time(lambda: workers[0].pace.rate == 10)
            assert workers[0].share == 5

    stage.play(story())


def test_a_server_without_places_takes_nothing_of_the_rate(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url, rate=10, concurrency=1)
            async with stage.pushing(holder="one") as one, joined_by(stage, one) as other:
                workers = [pusher.workers["shop"] for pusher in (one, other)]
                await stage.pass_time(lambda: sum(worker.share for worker in workers) == 1)
                (sending,) = [worker for worker in workers if worker.share]
                assert sending.pace.rate == 10

    stage.play(story())


def test_a_server_that_died_is_missed_after_a_while(stage: Stage) -> None:
    async def story() -> None:
        with another(stage) as lane:
            records = Records(lane, stage.clock)
            assert await records.peers.present("dead") == ["dead"]
            assert await stage.records.peers.present("alive") == ["alive", "dead"]
            stage.clock.advance(6.1)
            assert await stage.records.peers.present("alive") == ["alive"]
            stage.clock.advance(120)
            await stage.records.peers.present("alive")
            assert stage.counts("bide.server/pushers").sizes.total == 1

    stage.play(story())


def test_what_one_server_finds_out_about_a_receiver_counts_for_all(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            it.answers(answer(503))
            await stage.subscribe(it.url, failures=1, concurrency=2)
            async with stage.pushing(holder="one") as one, joined_by(stage, one) as other:
                await stage.put(1)
                workers = [pusher.workers["shop"] for pusher in (one, other)]
                await stage.pass_time(
                    lambda: all(worker.circuit.since is not None for worker in workers)
                )
                it.answers(answer(200))
                await stage.pass_time(lambda: stage.counts().flow.acked == 1, step=1)
                await stage.pass_time(
                    lambda: all(worker.circuit.since is None for worker in workers)
                )

    stage.play(story())


def test_one_server_of_all_sends_the_one_message_to_a_receiver_that_was_dead(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            it.answers(answer(503))
            await stage.subscribe(it.url, failures=1, probe=60_000, timeout=300_000)
            async with stage.pushing(holder="one") as one, joined_by(stage, one) as other:
                pushers = (one, other)
                await stage.put(1)
                workers = [pusher.workers["shop"] for pusher in pushers]
                await stage.pass_time(
                    lambda: all(worker.circuit.since is not None for worker in workers)
                )
                await stage.put(*range(20))
                sent, gate = len(it.got), asyncio.Event()

                async def hold(got: Got, _: object) -> bytes:
                    await gate.wait()
                    return answer(200)

                it.script = hold
                # In small steps: its lease must not end before the request has arrived.
                await stage.pass_time(lambda: it.under_way, step=0.2)
                looked = [pusher.looked for pusher in pushers]
                await stage.pass_time(
                    lambda: all(p.looked > n + 2 for p, n in zip(pushers, looked, strict=True))
                )
                assert len(it.got) == sent + 1
                gate.set()
                await stage.pass_time(lambda: stage.counts().flow.acked == 20)

    stage.play(story())


def test_the_figures_of_servers_count_however_wrong_the_clock_of_their_reader_is(
    stage: Stage,
) -> None:
    async def story() -> None:
        told = {"shop": Deliveries(running=1)}
        await stage.records.peers.present("one", told)
        stage.clock.advance(5)
        await stage.records.peers.present("two", told)
        reader = FakeClock(stage.clock.now() + 3_600_000)
        assert (await Records(stage.lane, reader).peers.deliveries())["shop"].running == 2
        stage.clock.advance(5)
        assert (await Records(stage.lane, reader).peers.deliveries())["shop"].running == 1

    stage.play(story())


def test_servers_take_turns_in_looking_whether_a_receiver_is_back(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            it.answers(answer(503))
            await stage.subscribe(it.url, failures=1, probe=1_000, concurrency=1)
            async with stage.pushing(holder="one") as one, joined_by(stage, one) as other:
                await stage.put(1)
                workers = [pusher.workers["shop"] for pusher in (one, other)]
                await stage.pass_time(
                    lambda: all(worker.deliveries.answers for worker in workers), step=5
                )
                it.answers(answer(200))
                await stage.pass_time(lambda: stage.counts().flow.acked == 1, step=1)

    stage.play(story())


def test_a_turn_may_lapse(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, new_key())
    monkeypatch.setattr(subscription_worker, "crc32", lambda _: 1)  # it is the turn of "other"

    async def story() -> None:
        stage.records = Records(stage.lane, stage.clock)
        async with receiver() as it, stage.pushing(holder="one") as one:
            it.answers(answer(503))
            await stage.subscribe(it.url, failures=1, probe=1_000, timeout=1_000)
            monkeypatch.delenv(KEY)
            async with joined_by(stage, one) as other:
                assert other.workers["shop"].subscription.paused  # it lacks the key
                await stage.put(1)
                await stage.pass_time(lambda: it.got)
                it.answers(answer(200))
                await stage.pass_time(lambda: stage.counts().flow.acked == 1)

    stage.play(story())


def test_what_others_could_not_be_told_at_once_they_are_told_later(stage: Stage) -> None:
    def tells(command: Command) -> bool:
        return isinstance(command, Put) and command.queue == "bide.server/circuits"

    async def story() -> None:
        async with receiver() as it:
            it.answers(answer(503))
            await stage.subscribe(it.url, failures=1, probe=3_600_000)
            async with stage.pushing():
                fault = stage.engine.fail(StoreUnavailable("away"), when=tells)
                await stage.put(1)
                await stage.pass_time(lambda: fault.struck)
                assert stage.circuit().since is None
                await stage.pass_time(lambda: stage.circuit().since)

    stage.play(story())


@contextmanager
def process(path: Path, grace: str = "5s") -> Iterator["subprocess.Popen[bytes]"]:
    """Run `bide push` on a store."""
    log = path.with_suffix(".log").open("ab")
    running = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bide",
            "push",
            "--url",
            f"sqlite:///{path}",
            "--allow-network",
            "127.0.0.0/8",
            "--grace",
            grace,
        ],
        stdout=log,
        stderr=log,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
        log.close()


@pytest.mark.process
@pytest.mark.parametrize(
    "is_certain",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(of_this_process() == UNKNOWN, reason="only Linux has /proc"),
        ),
    ],
    ids=["when its leases end", "at once"],
)
def test_a_process_that_is_killed_is_taken_over_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_certain: bool
) -> None:
    if not is_certain:  # as on another machine
        monkeypatch.setattr(dead_holders, "is_dead", lambda origin: False)
    stage = Stage(tmp_path / "bide.db")

    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url, concurrency=4)

            async def hang(got: Got, _: object) -> bytes:
                await asyncio.Event().wait()
                return b""

            it.script = hang
            await stage.put(*range(10))
            with process(stage.path) as victim:
                await until(lambda: it.under_way == 4)
                await until(lambda: stage.counts(REGISTER).sizes.delayed == 1)
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
            assert stage.counts().sizes.leased == 4
            it.answers(answer(200))
            if not is_certain:  # by a clock that is past the leases, as if 31 s had gone by
                behind = time.time() - stage.clock.now() / 1000  # the victim took its time to begin
                stage.clock.advance(behind + 31)
            async with stage.pushing():
                await until(lambda: stage.counts().flow.acked == 10)
            attempts = Counter(got.headers["bide-attempt"] for got in it.got)
            assert attempts == {"1": 10, "2": 4}
            flow = stage.counts().flow
            assert (flow.retried, flow.lapsed) == ((4, 0) if is_certain else (0, 4))

    stage.play(story())


@pytest.mark.process
def test_two_processes_share_the_work_and_stop_gracefully(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "bide.db")

    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url, concurrency=6)

            async def soon(got: Got, _: object) -> bytes:
                return answer(200)

            it.script = soon
            with process(stage.path) as first, process(stage.path) as second:
                for batch in range(10):
                    for number in range(30):
                        await stage.put(number, id=f"{batch}-{number}")
                await stage.acked(300)
                log = stage.path.with_suffix(".log")  # one of them may have begun after the last
                await until(lambda: log.read_text().count("pushing, from") == 2)
                first.send_signal(signal.SIGTERM)
                second.send_signal(signal.SIGINT)
                assert (first.wait(60), second.wait(60)) == (0, 0)
            assert len({got.id for got in it.got}) == len(it.got) == 300
            told = log.read_text()
            assert told.count("stopped") == 2
            assert "Traceback" not in told
            assert stage.secret not in told

    stage.play(story())


@pytest.mark.process
def test_a_closed_terminal_lets_what_is_under_way_finish(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "bide.db")

    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url, concurrency=1)
            closed = asyncio.Event()

            async def wait(got: Got, _: object) -> bytes:
                await closed.wait()
                return answer(200)

            it.script = wait
            await stage.put(1)
            log = stage.path.with_suffix(".log")
            with process(stage.path, grace="10m") as pushing:
                await until(lambda: it.under_way == 1)
                for _ in range(2):  # of the shell and of the system
                    pushing.send_signal(signal.SIGHUP)
                    await until(lambda: "stopping; what is under way" in log.read_text())
                closed.set()
                assert await asyncio.to_thread(pushing.wait, 60) == 0
            assert stage.counts().flow.acked == 1

    stage.play(story())


@pytest.mark.process
def test_a_second_signal_does_not_wait_for_what_is_under_way(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "bide.db")

    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url, concurrency=1)

            async def hang(got: Got, _: object) -> bytes:
                await asyncio.Event().wait()
                return b""

            it.script = hang
            await stage.put(1)
            log = stage.path.with_suffix(".log")
            with process(stage.path, grace="10m") as pushing:
                await until(lambda: it.under_way == 1)
                pushing.send_signal(signal.SIGTERM)
                await until(lambda: "stopping; what is under way" in log.read_text())
                pushing.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(pushing.wait, 60) == 0
            message = await stage.find("m0")
            assert (message.state, message.attempt) == ("ready", 0)

    stage.play(story())


def test_a_pusher_that_runs_again_tells_the_others_at_once(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url)
            pusher = Pusher(stage.lane, stage.clock, gate=AddressGate(LOOPBACK), holder="one")
            for run in (1, 2):
                task = asyncio.create_task(pusher.run(0.0))
                await until(lambda: task.done() or pusher.looked == run)  # noqa: B023
                assert stage.counts("bide.server/pushers").sizes.delayed == 1
                task.cancel()
                await asyncio.wait([task])
                assert stage.counts("bide.server/pushers").sizes.delayed == 0

    stage.play(story())
