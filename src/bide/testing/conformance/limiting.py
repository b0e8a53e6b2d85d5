# ruff: noqa: D102  (the name of each case says what it checks)
"""Limits: so many messages at a time, so many per second, of a queue and of each group."""

import random
from collections.abc import Callable
from typing import Any, Literal

import pytest

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.replies import Claimed, Limited, Outcomes
from bide.model.times import CREDIT, LIMITS, interval
from bide.testing.conformance.desk import HOUR, START, Desk, ids_of, leases

__all__ = ["LimitCases", "put"]


def put(desk: Desk, text: str, **fields: Any) -> None:
    """Put messages such as "a1": group "a"; those that begin with "-" have none."""
    for id in text.split():
        desk.put(id, group=None if id[0] == "-" else id[0], **fields)


ENDS: tuple[Callable[[str, cmd.Lease], cmd.Command], ...] = (
    lambda queue, lease: cmd.Ack(queue, [lease]),
    lambda queue, lease: cmd.Retry(queue, [lease], delay=HOUR),
    lambda queue, lease: cmd.Retry(queue, [lease], release=True),
    lambda queue, lease: cmd.Retry(queue, [lease], delay=HOUR, release=True),
    lambda queue, lease: cmd.Bury(queue, [lease]),
    lambda queue, lease: cmd.Release(queue, [lease.id]),
)
"""The commands that end a lease."""


