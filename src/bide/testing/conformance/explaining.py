# ruff: noqa: D102  (the name of each case says what it checks)
"""Explain: what an engine knows about the place of a message."""

from bide.model.message import LAPSED, STATES, Failure
from bide.model.rank import PROMOTE
from bide.model.replies import AHEAD, PAUSES, Explained, Limited, Pause
from bide.model.times import interval
from bide.testing.conformance.driver import HOUR, START, Driver, ids_of, leases
from bide.testing.conformance.limiting import limited, put

__all__ = ["ExplainCases", "LimitReportCases"]


def aheads(driver: Driver, *ids: str) -> list[int | None]:
    """Return how many messages are ahead of each."""
    return [driver.explain(id).ahead for id in ids]


class ExplainCases:
    """What it promises."""

    def test_what_is_not_there_is_explained_by_nothing(self, driver: Driver) -> None:
        assert driver.explain("a") == driver.explain() == Explained(START)
        assert driver.queues() == []
        driver.put("b")
        assert driver.explain("a") == driver.explain() == Explained(START)

    def test_it_agrees_with_the_message_in_every_state(self, driver: Driver) -> None:
        for state in STATES:
            one = driver.apart(state)
            one.bring("a", state)
            told, seen = one.explain("a"), one.get("a")
            assert told.state == seen.state == state
            for name in ("due", "planned", "priority", "attempt", "attempts", "holder", "until",
                         "ended"):  # fmt: skip
                assert getattr(told, name) == getattr(seen, name)
            assert told.failure == (seen.failures[-1] if seen.failures else None)
            assert told.ahead == (0 if state == "ready" else None)
            assert told.since == (one.now if state == "leased" else None)

    def test_a_lease_tells_since_when_and_how_often_it_was_extended(self, driver: Driver) -> None:
        driver.put("a", "b", attempts=3)
        driver.wait(3)
        first = driver.hold(holder="host one:7")[0]
        for times in (0, 1, 2):
            told = driver.explain("a")
            assert (told.since, told.extended, told.holder) == (START + 3, times, "host one:7")
            assert told.until == driver.now + 1_000
            driver.wait(2)
            driver.extend(first)
        assert driver.explain("b").extended == 0
        driver.retry(first, reason="no")
        told = driver.explain("a")
        assert (told.state, told.since, told.extended, told.holder) == ("ready", None, 0, None)
        assert told.failure == Failure(1, driver.now, "host one:7", "no", START + 3)
        driver.wait(1_000)  # the other lease ends
        assert driver.take() == ["b", "a"]
        told = driver.explain("a")
        assert (told.since, told.extended) == (driver.now, 0)
        lapse = Failure(1, START + 1_003, "host one:7", LAPSED, START + 3)
        assert driver.explain("b").failure == lapse

    def test_a_retry_keeps_the_time_that_was_planned(self, driver: Driver) -> None:
        driver.retry(driver.lease("a"), delay=5, reason="later")
        for state, ahead in (("delayed", None), ("ready", 0)):
            told = driver.explain("a")
            assert (told.state, told.due, told.planned) == (state, START + 5, START)
            assert (told.attempt, told.ahead) == (1, ahead)
            driver.wait(5)

    def test_ahead_is_the_order_of_delivery(self, driver: Driver) -> None:
        driver.put("c", delay=3)
        driver.put("a", "b", delay=2)
        driver.put("heavy", delay=4, priority=1)
        driver.put("top", delay=4, priority=255)
        driver.put("later", delay=HOUR, priority=255)
        driver.wait(5)
        assert aheads(driver, "top", "heavy", "a", "b", "c", "later") == [0, 1, 2, 3, 4, None]
        assert driver.take(1) == ["top"]  # this has made the others ready
        assert aheads(driver, "heavy", "a", "b", "c") == [0, 1, 2, 3]
        driver.put("d", at=driver.now - 4)
        driver.put("e", priority=1)
        order = ["heavy", "e", "d", "a", "b", "c"]
        assert aheads(driver, *order) == [0, 1, 2, 3, 4, 5]
        assert [driver.take(1) for _ in order] == [[id] for id in order]

    def test_only_so_many_ahead_are_counted(self, bare: Driver) -> None:
        bare.put(*(f"{number:04}" for number in range(5 * PROMOTE)))
        wanted = [0, 5, AHEAD - 1, AHEAD, AHEAD + 1, AHEAD + 2]
        expected = [min(number, AHEAD + 1) for number in wanted]
        assert aheads(bare, *(f"{number:04}" for number in wanted)) == expected
        bare.wait(1)
        bare.put("top", priority=1)
        bare.put("older", at=START - 1)
        # A claim does not look as far as "top".
        assert aheads(bare, "top", "older", "0005") == [AHEAD + 1, 0, 6]

    def test_a_queue_remembers_its_last_pauses(self, driver: Driver) -> None:
        driver.put("a")
        for actor in ("ann", "bob"):  # for the second it is paused already
            driver.configure(paused=True, actor=actor)
            for id in ("a", None):
                assert driver.explain(id).pauses == [Pause(START, None, "ann")]
            driver.wait(1)
        driver.configure(paused=False, actor="bob")
        driver.configure(paused=False)
        driver.configure(keep=HOUR)
        assert driver.explain("a").pauses == [Pause(START, START + 2, "ann")]
        pauses = []
        for _ in range(PAUSES):
            driver.wait(1)
            driver.configure(paused=True, actor="bob")
            pauses.append(Pause(driver.now, driver.now + 1, "bob"))
            driver.wait(1)
            driver.configure(paused=False)
        assert driver.explain().pauses == pauses
        assert driver.apart("another").explain().pauses == []
        driver.configure(keep=0)
        driver.cancel("a")
        assert driver.delete().done
        driver.put("a")
        assert driver.explain("a").pauses == []


