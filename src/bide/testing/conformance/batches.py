# ruff: noqa: D102  (the name of each case says what it checks)
"""Batches, closing and opening again, and the clock."""

from collections.abc import Callable

import pytest

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Claimed, Outcomes, expect
from bide.testing.conformance.driver import HOUR, START, Driver, done, ids_of


class BatchCases:
    """What holds for batches, and for a store as a whole."""

    def test_an_empty_batch_has_no_replies(self, driver: Driver) -> None:
        assert driver.batch() == []

    def test_a_revival_does_not_meet_what_its_batch_puts_later(self, driver: Driver) -> None:
        replies = driver.batch(
            cmd.Put("q", [Item("a", b"2")], "revive"), cmd.Put("q", [Item("a", b"1", died=START)])
        )
        assert [done(expect(Outcomes, reply).outcomes) for reply in replies] == [[False], [True]]
        assert driver.scan("dead") == ["a"]

    def test_an_invalid_command_undoes_its_batch(self, driver: Driver) -> None:
        driver.put("a")
        lease = driver.lease("b", priority=1)
        before = driver.counts()
        bad = cmd.Scan("q", "ready", cursor="nonsense")
        with pytest.raises(InvalidArgument):
            driver.batch(
                cmd.Put("q", [Item("c", b"1")]),
                cmd.Put("new", [Item("c", b"1")]),
                cmd.Cancel("q", ["a"]),
                cmd.Ack("q", [lease]),
                cmd.Configure("q", paused=True),
                cmd.Claim("q", 1, 1, "w"),
                bad,
            )
        assert driver.counts() == before
        assert driver.queues() == ["q"]
        assert driver.ack(lease)[0]
        assert driver.take() == ["a"]

    # A store as a whole.

    def test_a_store_is_as_durable_as_its_capabilities_say(
        self, driver: Driver, reopen: Callable[[Engine], Engine]
    ) -> None:
        driver.configure(keep=HOUR)
        lease = driver.lease("held", group="g")
        driver.ack(driver.lease("acked"))
        driver.bury(driver.lease("dead"))
        driver.put("far", delay=HOUR, headers={"a": "b"}, priority=7)
        ids = ("held", "acked", "dead", "far")
        before, counts = driver.find(*ids), driver.counts()
        driver.engine.close()
        reopened = Driver(reopen(driver.engine))
        if not reopened.engine.capabilities.durable:
            assert reopened.find(*ids) == [None] * 4
            return
        assert (reopened.find(*ids), reopened.counts()) == (before, counts)
        other_lease = reopened.lease("other")
        assert other_lease.token > lease.token
        assert all(reopened.ack(lease, other_lease))
        reopened.engine.close()

    def test_closing_twice_does_nothing(self, driver: Driver) -> None:
        driver.put("a")
        driver.engine.close()
        driver.engine.close()

    def test_without_now_the_store_uses_its_own_clock(self, driver: Driver) -> None:
        items = [Item("past", b"1", at=START), Item("future", b"1", delay=HOUR)]
        driver.engine.execute([cmd.Put("q", items)])
        (reply,) = driver.engine.execute([cmd.Claim("q", 5, HOUR, "w")])
        assert ids_of(expect(Claimed, reply)) == ["past"]

    def test_a_clock_that_was_set_back_loses_and_repeats_nothing(self, bare: Driver) -> None:
        bare.put("a", "b")
        lease = bare.lease("c", priority=1)
        assert bare.wait(-HOUR).put("d", delay=5)[0]
        taken = bare.take(9, lease=2 * HOUR)
        assert "c" not in taken
        assert bare.ack(lease)[0]
        assert sorted(taken + bare.wait(HOUR).take(9)) == ["a", "b", "d"]
        assert bare.counts().strays == 0
