# ruff: noqa: D102  (the name of each case says what it checks)
"""Batches, residue, closing and opening again, and every transition of the lifecycle."""

from collections.abc import Callable
from functools import partial

import pytest

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.errors import BideError, InvalidArgument
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import EXPIRED_KEEP, FORGET, Item, State
from bide.model.replies import Counts, Found, Outcomes, Sizes
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["BatchCases"]


class BatchCases:
    """What holds for batches, and for a store as a whole."""

    def test_an_empty_batch_has_no_replies(self, desk: Desk) -> None:
        assert desk.batch() == []

    def test_each_command_sees_what_those_before_it_did(self, desk: Desk) -> None:
        put, find = cmd.Put("q", [Item("a", b"1")]), cmd.Find("q", ["a"])
        cancel = cmd.Cancel("q", ["a"])
        replies = desk.batch(find, put, put, find, cancel, cancel, put, find)
        done = [r.outcomes[0].done for r in replies if isinstance(r, Outcomes)]
        assert done == [True, False, True, False, True]
        found = [r.messages[0] is not None for r in replies if isinstance(r, Found)]
        assert found == [False, True, True]

    def test_claims_in_one_batch_share_nothing(self, desk: Desk) -> None:
        desk.put("a", "b", "c")
        claim = cmd.Claim("q", 2, 1_000, "w")
        replies = desk.batch(claim, claim, claim)
        taken = [message.id for reply in replies for message in getattr(reply, "messages", ())]
        assert taken == ["a", "b", "c"]
        assert len({getattr(reply, "token", 0) for reply in replies[:2]}) == 2

    def test_an_id_put_twice_in_a_batch_is_stored_once(self, desk: Desk) -> None:
        first, second = Item("a", b"1"), Item("a", b"2")
        replies = desk.batch(
            cmd.Put("q", [first, Item("b", b"1")]), cmd.Put("q", [second, Item("c", b"1")])
        )
        assert [[o.done for o in r.outcomes] for r in replies if isinstance(r, Outcomes)] == [
            [True, True],
            [False, True],
        ]
        assert desk.take() == ["a", "b", "c"]
        assert desk.counts().flow.put == 3

    def test_an_import_of_dead_letters_and_others_in_a_batch(self, desk: Desk) -> None:
        desk.batch(
            cmd.Put("q", [Item("a", b"1", died=START), Item("b", b"1")]),
            cmd.Put("q", [Item("c", b"1"), Item("d", b"1", died=START)]),
            cmd.Put("q", [Item("a", b"2", delay=5)], "replace"),
        )
        assert desk.take() == ["b", "c"]
        assert desk.scan("dead") == ["d"]
        assert desk.counts().sizes == Sizes(delayed=1, leased=2, dead=1)

    def test_a_put_forgets_a_limited_number_before_it_stores(self, bare: Desk) -> None:
        bare.configure(keep=5)
        ids = [f"m{number:04}" for number in range(2 * FORGET + 50)]
        bare.put(*ids)
        bare.ack(*leases(bare.claim(len(ids))))
        bare.wait(5)
        replies = bare.batch(
            cmd.Put("q", [Item(ids[FORGET - 1], b"1"), Item(ids[FORGET], b"1")]),
            cmd.Put("q", [Item(ids[2 * FORGET - 1], b"1"), Item(ids[2 * FORGET], b"1")]),
        )
        done = [[o.done for o in r.outcomes] for r in replies if isinstance(r, Outcomes)]
        # The engine decides how many are forgotten before the first put stores.
        assert (done[0][0], done[1][1]) == (True, False)
        bare.counts()

    def test_an_invalid_command_undoes_its_batch(self, desk: Desk) -> None:
        desk.put("a")
        lease = desk.lease("b", priority=1)
        before = desk.counts()
        bad = cmd.Scan("q", "ready", cursor="nonsense")
        with pytest.raises(InvalidArgument):
            desk.batch(
                cmd.Put("q", [Item("c", b"1")]), cmd.Put("new", [Item("c", b"1")]),
                cmd.Cancel("q", ["a"]), cmd.Ack("q", [lease]), cmd.Configure("q", paused=True),
                cmd.Claim("q", 1, 1, "w"), bad,
            )  # fmt: skip
        assert desk.counts() == before
        assert desk.queues() == ["q"]
        assert desk.ack(lease)[0]
        assert desk.take() == ["a"]

    def test_replies_are_as_many_as_commands_and_in_order(self, desk: Desk) -> None:
        kinds: list[cmd.Command] = [
            cmd.Put("q", []), cmd.Claim("q", 1, 1, "w"), cmd.Count("q"), cmd.Find("q", []),
            cmd.Scan("q"), cmd.Forecast("q", 1, 1), cmd.Configure("q"), cmd.Queues(""),
            cmd.Purge("q", "dead"), cmd.Cancel("q"), cmd.Delete("q"),
        ]  # fmt: skip
        for commands in (kinds, kinds[::-1]):
            names = [type(reply).__name__ for reply in desk.batch(*commands)]
            singly = [type(desk.batch(command)[0]).__name__ for command in commands]
            assert names == singly

    # A store as a whole.

    def test_nothing_is_left_of_messages_that_are_gone(self, desk: Desk) -> None:
        for number, settle in enumerate((desk.ack, desk.bury, desk.retry)):
            settle(desk.lease(f"m{number}", group="g", headers={"a": "b"}))
        desk.put("late", expires=0, at=START - 1)
        desk.put("far", delay=HOUR, group="g")
        desk.cancel("far", "m2")
        desk.purge("dead")
        desk.claim()
        desk.wait(EXPIRED_KEEP)
        desk.claim()
        counts = desk.counts()
        assert (counts.sizes, counts.kept, counts.oldest) == (Sizes(), 0, None)
        assert desk.scan() == desk.scan(group="g") == []
        assert desk.forecast(HOUR, 3).later == 0

    def test_a_store_is_as_durable_as_its_capabilities_say(
        self, desk: Desk, reopen: Callable[[Engine], Engine]
    ) -> None:
        desk.configure(keep=HOUR)
        lease = desk.lease("held", group="g")
        desk.bring("acked", "acked")
        desk.bring("dead", "dead")
        desk.put("far", delay=HOUR, headers={"a": "b"}, priority=7)
        ids = ("held", "acked", "dead", "far")
        before, counts = desk.find(*ids), desk.counts()
        desk.engine.close()
        engine = reopen(desk.engine)
        again = Desk(engine)
        if not engine.capabilities.durable:
            assert again.find(*ids) == [None] * 4
            return
        assert (again.find(*ids), again.counts()) == (before, counts)
        other = again.lease("other")
        assert other.token > lease.token
        assert again.ack(lease, other)
        engine.close()

    def test_closing_twice_does_nothing(self, desk: Desk) -> None:
        desk.put("a")
        desk.engine.close()
        desk.engine.close()

    def test_without_now_the_store_uses_its_own_clock(self, desk: Desk) -> None:
        item = Item("past", b"1", at=START), Item("future", b"1", delay=HOUR)
        claim = cmd.Claim("q", 5, HOUR, "w")
        desk.engine.execute([cmd.Put("q", list(item))])
        (reply,) = desk.engine.execute([claim])
        assert [message.id for message in getattr(reply, "messages", ())] == ["past"]

    def test_a_clock_that_was_set_back_loses_nothing_and_delivers_nothing_twice(
        self, bare: Desk
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

    def test_errors_are_bide_errors(self, desk: Desk) -> None:
        with pytest.raises(BideError):
            desk.batch(cmd.Scan("q", cursor="nonsense"))

    def test_every_transition_of_the_lifecycle_happens(self, desk: Desk) -> None:
        waiting: list[State] = ["delayed", "ready"]
        for before in [*waiting, "dead"]:
            for fields in ({"delay": HOUR + 1}, {"data": b"2"}, {"died": START + 1}):
                desk.bring("a", before)
                desk.put("a", on_conflict="replace", **fields)
                desk.cancel("a")
                desk.purge("dead")
        for before in waiting:
            for delay in (HOUR + 1, 0):
                desk.bring("a", before)
                desk.wait(1)
                desk.reschedule("a", delay=delay)
                desk.cancel("a")
                desk.bring("a", before)
                desk.wait(1)
                desk.edit("a", delay=delay)
                desk.cancel("a")
            desk.bring("a", before)
            desk.set_aside("a")
            desk.purge("dead")
        for delay in (HOUR, 0):
            desk.bring("a", "dead")
            desk.edit("a", data=b"2")
            desk.revive("a", delay=delay)
            desk.purge("delayed" if delay else "ready")
            desk.retry(desk.lease("a"), delay=delay)
            desk.cancel("a")
            desk.put("a", delay=delay, died=None if delay else START)
            desk.cancel("a")
            desk.purge("dead")
        for attempts in (1, 2):
            desk.retry(desk.lease("a", attempts=attempts))
            desk.purge("dead")
            desk.cancel("a")
            desk.lease("a", attempts=attempts)
            desk.release("a")
            desk.purge("dead")
            desk.cancel("a")
            lease = desk.lease("a", attempts=attempts)
            desk.extend(lease, lease=9)
            desk.wait(9)
            desk.claim(0)
            desk.purge("dead")
            desk.cancel("a")
        for delay in (HOUR, 0):
            for end in (desk.ack, desk.bury, desk.retry, partial(desk.retry, delay=5)):
                lease = desk.lease("a")
                desk.put("a", on_conflict="replace", delay=delay, latest=delay)
                end(lease)
                desk.cancel("a")
        desk.lease("a")
        desk.put("a", on_conflict="replace", latest=0)
        desk.cancel("a")
        desk.release("a")
        desk.cancel("a")
        desk.retry(desk.lease("a"), delay=5, release=True)
        desk.cancel("a")
        desk.retry(desk.lease("a"), release=True)
        desk.put("b", delay=5)
        desk.wait(5)
        desk.ack(*leases(desk.claim()))
        for keep in (HOUR, 0):
            desk.bring("a", "acked")
            desk.configure(keep=keep)
            desk.wait(1)
            desk.purge("acked")
            desk.bring("a", "expired")
            desk.wait(EXPIRED_KEEP if keep else 0)
            desk.claim()
            desk.purge("expired")
        assert set(TRANSITIONS) - desk.seen() == set()
