"""Rate, concurrency, and the circuit that opens when a receiver is dead."""

import asyncio
import json
import socket
import threading
from typing import Any

import pytest

from bide.observing.logs import JsonFormatter
from bide.targets.http.receiver import Circuit, Pace
from tests.system.targets.http.environment import Stage, until
from tests.system.targets.http.receiver import Got, answer, receiver


def test_no_more_requests_are_under_way_than_allowed(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(concurrency=3) as (it, _):
            waiting: list[asyncio.Event] = []

            async def hold(got: Got, _: object) -> bytes:
                event = asyncio.Event()
                waiting.append(event)
                await event.wait()
                return answer(200)

            it.script = hold
            await stage.put(*range(9))
            for done in range(9):
                await until(lambda: waiting and it.under_way == min(3, 9 - done))  # noqa: B023
                waiting.pop(0).set()
            await stage.acked(9)
            assert it.most == 3

    stage.play(story())


def test_no_more_requests_begin_a_second_than_allowed(stage: Stage) -> None:
    async def story() -> None:
        moments: list[int] = []
        async with stage.at_work(rate=10, concurrency=50) as (it, _):

            async def note(got: Got, _: object) -> bytes:
                moments.append(stage.clock.now())
                return answer(200)

            it.script = note
            began = stage.clock.now()
            await stage.put(*range(40))
            await stage.pass_time(lambda: len(moments) == 40, step=0.02)
            took = stage.clock.now() - began
        assert took >= 3_800
        for moment in moments:
            assert sum(moment <= other < moment + 1_000 for other in moments) <= 12

    stage.play(story())


def test_a_host_whose_name_server_never_answers_holds_up_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, over, known = [], threading.Event(), socket.getaddrinfo

    def find(host: str, *args: Any, **options: Any) -> Any:
        if host == "hangs.example":
            asked.append(host)
            over.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return known("127.0.0.1" if host == "fine.example" else host, *args, **options)

    async def story() -> None:
        try:
            async with receiver() as it, stage.pushing() as pusher:
                await stage.subscribe("http://hangs.example/", concurrency=50)
                await stage.subscribe(f"http://fine.example:{it.port}/", name="other", queue="w")
                await stage.put(*range(50))
                pusher.look()
                await until(lambda: asked and len(pusher.workers["shop"].running) == 50)
                await stage.put(1, queue="w")
                await stage.acked(1, queue="w")
                assert asked == ["hangs.example"]
        finally:
            over.set()

    monkeypatch.setattr(socket, "getaddrinfo", find)
    stage.play(story())


def test_a_rate_below_one_a_second_is_kept(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(rate=0.1) as (it, _):
            began = stage.clock.now()
            await stage.put(1, 2, 3)
            await stage.pass_time(lambda: len(it.got) == 3, step=0.5)
            assert stage.clock.now() - began >= 19_500
            await stage.acked(3)

    stage.play(story())


def test_a_change_of_a_subscription_lets_no_request_begin_early(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(rate=0.1) as (it, worker):
            began = stage.clock.now()
            await stage.put(1, 2)
            await stage.acked(1)
            await stage.records.change("shop", headers={"x-kind": "b"})
            await stage.pass_time(lambda: worker.subscription.headers, step=0.5)
            worker.follow(worker.subscription, 0, 2)  # as if there were another server
            worker.follow(worker.subscription, 0, 1)
            await stage.pass_time(lambda: len(it.got) == 2, step=0.5)
            assert stage.clock.now() - began >= 9_500
            await stage.acked(2)

    stage.play(story())


@pytest.mark.parametrize("days", [0, 1, 30, 60, 365, 3_650])
@pytest.mark.parametrize("rate", [0.001, 0.3, 1, 3, 7, 10, 12, 1_000])
def test_a_rate_is_kept_however_long_the_machine_has_run(days: int, rate: float) -> None:
    pace, now = Pace(rate), days * 86_400.0
    for _ in range(1_000):
        now += 1 / rate
        assert pace.room(1, now) == 1
        pace.take(1)
    assert pace.room(1, now + 0.5 / rate) == (rate == 1_000)  # of which 100 are saved


def test_a_dead_receiver_is_left_alone_and_messages_keep_their_attempts(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(failures=3, concurrency=1, probe=30_000) as (it, worker):

            async def die(got: Got, _: object) -> None:
                return None

            it.script = die
            await stage.put(*range(10))
            await until(lambda: worker.circuit.since is not None)
            opened = stage.clock.now()
            await until(lambda: stage.counts().sizes.leased == 0)
            assert len(it.got) == 3
            # Those whose failures opened it have one attempt behind them, the last of them none.
            counts = stage.counts()
            assert (counts.sizes.delayed, counts.sizes.ready) == (2, 8)
            await stage.pass_time(lambda: stage.circuit().since)
            kept = stage.circuit()
            assert kept.since == opened
            assert kept.until == opened + 30_000
            assert kept.error == "the receiver closed the connection without an answer"
            # Ten probes in vain: each time one message, which keeps its attempt.
            await stage.pass_time(lambda: len(it.got) >= 13, step=5)
            assert stage.clock.now() - opened > 30_000 * 2
            await until(lambda: stage.counts().sizes.leased == 0)
            assert stage.counts().flow.died == 0
            assert worker.circuit.since == opened
            it.answers(answer(200))
            await stage.pass_time(lambda: stage.counts().flow.acked == 10, step=5)
            assert worker.circuit.since is None
            await stage.pass_time(lambda: stage.circuit().since is None)

    stage.play(story())


def test_a_circuit_that_opens_and_closes_has_fields_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with stage.at_work(failures=1, probe=1_000) as (it, worker):
            it.answers(answer(500), answer(200))
            await stage.put(1, 2)
            await stage.pass_time(lambda: stage.counts().flow.acked and not worker.circuit.since)

    stage.play(story())
    logged = [json.loads(JsonFormatter().format(one)) for one in caplog.records]
    circuits = [one for one in logged if "circuit" in one]
    assert [one["circuit"] for one in circuits] == ["open", "closed"]
    for one in circuits:
        assert (one["subscription"], one["namespace"], one["queue"]) == ("shop", "", "q")
        assert one["message"].startswith("shop: ")


def test_a_message_that_is_answered_in_a_probe_has_used_an_attempt(stage: Stage) -> None:
    """One that no receiver takes does not hold up the others for ever."""

    async def story() -> None:
        async with stage.at_work(failures=1, attempts=2, concurrency=1) as (it, _):

            async def refuse(got: Got, _: object) -> bytes:
                return answer(400 if got.id == "m0" else 200)

            it.script = refuse
            await stage.put(0, 1, 2)
            await stage.pass_time(lambda: stage.counts().flow.acked == 2, step=1)
            await stage.pass_time(lambda: stage.counts().sizes.dead == 1, step=1)

    stage.play(story())


def test_a_message_that_is_never_answered_does_not_hold_up_the_others(stage: Stage) -> None:
    """It makes the receiver fail, and keeps its attempts: each probe is another message's turn."""

    async def story() -> None:
        async with stage.at_work(failures=2, concurrency=1) as (it, worker):

            async def break_on_one(got: Got, _: object) -> bytes | None:
                return None if got.id == "m0" else answer(200)

            it.script = break_on_one
            await stage.put(0)
            await stage.pass_time(lambda: worker.circuit.since is not None, step=1)
            await stage.put("later", id="m1")
            await stage.pass_time(lambda: stage.counts().flow.acked == 1, step=5)
            assert [got.id for got in it.got[:4]] == ["m0", "m0", "m0", "m1"]

    stage.play(story())


def test_a_probe_that_is_one_request_too_many_is_not_repeated_at_once(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(failures=1, concurrency=1, probe=30_000) as (it, worker):
            it.answers(answer(503), answer(429))
            await stage.put(1)
            await stage.pass_time(lambda: len(it.got) == 2, step=1)
            probed = stage.clock.now()
            await until(lambda: worker.circuit.state(stage.clock.now()) == "open")
            assert worker.circuit.until >= probed + 60_000 - 1_000
            it.answers(answer(200))
            await stage.pass_time(lambda: stage.counts().flow.acked == 1, step=1)
            assert len(it.got) == 3
            assert stage.counts().flow.retried == 0

    stage.play(story())


def test_too_many_requests_says_nothing_about_the_health_of_a_receiver(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(failures=1) as (it, worker):
            it.answers(answer(429))
            await stage.put(1)
            await stage.delayed(1)
            assert worker.circuit.since is None

    stage.play(story())


def test_a_success_between_failures_keeps_the_circuit_closed(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(failures=2, concurrency=1) as (it, worker):
            it.answers(answer(500), answer(200), answer(500), answer(200))
            await stage.put(*range(4))
            await until(lambda: len(it.got) == 4)
            assert worker.circuit.since is None

    stage.play(story())


def test_resume_closes_the_circuit(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(failures=1, probe=600_000) as (it, worker):
            it.answers(answer(503))
            await stage.put(1)
            await until(lambda: worker.circuit.since is not None)
            await until(lambda: stage.counts().sizes.ready == 1)
            began = stage.clock.now()
            it.answers(answer(200))
            kept = await stage.records.get("shop")
            assert kept is not None
            await stage.records.resume("shop")
            await stage.pass_time(lambda: stage.counts().flow.acked == 1)
            assert stage.clock.now() - began < 60_000

    stage.play(story())


def test_a_server_that_looks_during_a_resume_does_not_hear_of_the_old_circuit(
    stage: Stage,
) -> None:
    async def story() -> None:
        async with receiver() as it, stage.pushing() as pusher:
            it.answers(answer(503))
            await stage.subscribe(it.url, failures=1, probe=600_000)
            await stage.pass_time(lambda: pusher.workers)
            worker = pusher.workers["shop"]
            await stage.put(1)
            await until(lambda: worker.circuit.since is not None)
            await until(lambda: stage.counts().sizes.ready == 1)
            await stage.pass_time(lambda: stage.circuit().since)
            it.answers(answer(200))
            forget, looked, began = stage.records.peers.forget_circuit, 0, stage.clock.now()

            async def late(name: str) -> None:
                nonlocal looked
                looked = pusher.looked
                await stage.pass_time(lambda: pusher.looked > looked + 1)
                await forget(name)

            stage.records.peers.forget_circuit = late  # type: ignore[method-assign]
            await stage.records.resume("shop")
            assert looked
            await stage.pass_time(lambda: stage.counts().flow.acked == 1)
            assert stage.clock.now() - began < 60_000

    stage.play(story())


def test_a_circuit_that_a_wrong_clock_opened_is_probed() -> None:
    circuit, hour = Circuit(), 3_600_000
    circuit.failed("x", 2 * hour, most=1, pause=30_000)
    assert [circuit.state(2 * hour), circuit.state(hour)] == ["open", "half-open"]
    before = circuit.changed
    assert circuit.succeeded(hour)
    assert circuit.changed > before  # so that other servers take it over


def test_pauses_between_probes_grow_up_to_ten_minutes() -> None:
    circuit, now, pauses = Circuit(), 0, []
    circuit.failed("x", now, most=1, pause=60_000)
    for _ in range(6):
        pauses.append(circuit.until - now)
        now = circuit.until
        assert circuit.state(now) == "half-open"
        assert circuit.failed("x", now, most=1, pause=60_000)
    assert pauses == [60_000, 120_000, 240_000, 480_000, 600_000, 600_000]
    assert circuit.since == 0


def test_a_failure_of_what_was_under_way_does_not_prolong_the_pause() -> None:
    circuit = Circuit()
    assert circuit.failed("x", 0, most=1, pause=60_000)
    assert not circuit.failed("y", 10, most=1, pause=60_000)
    assert circuit.until == 60_000
