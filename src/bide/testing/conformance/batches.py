# ruff: noqa: D102  (the name of each case says what it checks)
"""Batches, residue, closing and opening again, and every transition of the lifecycle."""

import itertools
from collections.abc import Callable

import pytest

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import EXPIRED_KEEP, FORGET, Item, State
from bide.model.replies import Claimed, Counts, Found, Outcomes, Sizes, expect
from bide.testing.conformance.driver import HOUR, START, Driver, ids_of

__all__ = ["BatchCases"]


LEASED: list[tuple[int, int | None]] = [(10, None), (1, None), (10, HOUR), (10, 0)]
"""The attempts of leased messages, and when their successors are due, if they have one."""

UNHELD: list[State | None] = ["delayed", "ready", "dead"]
ACTS: list[tuple[list[State | None], Callable[[Driver, cmd.Lease], object]]] = [
    ([None, *UNHELD], lambda one, _: one.put("a", on_conflict="replace", died=START + 1)),
    (UNHELD, lambda one, _: one.put("a", on_conflict="replace", delay=HOUR + 1)),
    (UNHELD, lambda one, _: one.put("a", on_conflict="replace", data=b"2")),
    (UNHELD[:2], lambda one, _: one.reschedule("a", delay=HOUR + 1)),
    (UNHELD[:2], lambda one, _: one.reschedule("a", delay=0)),
    (UNHELD[:2], lambda one, _: one.edit("a", delay=HOUR + 1)),
    (UNHELD[:2], lambda one, _: one.edit("a", delay=0)),
    (UNHELD[:2], lambda one, _: one.set_aside("a")),
    ([*UNHELD[:2], "leased"], lambda one, _: one.cancel("a")),
    (["dead"], lambda one, _: one.edit("a", data=b"2")),
    (["dead"], lambda one, _: one.revive("a")),
    (["dead"], lambda one, _: one.revive("a", delay=HOUR)),
    (["delayed"], lambda one, _: one.wait(HOUR).claim()),
    (["leased"], lambda one, lease: (one.extend(lease), one.ack(lease))),
    (["leased"], lambda one, lease: one.retry(lease)),
    (["leased"], lambda one, lease: one.retry(lease, delay=5)),
    (["leased"], lambda one, lease: one.retry(lease, release=True)),
    (["leased"], lambda one, lease: one.retry(lease, delay=5, release=True)),
    (["leased"], lambda one, _: one.release("a")),
    (["leased"], lambda one, lease: one.bury(lease)),
    (["leased"], lambda one, _: one.wait(1_000).claim(0)),
    (["acked", "expired"], lambda one, _: one.wait(EXPIRED_KEEP).claim()),
    ([*UNHELD, "acked", "expired"], lambda one, _: one.purge(one.get("a").state)),
]
"""Messages in these states, and what becomes of them."""


