"""The decisions of the worker, without a store, a loop or a clock."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import bide
from bide.consuming import settling
from bide.consuming.handler import Unfit
from bide.consuming.handling import Handling
from bide.consuming.verdict import ACK, Verdict
from bide.model.commands import Ack, BuryCommand, RetryCommand
from bide.model.limits import MAX_BYTES, MAX_RESULT
from bide.model.message import REASON_LENGTH, Message
from bide.model.replies import Outcome, Outcomes

RETRY = bide.Backoff(attempts=5, first="10s", factor=2, jitter=0, on=(OSError,))


def message(attempt: int = 1, attempts: int = 10, id: str = "m") -> Message:
    return Message(id, "q", b"1", True, 0, 0, attempt, attempts, "leased")


def handling(id: str = "m", *, expires: float = 0.0) -> Handling:
    handler: Any = None
    one = Handling(message(id=id), 7, 0, handler, SimpleNamespace())
    one.expires = expires
    return one


def judge(error: BaseException, attempt: int = 1, attempts: int = 10) -> Verdict:
    return settling.judge(message(attempt, attempts), error, RETRY, 0.5)


def test_an_error_that_is_worth_it_is_tried_again_after_the_pause_of_its_attempt() -> None:
    assert judge(OSError("gone")).outcome == "retried"
    assert [judge(OSError(), attempt).delay for attempt in (1, 2, 3)] == [10_000, 20_000, 40_000]


def test_a_subclass_of_what_is_worth_it_is_worth_it() -> None:
    assert judge(ConnectionResetError()).outcome == "retried"
    assert judge(TimeoutError("too long")).outcome == "retried"


def test_any_other_error_buries_at_once() -> None:
    verdict = judge(ValueError("no"))
    assert verdict.outcome == "dead"
    assert verdict.reason == "ValueError: no"


@pytest.mark.parametrize(
    ("attempt", "attempts", "outcome"),
    [
        (4, 10, "retried"),
        (5, 10, "dead"),
        (6, 10, "dead"),
        (2, 3, "retried"),
        (3, 3, "dead"),
    ],
)
def test_the_smaller_limit_of_attempts_counts(attempt: int, attempts: int, outcome: str) -> None:
    assert judge(OSError(), attempt, attempts).outcome == outcome


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_ends_a_program_is_a_failed_attempt_here(error: BaseException) -> None:
    assert judge(error).outcome == "retried"
    assert judge(error, attempt=5).outcome == "dead"


def test_retry_says_when() -> None:
    verdict = judge(bide.Retry("closed", delay="5m"))
    assert verdict == Verdict("retried", 300_000, "closed")
    assert judge(bide.Retry(delay=0)).delay == 0
    assert judge(bide.Retry(), attempt=2).delay == 20_000


@pytest.mark.parametrize(
    ("delay", "text"),
    [("30000d", "past the year 2100$"), ("99999d", "longer than 130 years"), (-1, "is negative")],
)
def test_a_delay_that_cannot_be_is_refused_where_it_is_said(delay: Any, text: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=text) as caught:
        bide.Retry(delay=delay)
    verdict = settling.judge(message(), caught.value, bide.Backoff(), 0.5)
    assert verdict.outcome == "retried"  # as after any other mistake in a handler
    assert verdict.reason.startswith("bide.model.errors.InvalidArgument: delay=")


@pytest.mark.parametrize("reason", [60, 2.5, "5m", "1h30m", timedelta(minutes=1)])
def test_a_delay_in_place_of_the_reason_is_refused(reason: object) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"is a delay; write Retry\(delay=") as caught:
        bide.Retry(reason)
    assert repr(reason) in str(caught.value)
    assert judge(bide.Retry(reason, delay="5m")) == Verdict("retried", 300_000, str(reason))


@pytest.mark.parametrize("reason", ["", "503", "in 5m", "m", True])
def test_a_reason_that_is_no_delay_is_taken(reason: object) -> None:
    assert judge(bide.Retry(reason)).outcome == "retried"


def test_retry_does_not_go_on_for_ever() -> None:
    assert judge(bide.Retry("closed", delay="5m"), attempt=5) == Verdict("dead", reason="closed")


def test_discard_is_an_ack_that_says_so() -> None:
    verdict = judge(bide.Discard("paid"))
    assert verdict == Verdict("discarded", reason="paid")


def test_bury_buries() -> None:
    assert judge(bide.Bury("forged")) == Verdict("dead", reason="forged")
    assert judge(bide.Bury()).reason == "buried by its handler"


def test_a_body_that_does_not_fit_is_never_tried_again() -> None:
    assert judge(Unfit("no Order")) == Verdict("dead", reason="Unfit: no Order")


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise ValueError("the bottom")


def test_a_reason_has_the_error_first_and_then_the_tail_of_its_traceback() -> None:
    with pytest.raises(ValueError, match="bottom") as caught:
        deep(1)
    reason = settling.describe(caught.value)
    assert reason.splitlines()[0] == "ValueError: the bottom"
    assert reason.splitlines()[-1] == "ValueError: the bottom"
    assert "in deep" in reason


def test_a_reason_fits_into_what_a_message_remembers() -> None:
    try:
        raise ValueError("x" * 50_000)
    except ValueError as error:
        reason = settling.describe(error)
    assert len(reason) == REASON_LENGTH
    assert reason.startswith("ValueError: xxx")


def test_a_reason_tells_the_cause_too() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        reason = settling.describe(error)
    assert reason.startswith("ValueError: outer\n")
    assert "KeyError: 'inner'" in reason


def test_an_error_that_cannot_be_printed_still_has_a_reason() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Mute" in settling.describe(Mute())


def test_settling_takes_as_few_commands_as_possible() -> None:
    ones = [handling(f"m{number}") for number in range(6)]
    verdicts = [
        ACK,
        Verdict("retried", 10, "a"),
        ACK,
        Verdict("dead", reason="b"),
        Verdict("retried", 10, "a"),
        Verdict("discarded", reason="paid"),
    ]
    parts = settling.commands("q", list(zip(ones, verdicts, strict=True)))
    ack, retry, bury = (command for command, _ in parts)
    assert isinstance(ack, Ack)
    assert [lease.id for lease in ack.leases] == ["m0", "m2", "m5"]
    assert isinstance(retry, RetryCommand)
    assert ([lease.id for lease in retry.leases], retry.delay) == (["m1", "m4"], 10)
    assert isinstance(bury, BuryCommand)
    assert bury.reason == "b"
    assert [[pair[0].id for pair in pairs] for _, pairs in parts] == [
        ["m0", "m2", "m5"],
        ["m1", "m4"],
        ["m3"],
    ]


def test_what_was_cancelled_on_its_way_to_the_store_is_sent_again() -> None:
    sent: list[Any] = []

    async def patiently(kind: Any, command: Any) -> Outcomes:
        sent.append(command)
        if len(sent) == 1:
            await asyncio.sleep(60)
        return Outcomes([Outcome("m", True)])

    async def story() -> None:
        client: Any = SimpleNamespace(patiently=patiently)
        kept = settling.Settling("q", client)
        kept.add(handling(), ACK)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(kept.settle_all(), 0.01)
        assert kept.pairs
        await asyncio.wait_for(kept.settle_all(), 10)
        assert not kept.pairs

    asyncio.run(story())
    assert sent == [sent[0]] * 2


def test_results_are_settled_in_parts_that_a_server_takes() -> None:
    ended = [handling(f"m{number}") for number in range(300)]
    for one in ended:
        one.result = b"1" * MAX_RESULT
    told = settling.commands("q", [(one, ACK) for one in ended])
    assert [one for _, pairs in told for one, _ in pairs] == ended
    for command, pairs in told:
        assert isinstance(command, Ack)
        assert len(command.results) == len(command.leases) == len(pairs)
        assert sum(len(result or b"") for result in command.results) <= MAX_BYTES


def test_half_a_character_in_a_reason_does_no_harm() -> None:
    ((command, _),) = settling.commands("q", [(handling(), Verdict("dead", reason="\ud800"))])
    assert isinstance(command, BuryCommand)
    assert command.reason == "\\ud800"


def test_a_lease_is_extended_so_that_one_beat_may_be_missed() -> None:
    lease, beat = 30.0, 10.0
    for claimed in (0.0, 3.0, 9.9):
        one = handling(expires=claimed + lease)
        now = 10.0
        while now < 100:  # a beat after the other, each a little late
            if settling.to_extend([one], now, beat):
                one.expires = now + lease
            assert one.expires - now > beat
            now += beat + 0.01


def test_what_was_claimed_just_now_is_not_extended() -> None:
    fresh, old = handling(expires=30.0), handling(expires=20.0)
    assert settling.to_extend([fresh, old], 0.0, 10.0) == [old]


def test_what_has_outstayed_its_time_is_held_while_it_cleans_up() -> None:
    one = handling(expires=5.0)
    one.timed_out = True
    assert settling.to_extend([one], 0.0, 10.0) == [one]


class Amount(bide.Bury):
    """A signal of a user's own, which does not call the `__init__` of its base."""

    def __init__(self, amount: int) -> None:
        self.amount = amount


