"""From a claim to what becomes of the message: is it wanted, what is logged and returned."""

import asyncio
import logging
from typing import Any, TypeVar

import pytest

import bide
from bide.consuming.outcomes import ChosenOutcome
from bide.model.commands import Ack, BuryCommand, Claim, Command, Configure, History, RetryCommand
from bide.model.replies import Claimed, Ends, QueueSettings, Reply
from tests.system.worker.worker_app import FAST, Scene, both, register, until


@both
def test_what_returns_is_acked(scene: Scene, is_async: bool) -> None:
    seen: list[Any] = []

    async def story() -> None:
        register(scene, is_async, seen.append)
        await scene.put(*range(20))
        async with scene.at_work():
            await scene.acked(20)
        assert sorted(seen) == list(range(20))
        assert (await scene.counts()).sizes.total == 0

    scene.play(story())


@both
def test_failures_are_tried_again_by_the_backoff_and_then_dead(
    scene: Scene, is_async: bool
) -> None:
    def fail(body: Any) -> None:
        raise OSError(f"no {body}")

    async def story() -> None:
        register(scene, is_async, fail, retry=FAST)
        await scene.put("luck")
        async with scene.at_work():
            for pause in (10, 20):
                await scene.delayed(1)
                found = await scene.find("q-0")
                assert found.due == scene.clock.now() + pause * 1000
                scene.clock.advance(pause)
            await scene.dead(1)
        letter = await scene.find("q-0")
        assert [failure.attempt for failure in letter.failures] == [1, 2, 3]
        moments = [failure.moment for failure in letter.failures]
        assert [later - moments[0] for later in moments] == [0, 10_000, 30_000]
        for failure in letter.failures:
            assert failure.reason.startswith("OSError: no luck\nTraceback")
            assert "in fail" in failure.reason
            assert "bide/worker" not in failure.reason
            assert ":" in failure.holder

    scene.play(story())


@both
def test_an_error_that_is_not_worth_it_is_dead_at_once(scene: Scene, is_async: bool) -> None:
    def fail(_: Any) -> None:
        raise KeyError("x")

    async def story() -> None:
        register(scene, is_async, fail, retry=bide.Backoff(on=(OSError,)))
        await scene.put(1)
        async with scene.at_work():
            await scene.dead(1)
        assert (await scene.find("q-0")).attempt == 1

    scene.play(story())


class Unspeakable(BaseException):
    def __repr__(self) -> str:
        raise ValueError("this error cannot be shown")


@both
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Unspeakable])
def test_what_ends_a_program_does_not_end_the_worker(
    scene: Scene, is_async: bool, kind: type[BaseException]
) -> None:
    seen: list[Any] = []

    def fail(body: Any) -> None:
        seen.append(body)
        if body == "bad":
            raise kind

    async def story() -> None:
        register(scene, is_async, fail, retry=bide.Backoff(attempts=1))
        await scene.put("bad", id="bad")
        async with scene.at_work():
            await scene.dead(1)
            await scene.put("good", id="good")
            await scene.acked(1)
        assert seen == ["bad", "good"]
        assert kind.__name__ in ((await scene.find("bad")).error or "")

    scene.play(story())


@both
def test_a_handler_that_raises_stop_iteration_has_failed(scene: Scene, is_async: bool) -> None:
    def fail(_: Any) -> None:
        next(iter(()))

    async def story() -> None:
        register(scene, is_async, fail, retry=bide.Backoff(attempts=1))
        await scene.put(1)
        async with scene.at_work():
            await scene.dead(1)

    scene.play(story())


