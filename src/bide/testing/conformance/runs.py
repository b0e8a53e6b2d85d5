# ruff: noqa: D102  (the name of each case says what it checks)
"""Messages that repeat: each run takes the place of the one before it, in one record."""

from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.commands import NextRun
from bide.model.message import ATTEMPTS, RUN_ENDED, Item, Message
from bide.model.replies import GroupsClosed, Outcome
from bide.testing.conformance.driver import (
    HOUR,
    OTHER_RULE,
    RICH,
    RULE,
    RUNS,
    START,
    Driver,
    done,
)

FIRST, SECOND, THIRD = RUNS
SERIES: dict[str, Any] = {"rule": RULE, "run": FIRST}
NEXT = NextRun(START + HOUR, SECOND)


def run_facts(message: Message) -> tuple[str, int, int, str | None, str | None]:
    """Return what a run changes of a message."""
    return message.state, message.due, message.attempt, message.rule, message.run


class RunCases:
    """Messages that repeat."""

    def test_a_rule_and_a_run_are_kept_as_they_are(self, driver: Driver) -> None:
        odd_rule = '{"a":"' + "%_'\\\\" + "x" * 480 + '"}'
        driver.put("a", delay=5, rule=odd_rule, run="r" * 128)
        message = driver.get("a")
        assert (message.rule, message.run) == (odd_rule, "r" * 128)
        driver.wait(5)
        (claimed,) = driver.claim().messages
        assert (claimed.rule, claimed.run) == (odd_rule, "r" * 128)
        assert driver.get("a").rule == odd_rule
        driver.put("b", delay=5)
        assert (driver.get("b").rule, driver.get("b").run) == (None, None)

    def test_the_next_run_takes_the_place_of_one_that_is_acked(self, driver: Driver) -> None:
        before = driver.lease("a", **RICH, **SERIES)
        (outcome,) = driver.renew(before, next=[NEXT])
        assert outcome == Outcome("a", True, "delayed", START + HOUR)
        after = driver.get("a")
        assert run_facts(after) == ("delayed", START + HOUR, 0, RULE, SECOND)
        assert {name: getattr(after, name) for name in RICH} == RICH
        assert after.created == START
        flow = driver.counts().flow
        assert (flow.put, flow.acked) == (2, 1)
        assert driver.wait(HOUR - 1).take() == []
        assert driver.wait(1).take() == ["a"]

    def test_a_run_has_all_its_attempts(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", expires=50, **SERIES), delay=20, reason="no")
        driver.wait(20)
        (held,) = driver.hold()
        driver.renew(held, next=[NEXT])
        message = driver.get("a")
        assert run_facts(message) == ("delayed", START + HOUR, 0, RULE, SECOND)
        assert (message.failures, message.planned, message.asked) == ((), None, None)
        assert message.expires == 50

    def test_a_run_may_be_due_at_once(self, driver: Driver) -> None:
        held = driver.lease("a", **SERIES)
        (outcome,) = driver.renew(held, next=[NextRun(START - 5, SECOND)])
        assert outcome == Outcome("a", True, "ready", START - 5)
        assert driver.wake is not None
        assert driver.wake <= driver.now
        assert driver.take() == ["a"]

    def test_many_runs_end_in_one_command(self, driver: Driver) -> None:
        driver.put("a", "b", "c", **SERIES)
        driver.put("d")
        a, b, c, d = driver.hold()
        stale = cmd.Lease(c.id, c.token - 1)
        outcomes = driver.renew(a, b, stale, d, next=[NEXT, None, NEXT, NEXT])
        assert done(outcomes) == [True, True, False, True]
        assert [driver.state(id) for id in "abcd"] == ["delayed", None, "leased", None]

    def test_the_last_run_ends_the_message(self, driver: Driver) -> None:
        assert driver.renew(driver.lease("a", **SERIES), next=[None]) == [Outcome("a", True)]
        assert driver.state("a") is None
        driver.configure(keep=HOUR)
        driver.renew(driver.lease("b", **SERIES), next=[None])
        assert driver.state("b") == "acked"

    def test_an_acked_run_is_not_kept(self, driver: Driver) -> None:
        driver.configure(keep=HOUR)
        driver.renew(driver.lease("a", **SERIES), next=[NEXT])
        assert driver.counts().kept == 0

    def test_each_run_has_its_end_and_its_result(self, driver: Driver) -> None:
        driver.configure(history=HOUR, result_ttl=HOUR)
        driver.renew(driver.lease("a", **SERIES), next=[NextRun(START, SECOND)], results=[b"1"])
        driver.renew(*driver.hold(), next=[NextRun(START + 1, THIRD)], results=[None])
        second, first = driver.ends("a")
        assert (first.how, first.due, first.attempt, first.result) == ("acked", START, 1, b"1")
        assert (second.how, second.attempt, second.result) == ("acked", 1, None)

    def test_an_ack_without_a_plan_ends_the_run_only(self, driver: Driver) -> None:
        held = driver.lease("a", **SERIES)
        assert done(driver.ack(held)) == [True]
        assert run_facts(driver.get("a")) == ("ready", START, 0, RULE, RUN_ENDED + FIRST)
        flow = driver.counts().flow
        assert (flow.put, flow.acked) == (2, 1)
        (held,) = driver.hold()
        assert driver.renew(held, next=[NEXT], how="ended") == [
            Outcome("a", True, "delayed", START + HOUR)
        ]
        assert run_facts(driver.get("a")) == ("delayed", START + HOUR, 0, RULE, SECOND)
        flow = driver.counts().flow
        assert (flow.put, flow.acked) == (2, 1)

    def test_two_acks_without_a_plan_are_one_end(self, driver: Driver) -> None:
        driver.ack(driver.lease("a", **SERIES))
        driver.ack(*driver.hold())
        assert driver.get("a").run == RUN_ENDED + FIRST

    def test_acks_of_both_kinds_in_one_command(self, driver: Driver) -> None:
        driver.put("a", **SERIES)
        driver.put("b")
        assert done(driver.ack(*driver.hold())) == [True, True]
        assert [driver.state("a"), driver.state("b")] == ["ready", None]

    @pytest.mark.parametrize("delay", [0, HOUR])
    def test_a_run_without_attempts_is_no_dead_letter(self, driver: Driver, delay: int) -> None:
        held = driver.lease("a", attempts=1, **SERIES)
        assert driver.retry(held, delay=delay, reason="no") == [Outcome("a", True, "ready", START)]
        (claimed,) = driver.claim().messages
        assert (claimed.attempt, claimed.attempts) == (2, 1)
        assert [failure.reason for failure in claimed.failures] == ["no"]
        assert driver.counts().flow.died == 0

    def test_a_run_that_is_buried_has_no_attempt_left(self, driver: Driver) -> None:
        held = driver.lease("a", **SERIES)
        assert driver.bury(held, reason="no") == [Outcome("a", True, "ready", START)]
        (claimed,) = driver.claim().messages
        assert claimed.attempt == ATTEMPTS + 1
        assert [failure.reason for failure in claimed.failures] == ["no"]

    def test_a_run_whose_last_lease_lapses_is_no_dead_letter(self, driver: Driver) -> None:
        driver.lease("a", attempts=1, **SERIES)
        driver.wait(1_000)
        claimed = driver.claim()
        assert [message.attempt for message in claimed.messages] == [2]
        assert claimed.died == []
        driver.wait(1_000)
        assert done(driver.release("a")) == [False]
        assert driver.state("a") == "ready"

    def test_a_dead_run_makes_place_for_the_next(self, driver: Driver) -> None:
        driver.configure(history=HOUR)
        driver.bury(driver.lease("a", **SERIES), reason="no")
        (held,) = driver.hold()
        driver.renew(held, next=[NEXT], how="dead")
        assert run_facts(driver.get("a")) == ("delayed", START + HOUR, 0, RULE, SECOND)
        flow = driver.counts().flow
        assert (flow.put, flow.died, flow.revived) == (1, 0, 0)
        (end,) = driver.ends("a")
        assert (end.how, end.by, end.attempt) == ("dead", "w1", ATTEMPTS)
        assert [failure.reason for failure in end.failures] == ["no"]

    def test_the_last_run_may_be_a_dead_letter(self, driver: Driver) -> None:
        driver.bury(driver.lease("a", **SERIES), reason="no")
        driver.renew(*driver.hold(), next=[None], how="dead")
        message = driver.get("a")
        assert run_facts(message) == ("dead", START, ATTEMPTS, RULE, None)
        assert message.error == "no"

    def test_a_run_does_not_expire_by_itself(self, driver: Driver) -> None:
        driver.put("a", expires=5, **SERIES)
        (claimed,) = driver.wait(10).claim().messages
        assert claimed.attempt == 1
        (held,) = driver.wait(1_000).hold()
        (outcome,) = driver.renew(held, next=[NEXT], how="expired")
        assert outcome.state == "delayed"
        flow = driver.counts().flow
        assert (flow.put, flow.expired) == (2, 1)

    def test_the_last_run_may_expire(self, driver: Driver) -> None:
        driver.put("a", expires=5, **SERIES)
        (held,) = driver.wait(10).hold()
        driver.renew(held, next=[None], how="expired")
        assert driver.state("a") == "expired"

    @pytest.mark.parametrize("how", ["dead", "expired"])
    def test_a_last_run_ends_with_a_successor_in_a_closed_group(
        self, driver: Driver, how: Any
    ) -> None:
        held = driver.lease("a", **SERIES)
        driver.replace("a", latest=HOUR, group="g")
        driver.ask(cmd.CloseGroup(driver.queue, "g", HOUR), GroupsClosed)
        assert driver.renew(held, next=[None], how=how) == [Outcome("a", True)]
        flow = driver.counts().flow
        assert (flow.put, flow.cancelled, flow.died, flow.expired) == (1, 1, 0, 0)

    def test_a_cancel_ends_the_message_after_its_run(self, driver: Driver) -> None:
        held = driver.lease("a", **SERIES)
        (outcome,) = driver.cancel("a")
        assert (outcome.done, outcome.state, outcome.holder) == (False, "ending", "w1")
        message = driver.get("a")
        assert (message.rule, message.run) == (RULE, None)
        assert driver.cancel("a")[0].state == "leased"
        assert driver.renew(held, next=[NEXT]) == [Outcome("a", True)]
        assert driver.state("a") is None

    def test_a_cancelled_run_is_retried_and_dies_as_others(self, driver: Driver) -> None:
        held = driver.lease("a", attempts=1, **SERIES)
        driver.cancel("a")
        driver.retry(held)
        assert driver.state("a") == "dead"

    @pytest.mark.parametrize("how", ["dead", "expired", "ended"])
    def test_a_run_that_ends_unplanned_after_a_cancel_is_cancelled(
        self, driver: Driver, how: Any
    ) -> None:
        held = driver.lease("a", **SERIES)
        driver.cancel("a")
        assert driver.renew(held, next=[NEXT], how=how) == [Outcome("a", True)]
        assert driver.counts().flow.cancelled == 1

    def test_a_cancel_with_a_condition_leaves_a_run_alone(self, driver: Driver) -> None:
        driver.lease("a", **SERIES)
        version = driver.get("a").version
        assert driver.cancel("a", if_due=START)[0].state == "leased"
        assert driver.cancel("a", if_version=version)[0].state == "leased"
        assert driver.get("a").rule == RULE

    def test_a_message_whose_worker_is_to_stop_repeats_no_more(self, driver: Driver) -> None:
        first, second = driver.lease("a", **SERIES), driver.lease("b", **SERIES)
        assert driver.cancel("a", "b", running=True)[0].state == "stopping"
        assert driver.renew(first, next=[NEXT]) == [Outcome("a", True)]
        assert done(driver.retry(second)) == [True]
        assert [driver.state("a"), driver.state("b")] == [None, None]

    def test_a_waiting_message_is_cancelled_as_others(self, driver: Driver) -> None:
        driver.put("a", delay=5, **SERIES)
        assert done(driver.cancel("a")) == [True]
        assert driver.state("a") is None

    def test_a_successor_is_put_in_place_of_the_next_run(self, driver: Driver) -> None:
        held = driver.lease("a", **SERIES)
        driver.replace("a", latest=HOUR, delay=7, rule=OTHER_RULE, run=THIRD)
        driver.renew(held, next=[NEXT])
        assert run_facts(driver.get("a")) == ("delayed", START + 7, 0, OTHER_RULE, THIRD)
        driver.wait(7)
        (held,) = driver.hold()
        driver.replace("a", latest=HOUR, delay=7)
        assert driver.cancel("a")[0].successor == START + 14
        driver.ack(held)
        assert driver.state("a") is None

    @pytest.mark.parametrize("how", ["dead", "expired", "ended"])
    def test_a_successor_takes_the_place_of_a_last_run(self, driver: Driver, how: Any) -> None:
        held = driver.lease("a", **SERIES)
        driver.replace("a", latest=HOUR, delay=7)
        driver.renew(held, next=[None], how=how)
        assert run_facts(driver.get("a")) == ("delayed", START + 7, 0, None, None)
        flow = driver.counts().flow
        assert (flow.put, flow.cancelled, flow.died, flow.expired) == (2, 1, 0, 0)

    @pytest.mark.parametrize("how", ["acked", "dead"])
    def test_a_successor_in_a_closed_group_does_not_follow_a_run(
        self, driver: Driver, how: Any
    ) -> None:
        held = driver.lease("a", **SERIES)
        driver.replace("a", latest=HOUR, delay=7, group="g")
        driver.ask(cmd.CloseGroup(driver.queue, "g", HOUR), GroupsClosed)
        assert driver.renew(held, next=[NEXT], how=how) == [Outcome("a", True)]
        assert driver.state("a") is None
        flow = driver.counts().flow
        expected = {"acked": (1, 1, 0), "dead": (1, 0, 1)}
        assert (flow.put, flow.acked, flow.cancelled) == expected[how]

    def test_a_closed_group_ends_the_message_with_its_run(self, driver: Driver) -> None:
        a, b, c = (driver.lease(id, group="g", **SERIES) for id in "abc")
        driver.ask(cmd.CloseGroup(driver.queue, "g", HOUR), GroupsClosed)
        assert driver.renew(a, next=[NEXT]) == [Outcome("a", True)]
        assert driver.ack(b) == [Outcome("b", True)]
        assert driver.renew(c, next=[NEXT], how="ended") == [Outcome("c", True)]
        flow = driver.counts().flow
        assert (flow.put, flow.acked, flow.cancelled) == (3, 2, 1)

    def test_a_version_has_the_rule_in_place_of_the_due_time(self, driver: Driver) -> None:
        driver.put("a", delay=5, **SERIES)
        version = driver.get("a").version
        driver.reschedule("a", delay=HOUR)
        assert driver.get("a").version == version
        driver.edit("a", rule=OTHER_RULE, run=FIRST)
        assert driver.get("a").version != version
        assert done(driver.edit("a", if_version=version, priority=3)) == [False]
        current = driver.get("a").version
        assert done(driver.edit("a", if_version=current, priority=3)) == [True]

    def test_a_rule_is_edited_added_and_removed(self, driver: Driver) -> None:
        driver.put("a", delay=5)
        driver.edit("a", rule=RULE, run=FIRST, delay=9)
        assert run_facts(driver.get("a")) == ("delayed", START + 9, 0, RULE, FIRST)
        driver.edit("a", rule=OTHER_RULE, run=SECOND)
        assert run_facts(driver.get("a")) == ("delayed", START + 9, 0, OTHER_RULE, SECOND)
        driver.edit("a", rule=None, run=None)
        assert run_facts(driver.get("a")) == ("delayed", START + 9, 0, None, None)
        driver.wait(9)
        assert driver.ack(*driver.hold()) == [Outcome("a", True)]
        assert driver.state("a") is None

    def test_another_rule_begins_with_all_attempts(self, driver: Driver) -> None:
        driver.put("a", "b", attempts=1, **SERIES)
        driver.retry(*driver.hold(), reason="no")
        driver.edit("a", rule=OTHER_RULE, run=RUNS[1], delay=9)
        driver.edit("b", rule=RULE, run=RUNS[1], delay=9)
        assert [driver.get(id).attempt for id in "ab"] == [0, 1]
        assert [len(driver.get(id).failures) for id in "ab"] == [0, 1]

    def test_the_last_delivery_of_a_message_that_repeats_no_longer_is_an_attempt(
        self, driver: Driver
    ) -> None:
        driver.put("a", attempts=1, **SERIES)
        driver.put("b", attempts=2, **SERIES)
        driver.retry(*driver.hold(), reason="no")
        driver.edit("a", "b", rule=None, run=None)
        assert [driver.get(id).attempt for id in "ab"] == [0, 1]
        assert [len(driver.get(id).failures) for id in "ab"] == [0, 1]
        assert [message.attempt for message in driver.claim().messages] == [1, 2]

    def test_a_message_that_never_repeated_keeps_its_attempts(self, driver: Driver) -> None:
        driver.put("a", attempts=2)
        driver.retry(*driver.hold(), reason="no")
        driver.edit("a", attempts=1)
        driver.edit("a", rule=None, run=None)
        message = driver.get("a")
        assert (message.attempt, len(message.failures)) == (1, 1)

    def test_a_put_replaces_the_rule(self, driver: Driver) -> None:
        driver.put("a", delay=5, **SERIES)
        driver.replace("a", delay=5, rule=OTHER_RULE, run=FIRST)
        assert driver.get("a").rule == OTHER_RULE
        driver.replace("a", delay=5)
        assert driver.get("a").rule is None

    def test_an_import_may_bring_a_dead_letter_that_repeats(self, driver: Driver) -> None:
        driver.put_items([Item("a", b"1", at=START, died=START - 5, **SERIES)])
        assert run_facts(driver.get("a")) == ("dead", START, 0, RULE, FIRST)
        driver.set_aside("a")
        driver.revive("a")
        assert run_facts(driver.get("a")) == ("ready", START, 0, RULE, FIRST)
        driver.set_aside("a", reason="in a move")
        assert run_facts(driver.get("a")) == ("dead", START, 0, RULE, FIRST)