class Mute(ValueError):
    """An exception whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_reason_may_be_anything() -> None:
    cause = ValueError("forged")
    assert judge(bide.Bury(cause)).reason == "forged"
    assert judge(bide.Retry(cause, delay=1)) == Verdict("retried", 1_000, "forged")
    assert judge(bide.Discard(42)).reason == "42"
    assert "whose __str__ raised RuntimeError" in judge(bide.Bury(Mute())).reason


def test_a_signal_of_ones_own_needs_no_reason() -> None:
    assert judge(Amount(5)) == Verdict("dead", reason="buried by its handler")


def test_an_exception_without_a_text_is_judged_all_the_same() -> None:
    assert judge(Mute()).outcome == "dead"
    assert "Mute" in judge(Mute()).reason


def test_a_group_is_worth_it_if_all_in_it_are() -> None:
    worth = ExceptionGroup("several", [ConnectionResetError("gone"), TimeoutError("late")])
    verdict = judge(ExceptionGroup("outer", [worth]))
    assert verdict.outcome == "retried"
    first = verdict.reason.splitlines()[0]
    assert first == "ConnectionResetError: gone (in an ExceptionGroup of 2)"
    assert judge(ExceptionGroup("mixed", [OSError(), KeyError("x")])).outcome == "dead"