class LimitCases:
    """What a limited queue promises."""

    def test_no_more_are_leased_at_a_time(self, desk: Desk) -> None:
        desk.configure(limit=2)
        put(desk, "a1 a2 b1 -1 -2")
        first = desk.claim()
        assert ids_of(first) == ["a1", "b1"]
        assert desk.take() == []
        desk.ack(leases(first)[1])
        assert desk.take() == ["-1"]
        assert desk.take() == []

    def test_the_limit_of_a_group_binds_each_group(self, desk: Desk) -> None:
        desk.configure(group_limit=2)
        put(desk, "a1 a2 a3 b1 -1 -2 -3 -4")
        claimed = desk.claim()
        assert {m.id for m in claimed.messages} == {"a1", "a2", "b1", "-1", "-2", "-3", "-4"}
        put(desk, "b2 b3")
        assert desk.take() == ["b2"]
        (lease,) = [lease for lease in leases(claimed) if lease.id == "a1"]
        desk.ack(lease)
        assert desk.take() == ["a3"]

    def test_whatever_ends_a_lease_lets_the_next_go_and_says_so(self, desk: Desk) -> None:
        for number, end in enumerate(ENDS):
            one = desk.apart(f"q{number}")
            one.configure(limit=1) if number % 2 else one.configure(group_limit=1)
            put(one, "a1 a2", attempts=9)
            (lease,) = leases(one.claim(1))
            assert (lease.id, one.take()) == ("a1", [])
            one.wait(3)
            wake = one.ask(end(one.queue, lease), Outcomes).wake
            assert wake is not None
            assert START <= wake <= one.now
            released = one.state("a1") == "ready"  # it is in front again
            assert one.take() == ["a1" if released else "a2"]

    def test_a_lease_that_is_over_counts_no_more(self, desk: Desk) -> None:
        desk.configure(limit=1)
        put(desk, "a1 b1", attempts=9)
        assert desk.take(lease=50) == ["a1"]
        desk.wait(10)
        assert desk.claim() == Claimed([], 0, desk.now, next=40)
        desk.wait(40)
        assert desk.take() == ["b1"]

    def test_an_empty_claim_waits_for_what_may_change_it(self, desk: Desk) -> None:
        desk.configure(limit=1)
        put(desk, "a1 a2")
        desk.take(lease=1_000)
        assert desk.claim().next == 1_000
        desk.put("later", delay=300)
        assert desk.claim().next == 300
        desk.configure(limit=0, group_rate=interval(10))
        assert desk.claim().next == 90  # a delivery may be 10 ms early
        desk.configure(paused=True)
        assert desk.claim().next is None

    def test_what_has_left_its_line_is_not_waited_for(self, desk: Desk) -> None:
        desk.configure(rate=interval("1/s"))
        put(desk, "a1 b1")
        assert desk.take(lease=HOUR) == ["a1"]
        assert desk.claim().next == 990
        desk.cancel("b1")
        assert desk.claim().next == HOUR

    @pytest.mark.parametrize("name", ["limit", "group_limit"])
    def test_the_end_of_a_lease_opens_no_other_queue(
        self, desk: Desk, name: Literal["limit", "group_limit"]
    ) -> None:
        other = desk.apart("other")
        for one in (desk, other):
            one.configure(**{name: 1})
            put(one, "a1 a2")
        (lease,) = leases(other.claim())
        assert desk.take(lease=HOUR) == ["a1"]
        other.ack(lease)
        assert desk.explain("a2").limited == Limited(name, 1, 1)
        assert desk.claim().next == HOUR
        assert other.explain("a2").limited is None
        assert other.take() == ["a2"]

    def test_deliveries_of_a_queue_are_spaced_by_its_rate(self, desk: Desk) -> None:
        desk.configure(rate=interval(10))
        put(desk, "a1 b1 -1 a2")
        moments = []
        for _ in range(4):
            claimed = desk.claim(lease=HOUR)
            assert len(claimed.messages) == 1
            moments.append(desk.now - START)
            if (wait := desk.claim().next) is not None:
                desk.wait(int(wait))
        assert moments == [0, 90, 190, 290]

    def test_deliveries_of_a_group_are_spaced_by_its_rate(self, desk: Desk) -> None:
        desk.configure(group_rate=interval("5/s"))
        put(desk, "a1 a2 a3 b1 b2 -1 -2 -3")
        assert set(desk.take()) == {"a1", "b1", "-1", "-2", "-3"}
        assert desk.claim().next == 190
        desk.wait(190)
        assert set(desk.take()) == {"a2", "b2"}
        desk.wait(199)
        assert desk.take() == []
        desk.wait(1)
        assert desk.take() == ["a3"]

    def test_a_group_that_was_empty_is_spaced_by_its_rate_too(self, desk: Desk) -> None:
        desk.configure(group_rate=interval(1))
        put(desk, "a1")
        desk.ack(*leases(desk.claim()))
        put(desk, "a2")
        assert desk.claim().next == 990
        desk.wait(990)
        assert desk.take() == ["a2"]

    def test_a_group_is_served_in_the_millisecond_in_which_its_rate_opens(self, desk: Desk) -> None:
        desk.configure(group_rate=interval(1))
        put(desk, "a1")
        desk.ack(*leases(desk.claim()))
        put(desk, "a2", delay=990)
        desk.wait(990)
        assert desk.take() == ["a2"]

    def test_the_end_of_a_lease_says_when_the_rate_allows_the_next(self, desk: Desk) -> None:
        desk.configure(group_limit=1, group_rate=interval(2))
        put(desk, "a1 a2")
        (lease,) = leases(desk.claim(lease=HOUR))
        assert desk.claim().next == HOUR
        desk.wait(100)
        assert desk.ask(cmd.Ack("q", [lease]), Outcomes).wake == START + 490
        assert desk.claim().next == 390

    def test_a_high_rate_saves_up_ten_milliseconds(self, desk: Desk) -> None:
        desk.configure(rate=interval(1_000))
        desk.put(*[f"m{number:02}" for number in range(40)])
        assert len(desk.take(40)) == 11
        assert desk.claim().next == 1
        desk.wait(2)
        assert len(desk.take(40)) == 2
        desk.wait(HOUR)
        assert len(desk.take(40)) == 11

    def test_a_retry_is_another_delivery(self, desk: Desk) -> None:
        desk.configure(rate=interval(1))
        desk.retry(desk.lease("a", attempts=3))
        assert desk.take() == []
        desk.wait(1_000)
        assert desk.take() == ["a"]

    @pytest.mark.parametrize("seed", range(6))
    def test_no_span_of_time_has_more_than_the_rate_allows(self, bare: Desk, seed: int) -> None:
        chance = random.Random(seed)
        limits = {"rate": interval(chance.choice([3, 40, 700]))}
        if seed % 2:
            limits["group_rate"] = interval(chance.choice([2, 30, 300]))
        bare.configure(**limits)
        groups = ["a", "b", None]
        for number in range(300):
            bare.put(f"m{number:03}", group=chance.choice(groups), delay=chance.randrange(900))
        served: dict[str | None, list[int]] = {"all": [], "a": [], "b": []}
        for _ in range(150):
            bare.wait(chance.choice([0, 1, 2, 7, 30, 300]))
            claimed = bare.claim(chance.choice([1, 3, 50]), lease=HOUR)
            for message in claimed.messages:
                served["all"].append(bare.now)
                if message.group is not None:
                    served[message.group].append(bare.now)
            if chance.random() < 0.5:
                bare.ack(*leases(claimed))
        assert len(served["all"]) > 10
        for name, times in served.items():
            us = limits.get("rate" if name == "all" else "group_rate", 0)
            for first, start in enumerate(times):
                for count, end in enumerate(times[first:], 1):
                    assert not us or count <= ((end - start) * 1000 + CREDIT) // us + 1

    def test_a_claim_gives_no_more_than_can_be_started(self, desk: Desk) -> None:
        for limited in (False, True):
            one = desk.apart(f"limited-{limited}")
            one.configure(limit=100 if limited else 0)
            one.put("a", "b", "c", "d")
            claimed = one.ask(cmd.Claim(one.queue, 4, 1, "w", slots=2), Claimed)
            assert len(claimed.messages) == (2 if limited else 4)
            assert len(claimed.freed) == (2 if limited else 0)

    def test_new_limits_count_what_is_leased(self, desk: Desk) -> None:
        put(desk, "a1 a2 a3 b1 b2")
        claimed = desk.claim(4)
        desk.configure(limit=4, group_limit=2)
        assert desk.take() == []
        desk.ack(leases(claimed)[3])
        assert desk.take() == ["b2"]
        desk.counts()

    def test_new_limits_count_nothing_of_other_queues(self, desk: Desk) -> None:
        other = desk.apart("other")
        lease = other.lease("a1")
        put(desk, "a1")
        desk.configure(limit=1)
        assert desk.take() == ["a1"]
        other.ack(lease)
        assert desk.counts().strays == 0

    def test_a_changed_limit_holds_from_the_next_claim(self, desk: Desk) -> None:
        assert desk.configure(limit=1).wake == START
        put(desk, "a1 a2 a3 a4 a5")
        assert desk.take() == ["a1"]
        assert desk.configure(limit=3).wake == START
        assert desk.configure(limit=3).wake is None
        assert desk.take() == ["a2", "a3"]
        desk.configure(limit=1)
        assert desk.take() == []
        desk.configure(limit=0, rate=interval("1/h"))
        assert desk.take() == []
        desk.configure(rate=interval("1/s"))
        assert desk.claim().next == 990
        desk.configure(group_rate=interval("1/h"), rate=0)
        assert desk.take() == []
        desk.configure(group_rate=0, group_limit=4)
        assert desk.take() == ["a4"]
        desk.configure(group_limit=5)
        assert desk.take() == ["a5"]

    def test_a_rate_that_is_lifted_holds_nothing_after_the_clock_was_set_back(
        self, bare: Desk
    ) -> None:
        bare.configure(group_rate=interval("1/m"))
        put(bare, "a1 a2 a3")
        bare.wait(HOUR)
        assert bare.take() == ["a1"]
        bare.wait(-HOUR)
        assert bare.take() == []
        bare.configure(group_rate=0, limit=9)
        assert bare.take() == ["a2", "a3"]

    def test_what_is_too_late_counts_against_no_limit(self, desk: Desk) -> None:
        desk.configure(limit=1, rate=interval(1))
        put(desk, "a1 a2", expires=5)
        put(desk, "a3 b1")
        desk.wait(6)
        assert desk.take() == ["a3"]
        assert desk.counts().flow.expired == 2

    def test_a_batch_keeps_limits_too(self, desk: Desk) -> None:
        desk.batch(cmd.Configure("q", limit=2), cmd.Configure("p", group_limit=1))
        put(desk, "a1 a2 a3")
        put(desk.apart("p"), "a1 a2 b1")
        claims = [cmd.Claim(queue, 1, 1_000, "w") for queue in "qpqpqp"]
        found = [ids_of(reply) for reply in desk.batch(*claims)
                 if isinstance(reply, Claimed)]  # fmt: skip
        assert found == [["a1"], ["a1"], ["a2"], ["b1"], [], []]

    def test_paused_comes_first(self, desk: Desk) -> None:
        desk.configure(limit=1, paused=True)
        put(desk, "a1")
        assert desk.claim() == Claimed([], 0, START)
        assert desk.configure(paused=False).wake == START
        assert desk.take() == ["a1"]

    def test_settings_and_counts_tell_the_limits(self, desk: Desk) -> None:
        given = dict(zip(LIMITS, (1, 2, 3, 4), strict=True))
        assert {name: getattr(desk.configure(**given), name) for name in LIMITS} == given
        desk.configure(rate=7, keep=5)
        counts = desk.counts()
        assert [getattr(counts, name) for name in LIMITS] == [1, 7, 3, 4]
        assert (counts.keep, counts.paused) == (5, False)
        assert all(getattr(desk.apart("other").counts(), name) == 0 for name in LIMITS)

    def test_a_deleted_queue_leaves_nothing(self, desk: Desk) -> None:
        desk.configure(limit=1, group_rate=interval("1/h"))
        desk.ack(desk.lease("a", group="g"))
        assert desk.delete().done
        put(desk, "g1 g2")
        assert desk.take() == ["g1", "g2"]
        desk.ack(*leases(desk.claim()))
        desk.wait(1_000)
        desk.ack(*leases(desk.claim()))
        desk.delete()
        desk.configure(group_rate=interval("1/h"))
        put(desk, "g1")
        assert desk.take() == ["g1"]

    def test_limits_survive_a_restart(
        self, make_engine: Callable[[], Engine], reopen: Callable[[Engine], Engine]
    ) -> None:
        engine = make_engine()
        desk = Desk(engine)
        desk.configure(limit=3, group_limit=1, group_rate=interval(1))
        put(desk, "a1 a2 b1 b2 c1 c2")
        first = desk.claim(2, lease=HOUR)
        engine.close()
        again = Desk(reopen(engine))
        again.now = desk.now
        if not again.engine.capabilities.durable:
            assert again.queues() == []
            return
        assert again.take(lease=HOUR) == ["c1"]
        again.ack(*leases(first))
        again.wait(989)
        assert again.take() == []
        again.wait(1)
        assert again.take() == ["a2", "b2"]
        assert again.counts().strays == 0
        again.engine.close()
