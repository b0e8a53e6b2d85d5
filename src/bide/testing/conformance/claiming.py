# ruff: noqa: D102  (the name of each case says what it checks)
"""Claim: which messages a worker gets, and when."""

from typing import Any

from bide.model.message import Failure, Item
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Died
from bide.testing.conformance.desk import HOUR, START, Desk, ids_of, leases

__all__ = ["ClaimCases"]

ORDERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "due": [("late", {"at": START - 2}), ("early", {"at": START - 9})],
    "ties": [(f"m{number}", {"at": START}) for number in range(24, -1, -1)],
    "first": [("light", {"at": START - 9}), ("heavy", {"at": START, "priority": 1})],
    "tie": [("light", {"at": START}), ("heavy", {"at": START, "priority": 200})],
    "backlog": [
        ("old", {"at": START - 50}), ("older", {"at": START - 90}),
        ("heavy", {"at": START - 1, "priority": 1}), ("top", {"at": START, "priority": 255}),
    ],
    "numbers": [(f"p{n}", {"at": START, "priority": n}) for n in (9, 100, 20, 255, 0)],
}  # fmt: skip
"""Messages that are due, in the order in which they are put."""


class ClaimCases:
    """What a claim promises."""

    def test_never_one_tick_early(self, desk: Desk) -> None:
        desk.put("a", delay=100)
        desk.wait(99)
        assert desk.take() == []
        desk.wait(1)
        assert desk.take() == ["a"]

    def test_a_claimed_message_tells_its_lease(self, desk: Desk) -> None:
        desk.put("a", delay=3)
        desk.wait(5)
        claimed = desk.claim(lease=700, holder="host:1")
        (message,) = claimed.messages
        assert (message.state, message.holder, message.until) == ("leased", "host:1", START + 705)
        assert (message.attempt, message.due, claimed.now) == (1, START + 3, START + 5)
        assert desk.get("a") == message

    def test_a_leased_message_goes_to_no_other_worker(self, desk: Desk) -> None:
        desk.put("a")
        desk.claim(lease=1_000)
        desk.wait(999)
        assert desk.take() == []

    def test_a_claim_of_none_takes_none(self, desk: Desk) -> None:
        desk.put("a")
        assert desk.claim(0) == Claimed([], 0, START, next=0)

    def test_the_token_grows_and_is_never_used_twice(self, desk: Desk) -> None:
        tokens = []
        for id in ("a", "b", "a", "c"):
            lease = desk.lease(id)
            tokens.append(lease.token)
            desk.ack(lease)
        assert tokens == sorted(set(tokens))
        assert tokens[0] > 0

    # Order.

    def test_due_messages_are_claimed_by_priority_then_due_time_then_order_of_puts(
        self, desk: Desk
    ) -> None:
        for name, puts in ORDERS.items():
            expected = sorted(puts, key=lambda put: (-put[1].get("priority", 0), put[1]["at"]))
            for count in (1, 2, 30):  # claims one by one rank a backlog; one claim takes it all
                one = desk.apart(f"{name}-{count}")
                for id, fields in puts:
                    one.put(id, **fields)
                taken = []
                while got := one.take(count):
                    assert len(got) <= count
                    taken += got
                assert taken == [id for id, _ in expected], name

    def test_lone_puts_and_batches_are_in_one_order(self, desk: Desk) -> None:
        put = ["z", "x", "y", "w", "u", "v", "t"]
        for ids in (put[:1], put[1:3], put[3:4], put[4:6], put[6:]):
            desk.put(*ids, at=START)
        assert desk.take() == put

    def test_priority_counts_only_among_due_messages(self, desk: Desk) -> None:
        desk.put("heavy", delay=1, priority=255)
        desk.put("a", "b", "c")
        assert desk.take(1) == ["a"]
        desk.wait(1)
        assert desk.take(1) == ["heavy"]

    def test_one_claim_ranks_a_limited_number(self, bare: Desk) -> None:
        bare.put(*(f"m{number:04}" for number in range(PROMOTE)), at=START - 9)
        bare.put("far", at=START - 8, priority=255)
        assert bare.take(1) == ["m0000"]
        assert bare.take(1) == ["far"]
        assert bare.take(1) == ["m0001"]
        assert bare.counts().sizes.ready == PROMOTE - 2

    def test_the_last_message_that_is_ranked_counts(self, bare: Desk) -> None:
        bare.put(*(f"m{number:04}" for number in range(PROMOTE - 1)), at=START - 9)
        bare.put("last", at=START - 8, priority=255)
        bare.put("beyond", at=START - 7)
        assert bare.take(1) == ["last"]

    def test_one_claim_returns_its_messages_by_priority(self, bare: Desk) -> None:
        bare.put("late", at=START - 9, expires=0)
        bare.put(*(f"m{number:04}" for number in range(1, PROMOTE)), at=START - 9)
        bare.put("far", at=START - 8, priority=255)
        # The claim meets the late one first: it may read twice, and further the second time.
        assert bare.take(2) in (["far", "m0001"], ["m0001", "m0002"])

    def test_a_large_claim_ranks_as_many_as_it_takes(self, bare: Desk) -> None:
        bare.put(*(f"m{number:04}" for number in range(PROMOTE + 200)), at=START - 9)
        bare.put("far", at=START - 8, priority=1)
        bare.put("further", at=START - 7)
        taken = bare.take(PROMOTE + 201)
        assert taken[0] == "far"
        assert len(taken) == PROMOTE + 201

    def test_a_backlog_is_delivered_whole(self, bare: Desk) -> None:
        ids = [f"m{number:04}" for number in range(2 * PROMOTE + 50)]
        bare.put(*ids[::2], at=START - 5)
        bare.put(*ids[1::2], at=START - 5, priority=3)
        taken = []
        while got := bare.take(300):
            taken += got
        assert sorted(taken) == ids
        assert taken[: PROMOTE // 2] == ids[1:PROMOTE:2]

    # When to ask again.

    def test_an_empty_claim_tells_what_is_next(self, desk: Desk) -> None:
        desk.put("a", delay=500)
        desk.put("b", delay=300)
        assert desk.claim().next == 300
        desk.wait(299)
        assert desk.claim().next == 1
        desk.wait(1)
        assert desk.claim(1, lease=100).next is None  # it is not empty
        assert desk.claim().next == 100  # the lease of b lapses before a is due
        other = desk.apart("other")
        other.bring("c", "dead")
        assert other.claim() == Claimed([], 0, START)  # nothing

    # Lapse.

    def test_a_lapsed_lease_is_redelivered_and_the_old_token_is_dead(self, desk: Desk) -> None:
        old = desk.lease("a")
        desk.wait(1_000)
        claimed = desk.claim(holder="w2")
        assert [(m.id, m.attempt, m.holder) for m in claimed.messages] == [("a", 2, "w2")]
        assert claimed.token > old.token
        assert not desk.ack(old)[0]
        assert desk.ack(*leases(claimed))[0]

    def test_a_lapse_is_a_failure(self, desk: Desk) -> None:
        desk.lease("a")
        desk.wait(1_700)
        (failure,) = desk.claim().messages[0].failures
        assert failure.attempt == 1
        assert failure.moment == START + 1_000
        assert failure.holder == "w1"
        assert "lapsed" in failure.reason
        assert desk.counts().flow.lapsed == 1

    def test_a_lapse_of_the_last_attempt_makes_a_dead_letter(self, desk: Desk) -> None:
        desk.lease("a", attempts=1)
        desk.wait(1_500)
        assert desk.claim() == Claimed([], 0, START + 1_500, died=[Died("a", 1, "w1")])
        message = desk.get("a")
        assert (message.state, message.attempt, message.ended) == ("dead", 1, START + 1_500)
        flow = desk.counts().flow
        assert (flow.lapsed, flow.died) == (1, 1)

    def test_a_claim_tells_of_dead_letters_beside_messages(self, desk: Desk) -> None:
        desk.put("a", "b", attempts=2)
        desk.claim(holder="w1")
        desk.wait(1_000)
        assert desk.claim(holder="w2").died == []
        desk.wait(1_000)
        desk.put("c")
        claimed = desk.claim(1, holder="w3")
        assert ids_of(claimed) == ["c"]
        assert sorted(claimed.died, key=lambda one: one.id) == [
            Died("a", 2, "w2"), Died("b", 2, "w2"),
        ]  # fmt: skip
        assert desk.claim().died == []

    def test_a_lapsed_message_keeps_its_due_time(self, desk: Desk) -> None:
        desk.lease("a")
        desk.wait(1_000)
        desk.put("b")
        assert desk.take(1) == ["a"]

    def test_a_lapse_is_collected_though_the_claim_is_full(self, desk: Desk) -> None:
        desk.lease("a")
        desk.put("b", at=START - 5)
        desk.wait(1_000)
        assert desk.take(1) == ["b"]
        assert desk.state("a") == "ready"

    def test_one_claim_collects_a_limited_number_of_lapses(self, bare: Desk) -> None:
        ids = [f"m{number:04}" for number in range(PROMOTE + 10)]
        bare.put(*ids, attempts=1)
        bare.take(len(ids))
        bare.wait(1_000)
        assert bare.claim(5).next == 0
        assert bare.counts().sizes.dead == PROMOTE
        assert bare.claim(5).next is None
        assert bare.counts().sizes.dead == PROMOTE + 10

    def test_only_the_last_twenty_failures_are_remembered(self, desk: Desk) -> None:
        failures = tuple(Failure(number, START, "w", "") for number in range(1, 21))
        desk.put("a", attempt=20, failures=failures, attempts=50)
        desk.claim()
        desk.wait(1_000)
        (message,) = desk.claim().messages
        assert [failure.attempt for failure in message.failures] == list(range(2, 22))

    # Expiry.

    def test_the_last_moment_before_expiry_still_delivers(self, desk: Desk) -> None:
        for expires in (5, 0):
            one = desk.apart(str(expires))
            one.put("a", "b", delay=10, expires=expires)
            one.wait(10 + expires)
            assert one.take(1) == ["a"]
            one.wait(1)
            assert one.take(1) == []

    def test_an_expired_message_is_not_delivered_but_counted_and_listed(self, desk: Desk) -> None:
        desk.put("a", delay=10, expires=5)
        desk.wait(16)
        assert desk.claim() == Claimed([], 0, desk.now)
        assert desk.scan("expired") == ["a"]
        message = desk.get("a")
        assert (message.state, message.ended) == ("expired", desk.now)
        counts = desk.counts()
        assert (counts.flow.expired, counts.kept, counts.sizes.total) == (1, 1, 0)

    def test_expired_messages_do_not_use_up_a_claim(self, desk: Desk) -> None:
        desk.put("late1", "late2", at=START - 9, expires=1)
        desk.put("b", "c")
        assert desk.take(2) == ["b", "c"]
        assert desk.scan("expired") == ["late1", "late2"]

    def test_one_claim_expires_a_limited_number(self, bare: Desk) -> None:
        ids = [f"m{number:04}" for number in range(PROMOTE + 5)]
        bare.put_items(Item(id, b"1", at=START - 9, expires=1) for id in ids)
        bare.put("good")
        assert bare.claim(1).next == 0
        assert bare.counts().flow.expired == PROMOTE
        assert bare.take(1) == ["good"]

    def test_a_lease_that_lapses_too_late_expires(self, desk: Desk) -> None:
        desk.lease("a", expires=500)
        desk.wait(1_000)
        assert desk.take() == []
        assert desk.state("a") == "expired"

    # Pause.

    def test_a_paused_queue_delivers_nothing_until_resumed(self, desk: Desk) -> None:
        desk.put("a")
        desk.configure(paused=True)
        assert desk.claim() == Claimed([], 0, START)
        desk.wait(HOUR)
        desk.configure(paused=False)
        assert desk.take() == ["a"]

    def test_a_paused_queue_takes_puts_and_settles_leases(self, desk: Desk) -> None:
        lease = desk.lease("a")
        desk.configure(paused=True)
        assert desk.put("b")[0]
        assert desk.extend(lease)[0]
        assert desk.ack(lease)[0]
