# ruff: noqa: D102  (the name of each case says what it checks)
"""Limits: so many messages at a time, so many per second, of a queue and of each group."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from bide.engines.port import Engine
from bide.model.times import CREDIT, interval
from bide.testing.conformance.driver import HOUR, Driver, leases, numbered


def put(driver: Driver, text: str, **fields: Any) -> None:
    """Put messages such as "a1": group "a"; those that begin with "-" have none."""
    for id in text.split():
        driver.put(id, group=None if id[0] == "-" else id[0], **fields)


def limited(driver: Driver, text: str, priority: int = 0, **limits: int) -> None:
    """Set limits of a queue, and put messages."""
    driver.configure(**limits)
    put(driver, text, priority=priority)


class LimitCases:
    """What a limited queue promises."""

    def test_no_more_are_leased_at_a_time(self, driver: Driver) -> None:
        limited(driver, "a1 a2 b1 -1 -2", limit=2)
        a1, b1 = driver.hold()
        assert (a1.id, b1.id, driver.take()) == ("a1", "b1", [])
        driver.ack(b1)
        assert (driver.take(), driver.take()) == (["-1"], [])

    def test_an_ack_in_another_queue_makes_no_room(self, driver: Driver) -> None:
        other = driver.apart("other")
        limited(other, "a1", limit=1)
        limited(driver, "a1 a2", limit=1)
        assert driver.take(lease=100) == ["a1"]
        other.ack(*other.hold())
        assert driver.claim().next == 100  # only when the lease of a1 ends, not now

    def test_a_group_without_messages_is_no_reason_to_claim(self, driver: Driver) -> None:
        limited(driver, "b1 b2 c1 a1", group_limit=1)
        _, c1 = driver.hold(2)
        driver.cancel("a1")
        driver.ack(c1)
        assert driver.wake is None

    def test_a_pause_of_a_limited_queue_ends_by_itself(self, driver: Driver) -> None:
        limited(driver, "a1 a2 b1", limit=2)
        (lease,) = driver.hold(1)
        driver.configure(paused=True, paused_for=100)
        assert all(driver.ack(lease))
        assert driver.wake is None  # a wake would be of no use in a pause
        assert driver.wait(60).claim().next == 40
        assert sorted(driver.wait(40).take()) == ["a2", "b1"]

    def test_the_limit_of_a_group_binds_each_group(self, driver: Driver) -> None:
        limited(driver, "a1 a2 a3 b1 -1 -2 -3 -4", group_limit=2)
        lease_by_id = {lease.id: lease for lease in driver.hold()}
        # All but a3: messages without a group have no limit.
        assert lease_by_id.keys() == {"a1", "a2", "b1", "-1", "-2", "-3", "-4"}
        put(driver, "b2 b3")
        assert driver.take() == ["b2"]  # with b1 the group is full
        driver.ack(lease_by_id["a1"])
        assert driver.wake is not None
        assert driver.take() == ["a3"]

    def test_one_of_a_group_at_a_time(self, driver: Driver) -> None:
        limited(driver, "a1 a2 a3", group_limit=1)
        for id in ("a1", "a2", "a3"):
            (lease,) = driver.hold()
            assert lease.id == id
            assert driver.take() == []
            driver.ack(lease)

    def test_groups_of_the_same_name_in_two_queues_have_nothing_in_common(
        self, driver: Driver
    ) -> None:
        other = driver.apart("other")
        for each in (other, driver):
            limited(each, "a1 a2 a3 b1", group_limit=2)
        assert sorted(driver.take(3)) == ["a1", "a2", "b1"]
        assert sorted(other.take(3)) == ["a1", "a2", "b1"]
        assert (driver.take(), other.take()) == ([], [])

    def test_a_message_of_another_queue_is_no_head_of_a_line(self, driver: Driver) -> None:
        other = driver.apart("other")
        limited(other, "a8 a9", limit=9, priority=9)
        assert other.take(1) == ["a8"]  # and the other one gets into its line
        limited(driver, "a1 a2 b1", limit=9)
        assert sorted(driver.take(1) + driver.take()) == ["a1", "a2", "b1"]

    def test_deliveries_of_a_group_are_spaced_by_its_rate(self, driver: Driver) -> None:
        limited(driver, "a1 a2 a3 b1 b2 -1 -2 -3", group_rate=interval("5/s"))
        assert set(driver.take()) == {"a1", "b1", "-1", "-2", "-3"}
        assert driver.claim().next == 190  # 200 ms apart, less the 10 ms that a rate saves up
        assert set(driver.wait(190).take()) == {"a2", "b2"}
        assert driver.wait(199).take() == []
        assert driver.wait(1).take() == ["a3"]

    @pytest.mark.parametrize("delay", [0, 990])
    def test_an_empty_group_is_served_when_its_rate_opens(self, driver: Driver, delay: int) -> None:
        limited(driver, "a1", group_rate=interval(1))
        driver.ack(*driver.hold())
        put(driver, "a2", delay=delay)
        assert driver.claim().next == 990
        assert driver.wait(990).take() == ["a2"]

    def test_a_high_rate_saves_up_ten_milliseconds(self, driver: Driver) -> None:
        driver.configure(rate=interval(1_000))
        driver.put(*numbered(40))
        assert len(driver.take(40)) == 11  # the one of now, and those of 10 ms
        assert driver.claim().next == 1
        assert len(driver.wait(2).take(40)) == 2
        assert len(driver.wait(HOUR).take(40)) == 11  # no more were saved up in an hour

    def test_an_empty_group_saves_up_no_faster(self, driver: Driver) -> None:
        driver.configure(group_rate=interval(1_000))
        driver.put(*numbered(11), group="a")
        driver.ack(*driver.hold(40))
        driver.wait(1).claim(0)
        driver.put(*numbered(11, 11), group="a")
        assert len(driver.take(40)) == 1

    @pytest.mark.parametrize("seed", range(6))
    def test_no_span_of_time_has_more_than_the_rate_allows(self, bare: Driver, seed: int) -> None:
        chance = random.Random(seed)
        limits = {"rate": interval(chance.choice([3, 40, 700]))}
        if seed % 2:
            limits["group_rate"] = interval(chance.choice([2, 30, 300]))
        bare.configure(**limits)
        for id in numbered(300):
            bare.put(id, group=chance.choice(["a", "b", None]), delay=chance.randrange(900))
        # When messages were delivered: of the queue, of each group, and of those without one.
        served: dict[str, list[int]] = {"all": [], "a": [], "b": [], "-": []}
        for _ in range(150):
            bare.wait(chance.choice([0, 1, 2, 7, 30, 300]))
            claimed = bare.claim(chance.choice([1, 3, 50]), lease=HOUR)
            for message in claimed.messages:
                served["all"].append(bare.now)
                served[message.group or "-"].append(bare.now)
            if chance.random() < 0.5:
                bare.ack(*leases(claimed))
        assert len(served["all"]) > 10
        del served["-"]  # no rate of a group binds them
        for name, times in served.items():
            interval_us = limits.get("rate" if name == "all" else "group_rate", 0)
            if not interval_us:
                continue
            for first, start in enumerate(times):
                for count, end in enumerate(times[first:], 1):
                    span_us = (end - start) * 1000
                    assert count <= (span_us + CREDIT) // interval_us + 1

    def test_new_limits_count_what_is_leased(self, driver: Driver) -> None:
        put(driver, "a1 a2 a3 b1 b2")
        held_leases = driver.hold(4)  # without limits: a1, a2, a3 and b1
        driver.configure(limit=4, group_limit=2)
        assert driver.take() == []
        driver.ack(held_leases[3])
        assert driver.take() == ["b2"]
        driver.counts()  # an audit

    def test_a_clock_set_back_does_not_keep_a_rate_that_is_lifted(self, bare: Driver) -> None:
        limited(bare, "a1 a2 a3", group_rate=interval("1/m"))
        assert bare.wait(HOUR).take() == ["a1"]
        assert bare.wait(-HOUR).take() == []
        bare.configure(group_rate=0, limit=9)
        assert bare.take() == ["a2", "a3"]

    def test_limits_survive_a_restart(
        self, make_engine: Callable[[], Engine], reopen: Callable[[Engine], Engine]
    ) -> None:
        driver = Driver(make_engine())
        limited(driver, "a1 a2 b1 b2 c1 c2", limit=3, group_limit=1, group_rate=interval(1))
        held_leases = driver.hold(2, lease=HOUR)
        driver.engine.close()
        reopened = Driver(reopen(driver.engine))
        if not reopened.engine.capabilities.durable:
            assert reopened.queues() == []
            return
        assert reopened.take(lease=HOUR) == ["c1"]
        reopened.ack(*held_leases)
        assert reopened.wait(989).take() == []
        assert reopened.wait(1).take() == ["a2", "b2"]
        assert reopened.counts().strays == 0
        reopened.engine.close()
