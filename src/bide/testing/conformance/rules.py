# ruff: noqa: D102  (the name of each case says what it checks)
"""Messages with a rule that do not repeat: a store keeps the rule, and treats them as others."""

from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.replies import Outcome
from bide.testing.conformance.driver import HOUR, OTHER_RULE, RULE, RUNS, START, Driver, done


class RuleCases:
    """Messages whose time has a rule, and which do not repeat."""

    def test_a_rule_stays_until_the_message_ends(self, driver: Driver) -> None:
        held = driver.lease("a", rule=RULE)
        assert (driver.get("a").rule, driver.get("a").run) == (RULE, None)
        driver.retry(held, delay=5)
        driver.reschedule("a", at=START + HOUR)
        assert (driver.get("a").rule, driver.get("a").due) == (RULE, START + HOUR)
        driver.wait(HOUR)
        assert driver.ack(*driver.hold()) == [Outcome("a", True)]
        assert driver.state("a") is None

    def test_many_are_acked_at_once(self, driver: Driver) -> None:
        driver.put("a", "b", rule=RULE)
        driver.put("c")
        assert done(driver.ack(*driver.hold(3))) == [True] * 3
        assert driver.counts().flow.acked == 3

    def test_a_renewal_without_a_run_acks_it(self, driver: Driver) -> None:
        held = driver.lease("a", rule=RULE)
        assert driver.renew(held, next=[cmd.NextRun(START + HOUR, RUNS[1])]) == [Outcome("a", True)]
        assert driver.state("a") is None

    def test_a_leased_one_is_not_cancelled(self, driver: Driver) -> None:
        driver.lease("a", rule=RULE)
        (outcome,) = driver.cancel("a")
        assert (outcome.done, outcome.state) == (False, "leased")

    def test_its_last_attempt_makes_it_a_dead_letter_with_its_rule(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", attempts=1, rule=RULE))
        assert (driver.state("a"), driver.get("a").rule) == ("dead", RULE)
        driver.revive("a")
        assert driver.get("a").rule == RULE

    def test_a_lapse_of_the_last_attempt_does_too(self, driver: Driver) -> None:
        driver.lease("a", attempts=1, rule=RULE)
        driver.wait(HOUR)
        assert driver.take() == []
        assert (driver.state("a"), driver.get("a").rule) == ("dead", RULE)

    def test_it_expires(self, driver: Driver) -> None:
        driver.put("a", expires=5, rule=RULE)
        assert driver.wait(6).take() == []
        assert driver.state("a") == "expired"

    @pytest.mark.parametrize("options", [{}, {"rule": RULE}, {"rule": OTHER_RULE}])
    def test_its_version_covers_due_time_and_rule(
        self, driver: Driver, options: dict[str, Any]
    ) -> None:
        driver.put("a", at=START + HOUR, **options)
        version = driver.get("a").version
        driver.edit("a", rule=RULE, run=None)
        is_same = options == {"rule": RULE}
        assert (driver.get("a").version == version) is is_same
        rescheduled_from = driver.get("a").version
        driver.reschedule("a", at=START + 2 * HOUR)
        assert driver.get("a").version != rescheduled_from
        (outcome,) = driver.edit("a", priority=3, if_version=driver.get("a").version)
        assert outcome.done

    def test_an_edit_of_its_rule_leaves_the_attempts(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", rule=RULE), reason="no")
        driver.edit("a", rule=OTHER_RULE, run=None)
        assert (driver.get("a").attempt, driver.get("a").rule) == (1, OTHER_RULE)
        driver.edit("a", rule=None, run=None)
        assert driver.get("a").rule is None

    def test_an_edit_has_a_time_for_each(self, driver: Driver) -> None:
        driver.put("a", "b", at=START + HOUR, expires=50, rule=RULE)
        driver.put("c", at=START + HOUR, rule=RULE, run=RUNS[0])
        times = [
            cmd.NewTime(START + 2 * HOUR, OTHER_RULE),
            cmd.NewTime(rule=OTHER_RULE),
            cmd.NewTime(run=RUNS[1]),
        ]
        assert done(driver.edit("a", "b", "c", times=times)) == [True] * 3
        dues = [START + 2 * HOUR, START + HOUR, START + HOUR]
        assert [driver.get(id).due for id in "abc"] == dues
        assert [driver.get(id).rule for id in "abc"] == [OTHER_RULE, OTHER_RULE, RULE]
        assert [driver.get(id).run for id in "abc"] == [None, None, RUNS[1]]
        assert driver.get("a").expires == 50

    def test_an_edit_with_a_time_that_has_come(self, driver: Driver) -> None:
        driver.put("a", at=START + HOUR, rule=RULE)
        driver.edit("a", times=[cmd.NewTime(START - 5, OTHER_RULE)])
        assert (driver.state("a"), driver.get("a").rule) == ("ready", OTHER_RULE)

    def test_an_edit_has_a_version_for_each(self, driver: Driver) -> None:
        driver.put("a", "b", "c", at=START + HOUR, rule=RULE)
        versions = [driver.get("a").version, "0" * 16, driver.get("c").version]
        times = [cmd.NewTime(START + (n + 2) * HOUR, OTHER_RULE) for n in range(3)]
        outcomes = driver.edit("a", "b", "c", versions=versions, times=times)
        assert done(outcomes) == [True, False, True]
        assert [driver.get(id).rule for id in "abc"] == [OTHER_RULE, RULE, OTHER_RULE]
        assert driver.get("c").due == START + 4 * HOUR
        assert done(driver.edit("a", "b", versions=versions[:2], priority=3)) == [False, False]

    def test_an_edit_that_names_an_id_twice_has_times_for_both(self, driver: Driver) -> None:
        driver.put("a", at=START + HOUR, rule=RULE)
        version = driver.get("a").version
        times = [cmd.NewTime(START + 2 * HOUR, OTHER_RULE), cmd.NewTime(START, RULE)]
        outcomes = driver.edit("a", "a", versions=[version, version], times=times)
        assert done(outcomes) == [True, False]
        assert (driver.get("a").due, driver.get("a").rule) == (START + 2 * HOUR, OTHER_RULE)

    def test_a_dead_letter_gets_no_time(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", attempts=1, rule=RULE))
        (outcome,) = driver.edit("a", times=[cmd.NewTime(START, OTHER_RULE)])
        assert (outcome.done, driver.get("a").rule) == (False, RULE)
