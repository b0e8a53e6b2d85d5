# ruff: noqa: D102  (the name of each case says what it checks)
"""Explain: what an engine knows about the place of a message."""

import pytest

from bide.model.rank import PROMOTE
from bide.model.replies import AHEAD, PAUSES, Explained, Limited, Pause
from bide.model.times import interval
from bide.testing.conformance.driver import HOUR, RULE, RUNS, START, Driver, numbered
from bide.testing.conformance.limiting import limited


def aheads(driver: Driver, *ids: str) -> list[int | None]:
    """Return how many messages are ahead of each."""
    return [driver.explain(id).ahead for id in ids]


class ExplainCases:
    """What it promises."""

    def test_what_is_not_there_is_explained_by_nothing(self, driver: Driver) -> None:
        assert driver.explain("a") == driver.explain() == Explained(now=START)
        assert driver.queues() == []
        driver.put("b")
        assert driver.explain("a") == driver.explain() == Explained(now=START)

    def test_the_reason_of_a_failure_may_be_any_text(self, driver: Driver) -> None:
        reason = "nul \0, \\u0000, line\n, \x1b, ünï 🦉"
        driver.retry(driver.lease("a"), reason=reason)
        failure = driver.explain("a").failure
        assert failure is not None
        assert failure.reason == reason

    def test_the_rule_and_the_run_of_a_message(self, driver: Driver) -> None:
        driver.put("a", delay=5, rule=RULE, run=RUNS[0])
        driver.put("b", delay=5)
        facts = driver.explain("a")
        assert (facts.state, facts.rule, facts.run) == ("delayed", RULE, RUNS[0])
        driver.wait(5)
        driver.claim()
        facts = driver.explain("a")
        assert (facts.state, facts.rule, facts.run) == ("leased", RULE, RUNS[0])
        assert (driver.explain("b").rule, driver.explain("b").run) == (None, None)

    def test_ahead_is_the_order_of_delivery(self, driver: Driver) -> None:
        for ids, delay, priority in (
            ("c", 3, 0),
            ("a b", 2, 0),
            ("heavy", 4, 200),
            ("top", 4, 255),
            ("later", HOUR, 255),
        ):
            driver.put(*ids.split(), delay=delay, priority=priority)
        other = driver.wait(5).apart("other")
        other.put("old", at=START - 9)
        other.lease("new", priority=9)  # this has made the old one ready: it is ahead of none here
        assert aheads(driver, "top", "heavy", "a", "b", "c", "later") == [0, 1, 2, 3, 4, None]
        assert driver.take(1) == ["top"]  # this has made the others ready
        assert aheads(driver, "heavy", "a", "b", "c") == [0, 1, 2, 3]
        driver.put("d", at=driver.now - 4)
        driver.put("e", priority=1)
        order = ["heavy", "e", "d", "a", "b", "c"]
        assert aheads(driver, *order) == [0, 1, 2, 3, 4, 5]
        assert driver.take_all(1) == order

    def test_only_so_many_ahead_are_counted(self, bare: Driver) -> None:
        ids = numbered(5 * PROMOTE)
        bare.put(*ids)
        for number in (0, 5, AHEAD - 1, AHEAD, AHEAD + 1, AHEAD + 2):
            assert aheads(bare, ids[number]) == [min(number, AHEAD + 1)]
        bare.wait(1).put("top", priority=1)
        bare.put("older", at=START - 1)
        # A claim does not look as far as "top".
        assert aheads(bare, "top", "older", ids[5]) == [AHEAD + 1, 0, 6]

    def test_a_queue_remembers_its_last_pauses(self, driver: Driver) -> None:
        other = driver.apart("other")
        other.configure(paused=True, actor="eve")
        driver.put("a")
        for actor in ("ann", "bob"):  # for the second it is paused already
            driver.configure(paused=True, actor=actor)
            for id in ("a", None):
                assert driver.explain(id).pauses == [Pause(START, None, "ann")]
            driver.wait(1)
        for setting in ({"paused": False, "actor": "bob"}, {"paused": False}, {"keep": HOUR}):
            driver.configure(**setting)
        assert driver.explain("a").pauses == [Pause(START, START + 2, "ann")]
        pauses = []
        for _ in range(PAUSES):
            driver.wait(1).configure(paused=True, actor="bob")
            pauses.append(Pause(driver.now, driver.now + 1, "bob"))
            driver.wait(1).configure(paused=False)
        assert driver.explain().pauses == pauses
        assert other.explain().pauses == [Pause(START, None, "eve")]


class LimitReportCases:
    """What `explain` and claims return about limits."""

    def test_explain_tells_which_limit_holds_a_message(self, driver: Driver) -> None:
        limits = {"limit": 2, "group_limit": 1, "rate": interval(1), "group_rate": interval("1/m")}
        limited(driver, "a1 a2 a3 b1", **limits)
        driver.explains("a3", limited=None)
        assert driver.take() == ["a1"]
        driver.explains("a3", limited=Limited("group_limit", 1, 1), ahead=1)
        driver.explains("b1", limited=Limited("rate", 1_000_000, 1, START + 990))
        driver.wait(990).explains("b1", limited=None)
        (lease,) = driver.hold()
        driver.explains("a2", limited=Limited("limit", 2, 2))
        driver.ack(lease)
        driver.wait(10).claim(0)  # the lease of a1 is over: the claim notices that
        rate = Limited("group_rate", 60_000_000, 0, START + 59_990)
        driver.wait(1_000).explains("a2", limited=rate, ahead=1)
        driver.explains("a1", ahead=0)
        driver.put("z", delay=HOUR)
        driver.explains("z", limited=None)
        driver.configure(limit=0, group_limit=0, rate=0, group_rate=0)
        driver.explains("a2", limited=None)

    @pytest.mark.parametrize("limit", [1, 2])
    def test_a_limit_holds_nothing_once_a_lease_has_ended(self, driver: Driver, limit: int) -> None:
        limited(driver, "a1 b1 c1 -1", limit=limit)
        first, *_ = driver.hold()
        driver.explains("-1", limited=Limited("limit", limit, limit))
        driver.ack(first)  # no claim has seen that yet
        driver.explains("-1", limited=None)

    def test_of_a_limited_queue_the_group_is_what_is_ahead(self, driver: Driver) -> None:
        driver.configure(group_limit=1)
        for id, delay in (("a1", 3), ("b1", 2), ("a2", 4), ("a3", 5)):
            driver.put(id, delay=delay, group=id[0])
        driver.wait(5)
        assert aheads(driver, "a1", "a2", "a3", "b1") == [0, 1, 2, 0]  # no claim has seen them
        assert driver.take(1) == ["b1"]
        assert aheads(driver, "a1", "a2", "a3") == [0, 1, 2]

    def test_of_two_rates_the_one_that_holds_longer_is_told(self, driver: Driver) -> None:
        limited(driver, "a1 a2 b1", rate=interval(30), group_rate=interval("30/m"))
        assert driver.take() == ["a1"]
        driver.explains("a2", limited=Limited("group_rate", 2_000_000, 1, START + 1_990))
        driver.explains("b1", limited=Limited("rate", 33_334, 1, START + 24))
        driver.wait(1_990).explains("a2", limited=None)
