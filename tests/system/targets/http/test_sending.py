"""What arrives at a receiver, and what becomes of the message by what it answers."""

import asyncio
import sys
import time
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from bide.model.commands import Claim, Extend, RetryCommand
from bide.targets.http.receiver import retry_after
from tests.system.targets.http.environment import Stage, until
from tests.system.targets.http.receiver import Got, answer, receiver

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"trace": "t1", "Weg": "Süd", "traceparent": TRACE, "tracestate": "a=1"}


def test_a_due_message_arrives_signed_and_is_acked(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(headers={"authorization": "Bearer abc"}) as (receiver, _):
            await stage.put({"order": 42}, id="order-42", headers=HEADERS)
            await stage.acked(1)
            now = stage.clock.now()  # to end a pusher may take a step of the clock
        (got,) = receiver.got
        assert (got.method, got.target, got.body) == ("POST", "/hook", b'{"order":42}')
        assert Webhook(stage.secret).verify(got.body, got.headers) == {"order": 42}
        told = got.headers
        assert told["webhook-id"] == told["idempotency-key"] == "q/order-42"
        assert told["content-type"] == "application/json"
        assert told["authorization"] == "Bearer abc"
        assert (told["bide-queue"], told["bide-id"], told["bide-attempt"]) == ("q", "order-42", "1")
        assert told["bide-due"] == str(now)
        assert told["bide-header-trace"] == "t1"
        assert told["bide-header-weg*"] == "UTF-8''S%C3%BCd"
        assert told["user-agent"].startswith("bide/")
        assert (told["traceparent"], told["tracestate"]) == (TRACE, "a=1")
        assert "cookie" not in told

    stage.play(story())


def test_no_header_of_a_message_is_lost_on_the_way(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (receiver, _):
            headers = {"padded": "  a b ", "Case": "upper", "case": "lower", "blank": " "}
            await stage.put(1, headers=headers)
            await stage.acked(1)
        (got,) = receiver.got
        own = {name: value for name, value in got.headers.items() if "bide-header" in name}
        assert own == {
            "bide-header-padded*": "UTF-8''%20%20a%20b%20",
            "bide-header-case": "upper, lower",
            "bide-header-blank*": "UTF-8''%20",
        }

    stage.play(story())


def test_nothing_arrives_before_its_moment(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (receiver, _):
            await stage.put(1, delay=5_000)
            await stage.pass_time(lambda: receiver.got)
            due = int(receiver.got[0].headers["bide-due"])
            assert stage.clock.now() >= due
            await stage.acked(1)

    stage.play(story())


@pytest.mark.parametrize("kind", ["image/png", None])
def test_bytes_are_sent_as_they_are_with_their_content_type(stage: Stage, kind: str | None) -> None:
    async def story() -> None:
        headers = None if kind is None else {"Content-Type": kind}
        async with stage.at_work() as (receiver, _):
            await stage.put(b"\x00\xff\x01", headers=headers)
            await stage.acked(1)
        (got,) = receiver.got
        assert got.body == b"\x00\xff\x01"
        assert got.headers["content-type"] == kind or "application/octet-stream"

    stage.play(story())


def test_ids_of_any_text_fit_into_headers(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (receiver, _):
            await stage.put(1, id="Größe/1.5 €")
            await stage.acked(1)
        (got,) = receiver.got
        assert got.headers["webhook-id"] == "q/Gr%C3%B6%C3%9Fe%2F1%2E5%20%E2%82%AC"
        Webhook(stage.secret).verify(got.body, got.headers)

    stage.play(story())


def test_a_namespace_is_nothing_that_receivers_hear_of(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as other:
            await stage.subscribe(other.url, name="team/shop", queue="team/q")
            async with stage.pushing():
                await stage.put(1, queue="team/q")
                await stage.put(2, queue="q")
                await stage.acked(1, "team/q")
            (got,) = other.got
        assert got.headers["bide-queue"] == "q"
        assert not any("team" in value for value in got.headers.values())
        assert stage.counts("q").sizes.ready == 1

    stage.play(story())


def test_each_attempt_has_the_same_id_another_number_and_a_signature_of_its_own(
    stage: Stage,
) -> None:
    async def story() -> None:
        async with stage.at_work() as (receiver, _):
            receiver.answers(answer(500, b"boom"), answer(200))
            await stage.put(1)
            await stage.delayed(1)
            await stage.pass_time(lambda: len(receiver.got) == 2)
            await stage.acked(1)
        first, second = (got.headers for got in receiver.got)
        assert first["webhook-id"] == second["webhook-id"]
        assert (first["bide-attempt"], second["bide-attempt"]) == ("1", "2")
        assert first["webhook-signature"] != second["webhook-signature"]
        with pytest.raises(WebhookVerificationError):
            Webhook(stage.secret).verify(b"2", first)

    stage.play(story())


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_success_is_an_ack(stage: Stage, status: int) -> None:
    async def story() -> None:
        async with stage.at_work() as (receiver, _):
            receiver.answers(answer(status))
            await stage.put(1)
            await stage.acked(1)

    stage.play(story())


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 418, 500, 502, 503])
def test_any_other_answer_is_tried_again_and_remembered(stage: Stage, status: int) -> None:
    async def story() -> None:
        async with stage.at_work() as (receiver, _):
            receiver.answers(answer(status, b"no\r\n way", location="http://example.org"))
            await stage.put(1)
            await stage.delayed(1)
            message = await stage.find("m0")
            assert message.error is not None
            assert message.error.startswith(str(status))
            assert ("no way" in message.error) == (status >= 400)
            assert 9_000 <= message.due - stage.clock.now() <= 11_000

    stage.play(story())


def test_attempts_that_are_used_up_make_a_dead_letter_with_the_reason(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(attempts=3, first=1_000, failures=10) as (receiver, _):
            receiver.answers(answer(500, b"boom"))
            await stage.put(1)
            await stage.pass_time(lambda: stage.counts().sizes.dead)
            assert len(receiver.got) == 3
        message = await stage.find("m0")
        assert [failure.reason for failure in message.failures] == [
            "500 Internal Server Error: boom"
        ] * 3
        assert message.failures[0].holder.startswith("push:")

    stage.play(story())


def test_a_messages_own_limit_of_attempts_counts_as_well(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(attempts=3) as (receiver, _):
            receiver.answers(answer(500))
            await stage.put(1, attempts=1)
            await stage.dead(1)
            assert len(receiver.got) == 1

    stage.play(story())


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date", "too long"])
def test_retry_after_is_kept_to(stage: Stage, status: int, form: str) -> None:
    async def story() -> None:
        moment = datetime.fromtimestamp(stage.clock.now() / 1000 + 120, UTC)
        value = {
            "seconds": "120",
            "date": format_datetime(moment, usegmt=True),
            "too long": "86400",
        }[form]
        async with stage.at_work(concurrency=1) as (receiver, _):
            receiver.answers(answer(status, retry_after=value), answer(200))
            began = stage.clock.now()
            await stage.put(1, 2)
            await stage.delayed(1)
            message = await stage.find("m0")
            pause = 3_600_000 if form == "too long" else 120_000
            assert abs(message.due - began - pause) <= 1_500
            # The other one waits as well: it is the receiver that was asked for a rest.
            await stage.pass_time(lambda: len(receiver.got) > 1, step=pause / 10_000, pause=0.05)
            assert stage.clock.now() - began >= pause - 1_500

    stage.play(story())


@pytest.mark.parametrize("date", ["Thu Jan  1 00:00:10 1970", "Thursday, 01-Jan-70 00:00:10 GMT"])
def test_dates_of_retry_after_are_in_utc(monkeypatch: pytest.MonkeyPatch, date: str) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        found = retry_after(date, 4_000)
    time.tzset()
    assert found == 6_000


def test_gone_pauses_the_subscription_and_the_message_keeps_its_attempt(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work() as (receiver, worker):
            receiver.answers(answer(410))
            await stage.put(1, 2, 3)
            await until(lambda: receiver.got)
            await stage.ready(3)
            count = len(receiver.got)
            kept = await stage.records.get("shop")
            assert kept is not None
            assert kept.paused
            assert kept.reason == "the receiver answered 410 Gone"
            receiver.answers(answer(200))
            await stage.records.resume("shop")
            await stage.pass_time(lambda: stage.counts().flow.acked == 3)
            assert {got.headers["bide-attempt"] for got in receiver.got[count:]} == {"1"}
            assert not worker.subscription.paused

    stage.play(story())


def test_gone_from_a_subscription_that_was_just_changed_leaves_the_change(stage: Stage) -> None:
    async def story() -> None:
        async with stage.at_work(timeout=15_000) as (receiver, worker):
            gate = asyncio.Event()

            async def gone(got: Got, _: object) -> bytes:
                await gate.wait()
                return answer(410)

            receiver.script = gone
            await stage.put(1)
            await until(lambda: receiver.got)
            await stage.records.change("shop", timeout=60_000)
            gate.set()
            await stage.pass_time(lambda: worker.subscription.timeout == 60_000)
            assert worker.queue_handlers.handlers[None].timeout == 60
            await stage.pass_time(lambda: worker.subscription.paused)

    stage.play(story())


def test_the_lease_is_extended_while_a_receiver_takes_its_time(stage: Stage) -> None:
    async def story() -> None:
        go_on = asyncio.Event()
        async with stage.at_work(timeout=120_000) as (receiver, _):

            async def slow(got: Got, _: object) -> bytes:
                await go_on.wait()
                return answer(200)

            receiver.script = slow
            await stage.put(1)
            await until(lambda: receiver.got)
            began = stage.clock.now()
            await stage.pass_time(lambda: stage.clock.now() - began > 100_000, step=1)
            assert stage.sent(Extend)
            go_on.set()
            await stage.acked(1)
        assert len(receiver.got) == 1
        assert stage.counts().flow.lapsed == 0

    stage.play(story())


def test_what_is_under_way_at_the_end_is_finished_or_handed_back(stage: Stage) -> None:
    async def story() -> None:
        go_on = asyncio.Event()

        async def slow(got: Got, _: object) -> bytes:
            if got.id == "m0":
                await go_on.wait()
            else:
                await asyncio.Event().wait()
            return answer(200)

        async with stage.at_work(options={"grace": 5.0}) as (receiver, _):
            receiver.script = slow
            await stage.put(1, 2)
            await until(lambda: len(receiver.got) == 2)
            asyncio.get_running_loop().call_later(0.05, go_on.set)
        counts = stage.counts()
        assert (counts.flow.acked, counts.sizes.ready, counts.sizes.leased) == (1, 1, 0)
        assert (await stage.find("m1")).attempt == 0
        assert any(command.release for command in stage.sent(RetryCommand))

    stage.play(story())


def test_a_message_whose_last_lease_expired_counts_as_a_dead_delivery(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        await stage.put(1, attempts=1)
        await stage.lane.acall(Claim("q", 1, 5_000, "push:gone"))
        async with stage.at_work() as (receiver, worker):
            await stage.pass_time(lambda: worker.tally.outcomes.get("dead") == 1)
            await stage.dead(1)
            assert not receiver.got

    stage.play(story())
    assert "m0 of q, attempt 1: it is dead now: its lease expired; push:gone held it" in caplog.text


def test_without_its_package_rabbitmq_is_a_receiver_that_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aio_pika", None)

    async def story() -> None:
        one = await stage.subscribe("amqp://127.0.0.1:1/?exchange=x", failures=2)
        async with stage.pushing() as pusher:
            await stage.put(*range(3))
            await stage.pass_time(lambda: pusher.workers["shop"].circuit.since is not None)
            assert "pip install 'bide[rabbitmq]'" in pusher.workers["shop"].circuit.error
            assert "is not installed" in (await pusher.ping(one)).text

    stage.play(story())