class BatchCases:
    """What holds for batches, and for a store as a whole."""

    def test_an_empty_batch_has_no_replies(self, driver: Driver) -> None:
        assert driver.batch() == []

    def test_each_command_sees_what_those_before_it_did(self, driver: Driver) -> None:
        put, find = cmd.Put("q", [Item("a", b"1")]), cmd.Find("q", ["a"])
        cancel = cmd.Cancel("q", ["a"])
        replies = driver.batch(find, put, put, find, cancel, cancel, put, find)
        done = [r.outcomes[0].done for r in replies if isinstance(r, Outcomes)]
        assert done == [True, False, True, False, True]
        found = [r.messages[0] is not None for r in replies if isinstance(r, Found)]
        assert found == [False, True, True]

    def test_claims_in_one_batch_share_nothing(self, driver: Driver) -> None:
        driver.put("a", "b", "c")
        claim = cmd.Claim("q", 2, 1_000, "w")
        replies = driver.batch(claim, claim, claim)
        claimed = [expect(Claimed, reply) for reply in replies]
        assert [ids_of(one) for one in claimed] == [["a", "b"], ["c"], []]
        assert claimed[0].token != claimed[1].token

    def test_an_id_put_twice_in_a_batch_is_stored_once(self, driver: Driver) -> None:
        first, second = Item("a", b"1"), Item("a", b"2")
        replies = driver.batch(
            cmd.Put("q", [first, Item("b", b"1")]), cmd.Put("q", [second, Item("c", b"1")])
        )
        done = [[o.done for o in expect(Outcomes, reply).outcomes] for reply in replies]
        assert done == [[True, True], [False, True]]
        assert driver.take() == ["a", "b", "c"]
        assert driver.counts().flow.put == 3

    def test_an_import_of_dead_letters_and_others_in_a_batch(self, driver: Driver) -> None:
        driver.batch(
            cmd.Put("q", [Item("a", b"1", died=START), Item("b", b"1")]),
            cmd.Put("q", [Item("c", b"1"), Item("d", b"1", died=START)]),
            cmd.Put("q", [Item("a", b"2", delay=5)], "replace"),
        )
        assert driver.take() == ["b", "c"]
        assert driver.scan("dead") == ["d"]
        assert driver.counts().sizes == Sizes(delayed=1, leased=2, dead=1)

    def test_a_revival_does_not_meet_what_a_later_put_of_its_batch_stores(
        self, driver: Driver
    ) -> None:
        replies = driver.batch(
            cmd.Put("q", [Item("a", b"2")], "revive"), cmd.Put("q", [Item("a", b"1", died=START)])
        )
        assert [expect(Outcomes, reply).outcomes[0].done for reply in replies] == [False, True]
        assert driver.scan("dead") == ["a"]

    def test_a_put_forgets_a_limited_number_before_it_stores(self, bare: Driver) -> None:
        bare.configure(keep=5)
        ids = [f"m{number:04}" for number in range(2 * FORGET + 50)]
        bare.put(*ids)
        bare.ack(*bare.hold(len(ids)))
        bare.wait(5)
        replies = bare.batch(
            cmd.Put("q", [Item(ids[FORGET - 1], b"1"), Item(ids[FORGET], b"1")]),
            cmd.Put("q", [Item(ids[2 * FORGET - 1], b"1"), Item(ids[2 * FORGET], b"1")]),
        )
        done = [[o.done for o in expect(Outcomes, reply).outcomes] for reply in replies]
        # The engine decides how many are forgotten before the first put stores.
        assert (done[0][0], done[1][1]) == (True, False)
        bare.counts()

    def test_an_invalid_command_undoes_its_batch(self, driver: Driver) -> None:
        driver.put("a")
        lease = driver.lease("b", priority=1)
        before = driver.counts()
        bad = cmd.Scan("q", "ready", cursor="nonsense")
        with pytest.raises(InvalidArgument):
            driver.batch(
                cmd.Put("q", [Item("c", b"1")]), cmd.Put("new", [Item("c", b"1")]),
                cmd.Cancel("q", ["a"]), cmd.Ack("q", [lease]), cmd.Configure("q", paused=True),
                cmd.Claim("q", 1, 1, "w"), bad,
            )  # fmt: skip
        assert driver.counts() == before
        assert driver.queues() == ["q"]
        assert driver.ack(lease)[0]
        assert driver.take() == ["a"]

    def test_replies_are_as_many_as_commands_and_in_order(self, driver: Driver) -> None:
        kinds: list[cmd.Command] = [
            cmd.Put("q", []), cmd.Claim("q", 1, 1, "w"), cmd.Count("q"), cmd.Find("q", []),
            cmd.Scan("q"), cmd.Forecast("q", 1, 1), cmd.Configure("q"), cmd.Queues(""),
            cmd.Purge("q", "dead"), cmd.Cancel("q"), cmd.Delete("q"),
        ]  # fmt: skip
        for commands in (kinds, kinds[::-1]):
            names = [type(reply).__name__ for reply in driver.batch(*commands)]
            singly = [type(driver.batch(command)[0]).__name__ for command in commands]
            assert names == singly

    # A store as a whole.

    def test_nothing_is_left_of_messages_that_are_gone(self, driver: Driver) -> None:
        for number, settle in enumerate((driver.ack, driver.bury, driver.retry)):
            settle(driver.lease(f"m{number}", group="g", headers={"a": "b"}))
        driver.put("late", expires=0, at=START - 1)
        driver.put("far", delay=HOUR, group="g")
        driver.cancel("far", "m2")
        driver.purge("dead")
        driver.claim()
        driver.wait(EXPIRED_KEEP)
        driver.claim()
        counts = driver.counts()
        assert (counts.sizes, counts.kept, counts.oldest) == (Sizes(), 0, None)
        assert driver.scan() == driver.scan(group="g") == []
        assert driver.forecast(HOUR, 3).later == 0

    def test_a_store_is_as_durable_as_its_capabilities_say(
        self, driver: Driver, reopen: Callable[[Engine], Engine]
    ) -> None:
        driver.configure(keep=HOUR)
        lease = driver.lease("held", group="g")
        driver.bring("acked", "acked")
        driver.bring("dead", "dead")
        driver.put("far", delay=HOUR, headers={"a": "b"}, priority=7)
        ids = ("held", "acked", "dead", "far")
        before, counts = driver.find(*ids), driver.counts()
        driver.engine.close()
        engine = reopen(driver.engine)
        again = Driver(engine)
        if not engine.capabilities.durable:
            assert again.find(*ids) == [None] * 4
            return
        assert (again.find(*ids), again.counts()) == (before, counts)
        other = again.lease("other")
        assert other.token > lease.token
        assert again.ack(lease, other)
        engine.close()

    def test_closing_twice_does_nothing(self, driver: Driver) -> None:
        driver.put("a")
        driver.engine.close()
        driver.engine.close()

    def test_without_now_the_store_uses_its_own_clock(self, driver: Driver) -> None:
        items = [Item("past", b"1", at=START), Item("future", b"1", delay=HOUR)]
        driver.engine.execute([cmd.Put("q", items)])
        (reply,) = driver.engine.execute([cmd.Claim("q", 5, HOUR, "w")])
        assert ids_of(expect(Claimed, reply)) == ["past"]

    def test_a_clock_that_was_set_back_loses_nothing_and_delivers_nothing_twice(
        self, bare: Driver
    ) -> None:
        bare.put("a", "b")
        lease = bare.lease("c", priority=1)
        bare.wait(-HOUR)
        assert bare.put("d", delay=5)[0]
        taken = bare.take(9, lease=2 * HOUR)
        assert "c" not in taken
        assert bare.ack(lease)[0]
        bare.wait(HOUR)
        assert sorted(taken + bare.take(9)) == ["a", "b", "d"]
        assert bare.ask(cmd.Count("q", recount=True), Counts).strays == 0

    def test_every_transition_of_the_lifecycle_happens(self, driver: Driver) -> None:
        numbers = itertools.count()
        for states, act in ACTS:
            for state in states:
                for attempts, successor in LEASED if state == "leased" else LEASED[:1]:
                    one = driver.apart(f"q{next(numbers)}")
                    lease = one.bring("a", state, attempts=attempts)
                    if successor is not None:
                        one.put("a", on_conflict="replace", delay=successor, latest=successor)
                    one.wait(1)
                    act(one, lease)
        assert set(TRANSITIONS) - driver.seen() == set()
