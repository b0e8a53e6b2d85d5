"""One scrape tells of all processes; why deliveries begin late."""

import asyncio
import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import bide
from bide.consuming.delivery_log import SUMMARY
from bide.model.commands import Configure, Explain, Put, Scan
from bide.model.message import Item
from bide.observing.heartbeat import REGISTER, Report
from bide.observing.listening import unlistenable
from bide.observing.tally import Tally
from bide.observing.workers import SeenProcess, gaps_before, seen_of
from bide.worker.process.processes import ProcessReport, receive, reporting
from bide.worker.process.runner import Runner
from bide.worker.process.supervisor import Supervisor
from bide.worker.process.totals import Totals
from tests.servers import free_port
from tests.system.worker.processes import BOUND, children, log, wait_for, worker
from tests.system.worker.worker_app import Scene, until

APP = """
import asyncio, bide
app = bide.App()

@app.handler("q", concurrency=1)
async def handle(body: dict) -> None:
    await asyncio.sleep(body["sleep"])
"""


def scrape(port: int) -> dict[str, float]:
    """Return the samples that a port serves, by name and labels; nothing when it is closed."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.URLError:
        return {}
    return {
        " ".join(
            [sample.name, *(sample.labels[name] for name in sorted(sample.labels))]
        ): sample.value
        for family in parse(text)
        for sample in family.samples
    }


@pytest.mark.process
def test_one_scrape_tells_of_all_processes_and_of_those_that_were_killed(tmp_path: Path) -> None:
    port = free_port()
    with bide.Queue("q", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
        queue.put_many([{"sleep": 0.05}] * 30)
        options = ("--processes", "2", "--metrics", f"127.0.0.1:{port}")
        with worker(tmp_path, APP, *options) as process:
            wait_for(lambda: scrape(port).get("bide_deliveries_total acked q") == 30, tmp_path)
            wait_for(lambda: scrape(port).get("bide_worker_processes") == 2, tmp_path)
            found = scrape(port)
            assert found["bide_store_up"] == 1
            assert found["bide_messages_put_total q"] == 30
            assert found["bide_messages_acked_total q"] == 30
            assert found["bide_delivery_duration_seconds_count q"] == 30
            assert found["bide_delivery_duration_seconds_bucket 0.025 q"] == 0
            assert found["bide_queue_messages q ready"] == 0
            os.kill(children(process)[0], signal.SIGKILL)
            wait_for(lambda: scrape(port).get("bide_worker_restarts_total") == 1, tmp_path)
            assert scrape(port)["bide_deliveries_total acked q"] == 30
            wait_for(lambda: scrape(port).get("bide_worker_processes") == 2, tmp_path)
            queue.put_many([{"sleep": 0}] * 10)
            wait_for(lambda: scrape(port).get("bide_deliveries_total acked q") == 40, tmp_path)
            assert scrape(port)["bide_delivery_lateness_seconds_count q"] == 40
    assert scrape(port) == {}


@pytest.mark.process
def test_a_port_that_is_taken_ends_it_with_a_reason(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with worker(tmp_path, APP, "--metrics", where) as process:
            assert process.wait(60) == 2
    assert f"--metrics {where} cannot be listened on: Address already in use" in log(tmp_path)


def test_a_host_that_has_no_address_is_told_so() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "no such name")
    assert str(unlistenable("metrics=x:1", error)).startswith("metrics=x:1: no such name; ")


@pytest.mark.process
def test_an_address_without_a_port_is_refused(tmp_path: Path) -> None:
    with worker(tmp_path, APP, "--metrics", "localhost") as process:
        assert process.wait(60) == 2
    assert "'localhost' is not a port; write 9464 or 0.0.0.0:9464" in log(tmp_path)


def tally(acked: int, running: int = 0) -> dict[str, Tally]:
    return {"q": Tally(outcomes={"acked": acked}, running=running)}


def told(tallies: dict[str, Tally], store: str = "", lost: int = 0) -> Any:
    """Return a process with its last report."""
    return SimpleNamespace(report=ProcessReport(True, store, tallies), lost={"lossy": lost})


def test_what_a_process_has_told_last_stays_when_it_ends() -> None:
    gathered = Totals()
    first, second = told(tally(6, 2)), told(tally(7, 1))
    gathered.living += [first, second]
    assert gathered.tallies() == tally(13, 3)
    gathered.ended(first)
    assert gathered.tallies() == tally(13, 1)
    gathered.living.append(told(tally(1)))
    assert gathered.tallies() == tally(14, 1)


def test_a_loss_that_several_processes_see_counts_once_and_stays_when_they_end() -> None:
    gathered = Totals()
    first, second = told({}, lost=3), told({}, lost=5)
    gathered.living += [first, second]
    assert gathered.lost()["lossy"] == 5
    gathered.ended(second)
    assert gathered.lost()["lossy"] == 5


def test_a_process_that_begins_counts_from_what_others_have_seen_to_be_lost() -> None:
    async def story() -> None:
        supervisor = Supervisor(["true"])
        supervisor.totals.living.append(told({}, lost=5))
        process = supervisor.start_process(1)
        process.report = ProcessReport(lost={"lossy": 3})
        assert supervisor.totals.lost()["lossy"] == 8
        await process.over

    asyncio.run(story())


def test_nothing_is_read_before_a_process_has_told_where() -> None:
    assert Totals().counts() == {}


def test_a_store_of_each_process_alone_has_no_counts() -> None:
    gathered = Totals()
    gathered.living.append(told(tally(1), "memory://"))
    assert gathered.counts() == {}
    gathered.close()


async def listen(pipe: socket.socket) -> list[ProcessReport]:
    return [report async for report in receive(pipe)]


async def heard(reports: list[ProcessReport]) -> list[ProcessReport]:
    """Return what comes out of a line at the other end."""
    ours, theirs = socket.socketpair()
    receiving, rest = asyncio.create_task(listen(ours)), iter(reports)
    async with reporting(theirs.detach(), lambda: next(rest), lambda: None):
        await asyncio.sleep(0)  # for the first beat
    return await receiving


def test_a_report_arrives_whole_however_long_it_is() -> None:
    many = {f"queue-{number}": Tally(claims=number) for number in range(3_000)}
    reports = [ProcessReport(ready=True, store="sqlite:///x.db"), ProcessReport(tallies=many)]
    assert asyncio.run(heard(reports)) == reports


def test_who_is_not_listened_to_waits_with_the_next_report() -> None:
    async def story() -> int:
        ours, theirs = socket.socketpair()
        report = ProcessReport(tallies={f"queue-{number}": Tally() for number in range(3_000)})
        async with reporting(theirs.detach(), lambda: report, lambda: None) as send:
            for _ in range(50):
                send()
            receiving = asyncio.create_task(listen(ours))
        return len(await receiving)

    assert asyncio.run(story()) < 50


def test_a_supervisor_that_dies_is_noticed() -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        cut = asyncio.Event()
        async with reporting(theirs.detach(), ProcessReport, cut.set) as send:
            ours.close()
            await asyncio.wait_for(cut.wait(), BOUND)
            send()

    asyncio.run(story())


def causes(runner: Runner) -> dict[str, float]:
    found = runner.tallies()["q"].causes
    return {cause: round(histogram.sum, 1) for cause, histogram in found.items()}


def handle(scene: Scene) -> None:
    @scene.app.handler("q", concurrency=1)
    async def handle(body: int) -> None: ...


def handle_until(scene: Scene) -> asyncio.Event:
    """Add a handler of one message at a time; return the event that it waits for."""
    over = asyncio.Event()

    @scene.app.handler("q", concurrency=1, lease="10m")
    async def handle(body: int) -> None:
        await over.wait()

    return over


def test_a_delivery_on_time_asks_the_store_nothing(scene: Scene) -> None:
    handle(scene)

    async def story() -> None:
        async with scene.at_work() as runner:
            await scene.put(1)
            await scene.acked(1)
            await scene.pass_time(lambda: causes(runner) == {"timer": 0.0}, SUMMARY)
            assert runner.tallies()["q"].causes["timer"].count == 1
            assert not scene.sent(Explain)

    scene.play(story())


def test_a_pause_and_what_follows_it(scene: Scene) -> None:
    handle(scene)

    async def story() -> None:
        await scene.lane.acall(Configure("q", paused=True))
        await scene.put(1)
        async with scene.at_work() as runner:
            scene.clock.advance(30)
            await scene.lane.acall(Configure("q", paused=False))
            await scene.acked(1)
            await scene.pass_time(lambda: causes(runner).get("paused", 0) >= 30, 1)

    scene.play(story())


def test_a_retry_counts_from_the_time_that_was_planned(scene: Scene) -> None:
    @scene.app.handler("q", retry=bide.Backoff(first="40s", jitter=0))
    async def handle(body: int, delivery: bide.Delivery) -> None:
        if delivery.attempt == 1:
            raise OSError("no")

    async def story() -> None:
        async with scene.at_work() as runner:
            await scene.put(1)
            await scene.delayed(1)
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 1, 1)
            await scene.pass_time(lambda: causes(runner).get("retry", 0) >= 39, 1)

    scene.play(story())


def test_who_waits_for_a_place_waits_for_the_backlog(scene: Scene) -> None:
    over = handle_until(scene)

    async def story() -> None:
        async with scene.at_work() as runner:
            await scene.put(1, 2)
            await until(lambda: runner.tallies()["q"].running == 1)
            scene.clock.advance(20)
            over.set()
            await scene.acked(2)
            await scene.pass_time(lambda: causes(runner).get("backlog", 0) >= 19, 1)

    scene.play(story())


def test_who_waits_for_a_place_counts_the_claim_that_brought_it(scene: Scene) -> None:
    over = handle_until(scene)

    async def story() -> None:
        async with scene.at_work() as runner:
            consumer = runner.consumers["q"]
            consumer.prefetch.pace = 0.0001  # as after many quick deliveries
            over.set()
            await scene.put(0)  # the claim after this one is for several
            await scene.acked(1)
            await until(lambda: consumer.claim_task and not consumer.claim_task.done())
            over.clear()
            claims, asked = consumer.tally.claims, consumer.asked_at
            scene.clock.advance(10)
            await scene.put(1, 2, at=scene.clock.now() - 5_000)
            await until(lambda: consumer.asked_at > asked)
            assert consumer.tally.claims == claims + 1
            over.set()
            await scene.acked(3)
            await scene.pass_time(lambda: causes(runner).get("timer", 0) >= 5, 1)
            assert causes(runner) == {"timer": 10}

    scene.play(story())


def test_before_the_first_worker_there_was_none(scene: Scene) -> None:
    handle(scene)

    async def story() -> None:
        await scene.put(1)
        scene.clock.advance(60)
        async with scene.at_work() as runner:
            await scene.acked(1)
            await scene.pass_time(lambda: causes(runner).get("no-worker", 0) == 60, 1)
        reply = await scene.lane.acall(Scan(REGISTER, "next"))
        assert reply.messages == []  # type: ignore[union-attr]

    scene.play(story())


def test_the_gaps_are_those_that_other_processes_leave() -> None:
    def seen(began: int, until: float, *gaps: tuple[float, float]) -> SeenProcess:
        return SeenProcess(Report({"w": ["q"]}, began=began, gaps={"q": list(gaps)}), until)

    alive = float("inf")
    assert gaps_before(["q"], [], 900)["q"] == [(0, 900)]
    assert gaps_before(["q"], [seen(300, alive, (0, 100), (200, 300))], 900)["q"] == [
        (0, 100),
        (200, 300),
    ]
    dead = seen(300, 500, (0, 300))
    assert gaps_before(["q"], [dead], 900)["q"] == [(0, 300), (500, 900)]
    assert gaps_before(["q"], [dead, seen(400, 700, (0, 300))], 900)["q"] == [(0, 300), (700, 900)]
    assert gaps_before(["q"], [dead, seen(600, alive, (0, 300), (500, 600))], 900)["q"] == [
        (0, 300),
        (500, 600),
    ]
    assert gaps_before(["other"], [dead], 900)["other"] == [(0, 900)]
    assert seen_of(dead.report, 50_000, 20_000).until == alive
    assert seen_of(dead.report, 50_000, 60_000).until == 30_000


def test_a_backlog_after_a_pause_is_all_looked_at_with_its_pause(scene: Scene) -> None:
    count = 3_000

    @scene.app.handler("q", concurrency=100)
    async def handle(body: int) -> None: ...

    async def story() -> None:
        await scene.lane.acall(Configure("q", paused=True))
        items = [Item(str(number), b"1") for number in range(count)]
        await scene.lane.acall(Put("q", items))
        async with scene.at_work() as runner:
            scene.clock.advance(30)
            await scene.lane.acall(Configure("q", paused=False))
            await scene.acked(count)
            await scene.pass_time(lambda: causes(runner).get("paused", 0) >= count * 30, 1)

    scene.play(story())