class LimitReportCases:
    """What `explain` and claims tell about limits."""

    def test_explain_tells_which_limit_holds_a_message(self, driver: Driver) -> None:
        limits = {"limit": 2, "group_limit": 1, "rate": interval(1), "group_rate": interval("1/m")}
        limited(driver, "a1 a2 a3 b1", **limits)
        assert driver.explain("a3").limited is None
        assert driver.take() == ["a1"]
        told = driver.explain("a3")
        assert told.limited == Limited("group_limit", 1, 1)
        assert told.ahead == 1
        assert driver.explain("b1").limited == Limited("rate", 1_000_000, 1, START + 990)
        driver.wait(990)
        assert driver.explain("b1").limited is None
        (lease,) = driver.hold()
        assert driver.explain("a2").limited == Limited("limit", 2, 2)
        driver.ack(lease)
        driver.wait(10)  # the lease of a1 is over
        driver.claim(0)
        until = START + 59_990
        driver.wait(1_000)
        assert driver.explain("a2").limited == Limited("group_rate", 60_000_000, 0, until)
        assert driver.explain("a1").ahead == 0
        assert driver.explain("a2").ahead == 1
        driver.put("z", delay=HOUR)
        assert driver.explain("z").limited is None
        driver.configure(limit=0, group_limit=0, rate=0, group_rate=0)
        assert driver.explain("a2").limited is None

    def test_a_claim_tells_when_the_limits_let_each_message_go(self, driver: Driver) -> None:
        limited(driver, "a1 a2 b1 c1", limit=2, group_limit=1)
        claimed = driver.claim(lease=HOUR)
        assert (ids_of(claimed), claimed.freed) == (["a1", "b1"], [0, 0])
        driver.wait(30)
        driver.ack(*leases(claimed))
        driver.wait(5)
        put(driver, "d1")
        claimed = driver.claim(lease=HOUR)
        assert ids_of(claimed) == ["c1", "a2"]
        assert claimed.freed == [START + 30, START + 30]
        driver.wait(100)
        driver.ack(*leases(claimed))
        assert driver.claim().freed == [START + 135]

    def test_a_wider_limit_lets_messages_go_when_it_is_set(self, driver: Driver) -> None:
        limited(driver, "a1 a2", limit=1)
        assert driver.take(lease=HOUR) == ["a1"]
        driver.wait(5)
        driver.configure(limit=2)
        driver.wait(5)
        assert driver.claim().freed == [START + 5]

    def test_a_lower_limit_lets_messages_go_when_the_last_lease_too_many_ends(
        self, driver: Driver
    ) -> None:
        limited(driver, "a1 a2 a3 a4", limit=3)
        held = driver.hold(lease=HOUR)
        driver.configure(limit=1)
        for lease in held:
            driver.wait(5)
            driver.ack(lease)
        assert driver.claim().freed == [START + 15]

    def test_where_no_limit_held_a_message_none_has_let_it_go(self, driver: Driver) -> None:
        limited(driver, "a1 a2", limit=2, group_limit=2)
        held = driver.claim(1, lease=HOUR)
        driver.wait(5)
        driver.ack(*leases(held))
        assert driver.claim().freed == [0]
        other = driver.apart("other")
        limited(other, "a1 a2", rate=interval(5))
        assert other.claim().freed == [0]
        other.wait(300)
        assert other.claim().freed == [START + 190]

    def test_a_group_with_a_lease_was_held_by_its_rate(self, driver: Driver) -> None:
        limited(driver, "a1", group_rate=interval(1))
        assert driver.take(lease=HOUR) == ["a1"]
        driver.wait(2_000)
        put(driver, "a2", at=START + 100)
        assert driver.claim().freed == [START + 990]

    def test_no_rate_has_held_a_group_that_was_idle(self, driver: Driver) -> None:
        limited(driver, "a1", group_rate=interval(1))
        driver.ack(*driver.hold())
        put(driver, "a2")
        driver.wait(995)
        driver.claim(0)  # the rate allows a2
        driver.cancel("a2")
        driver.wait(5)
        put(driver, "a3", at=START + 100)
        assert driver.claim().freed == [0]