def test_a_handler_that_cancels_itself_has_failed(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", retry=FAST)
        async def handle(_: Any) -> None:
            raise asyncio.CancelledError

        await scene.put(1)
        async with scene.at_work():
            await scene.delayed(1)
        assert (await scene.find("q-0")).error is not None

    scene.play(story())


@both
def test_signals_steer(scene: Scene, is_async: bool) -> None:
    signals: dict[str, ChosenOutcome] = {
        "later": bide.Retry(delay="5m", reason="closed"),
        "never": bide.Discard("paid"),
        "aside": bide.Bury("forged"),
    }

    def steer(body: str) -> None:
        raise signals[body]

    async def story() -> None:
        register(scene, is_async, steer, retry=bide.Backoff(on=(OSError,)))
        for name in signals:
            await scene.put(name, id=name)
        async with scene.at_work():
            await scene.dead(1)
            await scene.acked(1)
            await scene.delayed(1)
            later, aside = await scene.find("later"), await scene.find("aside")
            assert (later.due, later.error) == (scene.clock.now() + 300_000, "closed")
        assert (aside.state, aside.error) == ("dead", "forged")

    scene.play(story())


@both
def test_a_body_that_does_not_fit_is_dead_at_once(scene: Scene, is_async: bool) -> None:
    async def on_loop(number: int) -> None:
        raise AssertionError("it must not be called")

    def plain(number: int) -> None:
        raise AssertionError("it must not be called")

    async def story() -> None:
        scene.app.handler("q")(on_loop if is_async else plain)
        await scene.put("x", b"x")
        async with scene.at_work():
            await scene.dead(2)
        assert (
            await scene.find("q-0")
        ).error == "Unfit: the body does not fit int: Expected `int`, got `str`"
        assert (
            await scene.find("q-1")
        ).error == "Unfit: the body is bytes, and the handler takes int"
        assert [command.weight for command in scene.sent(BuryCommand)] == [1, 1]
        assert scene.sent(RetryCommand) == []

    scene.play(story())


def test_acks_of_one_turn_are_one_command(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", concurrency=100)
        async def handle(_: Any) -> None:
            await asyncio.sleep(0)

        await scene.put(*range(250))
        async with scene.at_work():
            await scene.acked(250)
        assert sum(command.weight for command in scene.sent(Ack)) == 250
        assert len(scene.sent(Ack)) <= 5

    scene.play(story())


class Jinxed(bide.Bury):
    """An exception whose own code fails where it is judged."""

    def __init__(self) -> None:
        pass

    @property
    def reason(self) -> str:  # type: ignore[override]
        raise RuntimeError("broken")


@both
def test_an_exception_that_cannot_be_judged_keeps_no_place(scene: Scene, is_async: bool) -> None:
    seen: list[Any] = []

    def handle(body: Any) -> None:
        if body == "bad":
            raise Jinxed
        seen.append(body)

    async def story() -> None:
        register(scene, is_async, handle, concurrency=1, retry=FAST)
        await scene.put("bad", attempts=1)
        await scene.put("good", id="good")
        async with scene.at_work():
            await scene.dead(1)
            await scene.acked(1)
        letter = await scene.find("q-0")
        assert letter.failures[-1].reason.startswith(
            "Jinxed was raised, and its own code failed: RuntimeError: broken\n"
        )

    scene.play(story())
    assert seen == ["good"]


def test_a_coroutine_that_a_plain_handler_returns_is_no_success(scene: Scene) -> None:
    ran: list[Any] = []

    async def work(body: Any) -> None:
        ran.append(body)

    def hidden(body: Any) -> Any:  # as a decorator that knows nothing of async functions
        return work(body)

    async def story() -> None:
        scene.app.handler("q", retry=FAST)(hidden)
        await scene.put("a", attempts=1)
        async with scene.at_work():
            await scene.dead(1)
        letter = await scene.find("q-0")
        assert "returned a coroutine that was never run" in letter.failures[-1].reason

    scene.play(story())
    assert ran == []


@both
def test_what_is_no_longer_wanted_is_discarded(scene: Scene, is_async: bool) -> None:
    seen: list[int] = []

    async def async_wanted(body: int) -> bool:
        return body % 2 == 1

    async def story() -> None:
        wanted = async_wanted if is_async else (lambda body: body % 2 == 1)
        register(scene, is_async, seen.append, still_wanted=wanted)
        await scene.put(1, 2, 3)
        async with scene.at_work():
            await scene.acked(3)
        assert sorted(seen) == [1, 3]

    scene.play(story())


def test_still_wanted_goes_with_every_order_of_arguments(scene: Scene) -> None:
    seen: list[Any] = []

    async def wanted(body: int) -> bool:
        return True

    async def story() -> None:
        @scene.app.handler("q", still_wanted=wanted)
        async def handle(delivery: bide.Delivery, body: int) -> None:
            seen.append((delivery.id, body))

        await scene.put(5)
        async with scene.at_work():
            await scene.acked(1)
        assert seen == [("q-0", 5)]

    scene.play(story())


@both
def test_still_wanted_may_look_at_the_delivery(scene: Scene, is_async: bool) -> None:
    seen: list[int] = []
    asked: list[tuple[int, str, object]] = []

    def check(body: int, delivery: bide.Handling) -> bool:
        asked.append((body, delivery.id, delivery.state.table))
        return delivery.attempt > 1

    async def async_check(body: int, delivery: bide.Handling) -> bool:
        return check(body, delivery)

    async def story() -> None:
        scene.app.state.table = {}
        wanted = async_check if is_async else check
        register(scene, is_async, seen.append, still_wanted=wanted)
        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
        assert asked == [(1, "q-0", {})]
        assert seen == []

    scene.play(story())


def test_a_check_that_fails_has_the_message_tried_again(scene: Scene) -> None:
    """The database that it asks is away: nobody knows whether the order still exists."""
    seen: list[int] = []
    down = [OSError("the database is down")]

    def wanted(body: int, extra: str = "") -> bool:
        assert extra == ""  # a default stays one
        if down:
            raise down.pop()
        return True

    async def story() -> None:
        register(scene, False, seen.append, still_wanted=wanted)
        await scene.put(1)
        async with scene.at_work():
            await scene.delayed(1)
            assert "the database is down" in ((await scene.find("q-0")).error or "")
            await scene.pass_time(lambda: seen == [1], 1)

    scene.play(story())


def test_what_is_written_in_c_may_be_asked_as_well(scene: Scene) -> None:
    seen: list[int] = []

    async def story() -> None:
        register(scene, False, seen.append, still_wanted={2}.__contains__)
        scene.app.handler("p", still_wanted=bool)(lambda body: seen.append(body))
        await scene.put(1, 2)
        await scene.put(0, 3, queue="p")
        async with scene.at_work():
            await scene.acked(2)
            await scene.acked(2, "p")
        assert sorted(seen) == [2, 3]

    scene.play(story())


def test_a_check_that_returns_a_coroutine_is_no_yes(scene: Scene) -> None:
    ran: list[Any] = []

    async def ask(body: Any) -> bool:
        return False

    async def story() -> None:
        handler = scene.app.handler("q", retry=FAST, still_wanted=lambda body: ask(body))
        handler(ran.append)
        await scene.put("a", attempts=1)
        async with scene.at_work():
            await scene.dead(1)
        letter = await scene.find("q-0")
        assert "still_wanted of " in letter.failures[-1].reason

    scene.play(story())
    assert ran == []


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


R = TypeVar("R", bound=Reply)


async def asked(scene: Scene, kind: type[R], command: Command) -> R:
    reply = await scene.lane.acall(command)
    assert isinstance(reply, kind)
    return reply


@both
def test_what_a_handler_returns_is_its_result(scene: Scene, is_async: bool) -> None:
    def double(body: Any) -> Any:
        return None if body == 3 else {"twice": 2 * body}

    async def story() -> None:
        register(scene, is_async, double)
        await asked(scene, QueueSettings, Configure("q", result_ttl=3_600_000))
        await scene.put(*range(4))
        async with scene.at_work():
            await scene.acked(4)
        results = [
            (await asked(scene, Ends, History("q", f"q-{n}"))).ends[0].result for n in range(4)
        ]
        assert results == [b'{"twice":0}', b'{"twice":2}', b'{"twice":4}', None]

    scene.play(story())


class Unreadable:
    """A model of pydantic with a computed field whose code fails."""

    def model_dump(self, **_: object) -> dict[str, Any]:
        raise KeyError("total")


@both
@pytest.mark.parametrize("returned", [object(), Unreadable()])
def test_what_cannot_be_a_result_is_logged_and_acked(
    scene: Scene, caplog: pytest.LogCaptureFixture, is_async: bool, returned: object
) -> None:
    async def story() -> None:
        register(scene, is_async, lambda body: returned)
        await asked(scene, QueueSettings, Configure("q", result_ttl=3_600_000))
        await scene.put(1)
        with caplog.at_level(logging.ERROR):
            async with scene.at_work():
                await scene.acked(1)
        (end,) = (await asked(scene, Ends, History("q", "q-0"))).ends
        assert (end.how, end.result) == ("acked", None)

    scene.play(story())
    assert "returned what cannot be kept as its result" in caplog.text


def test_a_queue_without_results_takes_what_handlers_return(scene: Scene) -> None:
    async def story() -> None:
        register(scene, False, lambda body: object())
        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)

    scene.play(story())


def test_a_claim_that_brings_no_message_leaves_the_results_of_running_handlers(
    scene: Scene,
) -> None:
    async def story() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @scene.app.handler("q", concurrency=2)
        async def handle(body: Any) -> Any:
            begun.set()
            await go_on.wait()
            return body

        await asked(scene, QueueSettings, Configure("q", result_ttl=3_600_000))
        await scene.put("lost", attempts=1)
        await asked(scene, Claimed, Claim("q", 1, 1_000, "another worker"))
        await scene.put("kept", id="kept")
        async with scene.at_work():
            await begun.wait()
            await scene.pass_time(lambda: scene.counts_in_file("q").sizes.dead)
            go_on.set()
            await scene.acked(1)
        (end,) = (await asked(scene, Ends, History("q", "kept"))).ends
        assert end.result == b'"kept"'

    scene.play(story())
