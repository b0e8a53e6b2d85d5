"""What the log says about deliveries."""

import logging

import pytest

import bide
from bide.model.commands import Claim
from tests.worker.worker_app import FAST, Scene, until


def delivery_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The captured records that tell of deliveries, in the order they were logged."""
    return [record for record in caplog.records if record.name.endswith(".delivery")]


def test_what_is_handled_is_logged_with_its_fields(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bide.worker")

    async def story() -> None:
        def handle(body: int) -> None:
            scene.clock.advance(0.25)
            if body:
                raise ValueError("odd")

        scene.app.handler("q", retry=FAST, concurrency=1)(handle)
        await scene.put(0, 1)
        async with scene.at_work():
            await scene.acked(1)
            await scene.delayed(1)
            await until(lambda: "failed, again in" in caplog.text)

    scene.play(story())
    records = {vars(record).get("outcome"): vars(record) for record in caplog.records}
    acked, retried = records["acked"], records["retried"]
    assert (acked["queue"], acked["id"], acked["attempt"]) == ("q", "q-0", 1)
    assert (acked["lateness"], acked["duration"]) == (0, 0.25)
    assert (retried["lateness"], retried["duration"]) == (0.25, 0.25)
    assert retried["reason"].startswith("ValueError: odd")
    assert "q-1 of q, attempt 1: failed, again in 10s: ValueError: odd" in caplog.text


def test_only_failures_have_a_line_each_unless_details_are_wanted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bide.worker.delivery")

    async def story() -> None:
        @scene.app.handler("q", retry=bide.Backoff(first="1h", jitter=0))
        async def handle(body: int) -> None:
            if body == 1:
                raise ValueError("odd")
            if body == 2:
                raise bide.Discard

        await scene.put(*range(5))
        async with scene.at_work():
            await scene.acked(4)
            await scene.delayed(1)
            await scene.pass_time(lambda: "running" in caplog.text)

    scene.play(story())
    records = delivery_records(caplog)
    assert [record.getMessage() for record in records] == [
        "q-1 of q, attempt 1: failed, again in 1h: ValueError: odd",
        "q: 3 acked, 1 discarded, 1 retried in 10 s; 0 running",
    ]
    assert vars(records[1])["counts"] == {"acked": 3, "discarded": 1, "retried": 1}


def test_what_was_done_since_the_last_summary_is_told_at_the_end(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bide.worker.delivery")

    async def story() -> None:
        @scene.app.handler("q")
        async def handle(body: int) -> None: ...

        await scene.put(*range(3))
        async with scene.at_work():
            await scene.acked(3)

    scene.play(story())
    lines = [record.getMessage() for record in delivery_records(caplog)]
    assert lines == ["q: 3 acked in 0 s; 0 running"]


def test_messages_whose_last_lease_expired_are_logged_and_counted_as_dead(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bide.lane")

    async def story() -> None:
        @scene.app.handler("q")
        async def handle(body: int) -> None: ...

        await scene.put(*range(12), attempts=1)
        await scene.lane.acall(Claim("q", 12, 5_000, "web1:431"))
        async with scene.at_work() as runner:  # its claim waits, and nothing else ends the wait
            await scene.pass_time(lambda: runner.tallies()["q"].outcomes.get("dead") == 12)
            await scene.dead(12)

    scene.play(story())
    records = [record for record in caplog.records if record.name == "bide.lane"]
    lines = [record.getMessage() for record in records]
    assert lines[:2] == [
        f"q-{n} of q, attempt 1: it is dead now: its lease expired; web1:431 held it last"
        for n in range(2)
    ]
    assert lines[10:] == ["q: 2 more messages are dead now, because their leases expired"]
    fields = vars(records[0])
    assert (fields["queue"], fields["id"], fields["attempt"]) == ("q", "q-0", 1)
    assert (fields["outcome"], fields["holder"]) == ("dead", "web1:431")
