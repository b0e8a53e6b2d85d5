"""Deliveries and changes, by a queue of either face."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide import Closed, Empty, LeaseLost, NewMessage, WrongContext
from bide.testing.clock import FakeClock
from tests.start import START


def ids(found: Any) -> list[str]:
    return [one.id for one in found]


@pytest.fixture
def held(orders: Any) -> Any:
    orders.put({"order": 42}, id="a", attempts=3)
    (delivery,) = orders.claim(lease=30)
    return delivery


def test_a_delivery_tells_what_it_is(orders: Any, clock: FakeClock) -> None:
    orders.put({"order": 42}, id="a", delay=10)
    clock.advance(10.25)
    (delivery,) = orders.claim(lease="45s")
    assert (delivery.id, delivery.body, delivery.attempt) == ("a", {"order": 42}, 1)
    assert delivery.lateness == 0.25
    assert delivery.claimed == START + 10_250
    assert delivery.message.until == START + 55_250
    assert delivery.message.state == "leased"
    assert not delivery.settled
    assert "'a' of 'orders', attempt 1" in repr(delivery)


def test_a_claim_takes_as_many_as_are_due(orders: Any) -> None:
    orders.put_many(range(5))
    assert len(orders.claim(3)) == 3
    assert len(orders.claim(3)) == 2
    assert orders.claim(3) == []


def test_a_claim_waits_until_something_is_due(orders: Any, clock: FakeClock) -> None:
    clock.autojump = True
    orders.put(1, id="a", delay=7.5)
    (delivery,) = orders.claim(100, wait="10s")
    assert delivery.id == "a"
    assert clock.now() == START + 7_500


def test_a_claim_waits_until_a_pause_ends(orders: Any, clock: FakeClock) -> None:
    clock.autojump = True
    orders.put(1, id="a")
    end = datetime.fromtimestamp(START / 1000 + 7.5, UTC)
    assert orders.pause(until=end).paused_until == START + 7_500
    (delivery,) = orders.claim(100, wait="10s")
    assert delivery.id == "a"
    assert clock.now() == START + 7_500
    delivery.ack()
    assert orders.pause(lasting="1h").paused_until == START + 7_500 + 3_600_000
    assert orders.claim(wait="10s") == []
    assert not orders.pause(until=START / 1000).paused  # it is past: the queue is resumed
    with pytest.raises(bide.InvalidArgument, match="until= and lasting= cannot be combined"):
        orders.pause(until=end, lasting=1)


def test_a_claim_waits_no_longer_than_it_was_told(orders: Any, clock: FakeClock) -> None:
    clock.autojump = True
    orders.put(1, id="a", delay=60)
    assert orders.claim(wait="10s") == []
    assert clock.now() == START + 10_000


def test_the_token_grows_with_each_claim(orders: Any) -> None:
    orders.put_many(range(3))
    tokens = [orders.claim()[0].token for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_ack_makes_it_leave(orders: Any, held: Any) -> None:
    held.ack()
    assert held.settled
    assert orders.get("a") is None
    assert orders.counts().flow.acked == 1


def test_ack_many_at_once(orders: Any, clock: FakeClock) -> None:
    orders.put_many([bide.NewMessage(body=1, id=id) for id in "abc"])
    deliveries = orders.claim(3)
    deliveries[1].release()
    assert [bool(o) for o in orders.ack(deliveries)] == [True, False, True]
    assert [d.settled for d in deliveries] == [True, True, True]
    assert orders.ack([]) == []
    assert orders.counts().sizes.ready == 1


def test_retry_tries_again_later_and_remembers_why(
    orders: Any, held: Any, clock: FakeClock
) -> None:
    held.retry(delay="1m", reason="no route")
    assert orders.get("a").state == "delayed"
    clock.advance(60)
    (again,) = orders.claim()
    assert (again.attempt, again.message.error) == (2, "no route")
    assert again.message.failures[0].attempt == 1


def test_the_last_attempt_makes_a_dead_letter(orders: Any, held: Any) -> None:
    held.retry(reason="one")
    orders.claim()[0].retry(reason="two")
    orders.claim()[0].retry(reason="three")
    (dead,) = orders.dead()
    assert [failure.reason for failure in dead.failures] == ["one", "two", "three"]
    assert orders.claim() == []


def test_bury_sets_aside_and_revive_brings_back(orders: Any, held: Any, clock: FakeClock) -> None:
    held.bury("broken body")
    assert ids(orders.dead()) == ["a"]
    assert [bool(outcome) for outcome in orders.revive(["a", "b"])] == [True, False]
    assert orders.claim()[0].attempt == 1


def test_revive_all_and_one_and_later(orders: Any, clock: FakeClock) -> None:
    orders.put_many([bide.NewMessage(body=1, id=id) for id in "abc"])
    assert all(orders.bury(orders.claim(3), "no"))
    assert len(orders.revive("b")) == 1
    assert [outcome.due for outcome in orders.revive(delay="1m")] == [START + 60_000] * 2
    assert list(orders.dead()) == []
    clock.advance(60)
    assert len(orders.claim(9)) == 3
    assert orders.audit()


def test_release_hands_back_untouched(orders: Any, held: Any) -> None:
    held.release()
    assert orders.get("a").state == "ready"
    assert orders.claim()[0].attempt == 1


def test_extend_holds_it_for_longer(orders: Any, held: Any, clock: FakeClock) -> None:
    clock.advance(29)
    held.extend("30s")
    assert not held.settled
    clock.advance(29)
    held.ack()


def test_many_are_retried_released_and_extended_at_once(orders: Any, clock: FakeClock) -> None:
    orders.put_many(range(6))
    deliveries = orders.claim(6)
    assert all(orders.extend(deliveries, 90))
    assert all(orders.retry(deliveries[:2], "1m", "why"))
    assert all(orders.release(deliveries[2:4]))
    assert orders.retry([], 1) == []
    sizes = orders.counts().sizes
    assert (sizes.delayed, sizes.ready, sizes.leased) == (2, 2, 2)


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
def test_after_the_lease_has_lapsed_each_verb_says_so(
    orders: Any, held: Any, clock: FakeClock, verb: str
) -> None:
    clock.advance(30)
    with pytest.raises(LeaseLost, match=r"a could not be .*: the lease is over, .* a longer lease"):
        getattr(held, verb)()
    assert not held.settled
    assert orders.get("a").state == "ready"
    assert orders.claim()[0].attempt == 2


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
def test_what_another_holds_now_cannot_be_settled(
    orders: Any, held: Any, clock: FakeClock, make: Any, verb: str
) -> None:
    clock.advance(30)
    (other,) = make(holder="somebody else").claim()
    with pytest.raises(LeaseLost, match="it went to somebody else"):
        getattr(held, verb)()
    other.ack()
    assert orders.counts().flow.acked == 1


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
def test_what_is_settled_cannot_be_settled_again(orders: Any, held: Any, verb: str) -> None:
    held.ack()
    with pytest.raises(LeaseLost, match="the message was settled already"):
        getattr(held, verb)()


def test_a_lease_of_before_a_replay_is_no_good(orders: Any, held: Any, clock: FakeClock) -> None:
    held.retry()
    with pytest.raises(LeaseLost, match="the message is ready again"):
        held.ack()


# Take.


def test_take_acks_when_the_block_succeeds(orders: Any) -> None:
    orders.put("pay me", id="a")
    with orders.take(wait=5) as delivery:
        assert delivery.body == "pay me"
    assert orders.counts().flow.acked == 1


def test_take_waits_for_ever_by_default(orders: Any, clock: FakeClock) -> None:
    clock.autojump = True
    orders.put(1, delay="8s")
    with orders.take() as delivery:
        assert delivery.lateness == 0
    assert orders.counts().flow.acked == 1


def test_take_waits_on_when_another_message_dies(orders: Any, clock: FakeClock) -> None:
    clock.autojump = True
    orders.put("left by a killed worker", id="dies", attempts=1)
    orders.claim(lease=2)
    orders.put("later", delay="8s")
    with orders.take() as delivery:
        assert delivery.body == "later"
    assert orders.get("dies").state == "dead"


def test_take_tells_when_nothing_came(orders: Any, clock: FakeClock) -> None:
    clock.autojump = True
    with pytest.raises(Empty, match="no message of queue 'orders' fell due within 5 s"):
        with orders.take(wait=5):
            pytest.fail("the block must not run")


def test_take_tries_again_after_an_exception(orders: Any, clock: FakeClock) -> None:
    orders.put(1, id="a")
    with pytest.raises(ZeroDivisionError):
        with orders.take(wait=5, retry="1m"):
            1 / 0  # noqa: B018
    message = orders.get("a")
    assert (message.state, message.due) == ("delayed", START + 60_000)
    assert message.error == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_take_hands_back_untouched_when_the_program_is_interrupted(
    orders: Any, error: type[BaseException]
) -> None:
    orders.put(1, id="a")
    with pytest.raises(error):
        with orders.take(wait=5):
            raise error
    assert orders.get("a").state == "ready"
    assert orders.claim()[0].attempt == 1


def test_take_leaves_alone_what_was_settled_by_hand(orders: Any) -> None:
    orders.put(1, id="a")
    with orders.take(wait=5) as delivery:
        delivery.bury("by hand")
    assert orders.get("a").state == "dead"
    orders.revive("a")
    with pytest.raises(ValueError, match="after the ack"):  # noqa: PT012
        with orders.take(wait=5) as delivery:
            delivery.ack()
            raise ValueError("after the ack")
    assert orders.get("a") is None


def test_take_says_that_the_lease_was_over_before_the_block_was(
    orders: Any, clock: FakeClock
) -> None:
    orders.put(1, id="a")
    with pytest.raises(LeaseLost, match="could not be acked"):
        with orders.take(wait=5, lease=30):
            clock.advance(31)
    assert orders.get("a").state == "ready"


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), KeyboardInterrupt()])
def test_what_went_wrong_in_the_block_counts_more_than_a_lost_lease(
    orders: Any, clock: FakeClock, error: BaseException
) -> None:
    orders.put(1, id="a")
    with pytest.raises(type(error)) as raised:  # noqa: PT012
        with orders.take(wait=5, lease=30):
            clock.advance(31)
            raise error
    assert "a was not given back: a could not be" in raised.value.__notes__[0]
    assert orders.get("a").state == "ready"


def test_what_went_wrong_in_the_block_counts_more_than_that_it_closed_the_queue(
    make: Any, orders: Any
) -> None:
    make().put(1, id="a")
    with pytest.raises(ZeroDivisionError) as raised:  # noqa: PT012
        with orders.take(wait=5):
            orders.close()
            1 / 0  # noqa: B018
    assert "a was not given back: queue 'orders' was closed" in raised.value.__notes__[0]


def test_a_take_whose_block_closed_the_queue_needs_it_only_to_settle(
    make: Any, orders: Any
) -> None:
    make().put_many([1, 2])
    with make() as other, other.take(wait=5) as delivery:
        delivery.ack()
        other.close()
    with pytest.raises(Closed, match="'orders' was closed"):
        with orders.take(wait=5):
            orders.close()


def test_one_take_is_for_one_block_at_a_time(orders: Any) -> None:
    orders.put_many([1, 2])
    take = orders.take(wait=5)
    with take as first:
        with pytest.raises(WrongContext, match=r"in use by another block.*call queue.take\(\)"):
            take.__enter__()
    assert first.settled
    with take as second:
        assert second.id != first.id
    assert orders.counts().flow.acked == 2


def test_a_take_that_found_nothing_can_be_entered_again(orders: Any) -> None:
    take = orders.take(wait=0)
    with pytest.raises(Empty):
        take.__enter__()
    orders.put(1)
    with take as delivery:
        assert delivery.body == 1


def test_an_error_with_odd_characters_can_be_remembered(orders: Any) -> None:
    orders.put(1, id="a")
    with pytest.raises(OSError, match="caf"):
        with orders.take(wait=5):
            raise OSError("no such file: caf\udce9 \x00")
    assert orders.get("a").error == "OSError: no such file: caf\\udce9 \x00"


def test_a_group_of_errors_is_named_by_its_first(orders: Any) -> None:
    orders.put(1, id="a")
    several = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no card"), OSError()])
    with pytest.raises(ExceptionGroup), orders.take(wait=1):
        raise several
    assert orders.get("a").error == "ValueError: no card (in an ExceptionGroup of 2)"


DUE = datetime.fromtimestamp(START / 1000 + 60, UTC)


def test_cancel_takes_back_what_nobody_holds(orders: Any) -> None:
    orders.put(1, id="a", delay=60)
    outcome = orders.cancel("a")
    assert outcome
    assert orders.get("a") is None
    assert orders.counts().flow.cancelled == 1


def test_a_cancel_that_waits_sees_the_end_of_a_lease(orders: Any, clock: FakeClock) -> None:
    """Though nobody claims: the only worker has died."""
    clock.autojump = True
    orders.put(1, id="a")
    orders.claim(lease=2)
    outcome = orders.cancel("a", running=True, wait="5s")
    assert (bool(outcome), str(outcome)) == (True, "a is cancelled")
    assert orders.counts().flow.cancelled == 1


def test_a_cancel_that_waits_leaves_alone_what_is_held(orders: Any, clock: FakeClock) -> None:
    clock.autojump = True
    orders.put(1, id="a")
    (delivery,) = orders.claim(lease=60)
    assert orders.cancel("a", running=True, wait="5s").state == "stopping"
    delivery.ack()
    assert orders.counts().flow.acked == 1


def test_delete_of_an_empty_queue(orders: Any) -> None:
    assert not orders.delete()
    orders.pause()
    assert orders.delete()
    assert not orders.counts().paused
    orders.put(1, id="a")
    with pytest.raises(bide.NotEmpty, match="not deleted: 1 ready"):
        orders.delete()
    orders.cancel("a")
    assert orders.delete()


def test_cancel_too_late_says_where_the_message_is(orders: Any, clock: FakeClock) -> None:
    orders.put(1, id="a")
    (delivery,) = orders.claim(lease=30)
    held = orders.cancel("a")
    assert not held
    assert (held.state, held.until) == ("leased", START + 30_000)
    refused = "a was not cancelled"
    assert str(held) == f"{refused}: worker {held.holder} holds it until 2023-11-14 22:13:50 UTC"
    delivery.ack()
    gone = orders.cancel("a")
    assert (gone.done, gone.state, str(gone)) == (False, None, f"{refused}: it is not in the queue")


def test_cancel_only_what_was_seen(orders: Any) -> None:
    orders.put(1, id="a", delay=60)
    assert not orders.cancel("a", if_due=DUE + timedelta(seconds=1))
    assert orders.get("a").state == "delayed"
    assert orders.cancel("a", if_due=DUE)


def test_replace_only_what_was_seen(orders: Any, clock: FakeClock) -> None:
    def put(body: str, seen: str) -> Any:
        return orders.put(body, id="a", delay=60, on_conflict="replace", if_version=seen)

    assert not put("new", "0" * 16)
    assert orders.get("a") is None
    orders.put("first", id="a", delay=60)
    seen = orders.get("a").version
    assert put("second", seen)
    late = put("third", seen)
    assert (late.done, late.state, late.due) == (False, "delayed", START + 60_000)
    assert orders.get("a").body == "second"
    clock.advance(60)
    seen = orders.get("a").version
    (delivery,) = orders.claim()
    assert put("third", seen).state == "leased"
    delivery.ack()
    assert put("third", seen).state is None
    assert orders.counts().sizes.total == 0


def test_cancel_and_move_only_what_was_seen(orders: Any) -> None:
    orders.put(1, id="a", delay=60)
    seen = orders.get("a").version
    assert orders.reschedule("a", delay=90, if_version=seen)
    assert not orders.reschedule("a", delay=120, if_version=seen)
    assert not orders.cancel("a", if_version=seen)
    moved = orders.get("a")
    assert (moved.due, moved.version != seen) == (START + 90_000, True)
    assert not orders.cancel("a", if_version=moved.version, if_due=DUE)
    assert orders.cancel("a", if_version=moved.version, if_due=moved.due_at)


def test_cancel_many_ids_with_one_commit(orders: Any) -> None:
    orders.put_many([NewMessage(body=1, id=id) for id in "abc"])
    outcomes = orders.cancel_many(["a", "x", "c"])
    assert [(o.id, o.done) for o in outcomes] == [("a", True), ("x", False), ("c", True)]
    assert [message.id for message in orders.scan()] == ["b"]


def test_cancel_a_group(orders: Any) -> None:
    for number in range(3):
        orders.put(1, group="order:42", delay=number)
    orders.put(1, id="other", group="order:43")
    assert orders.cancel(group="order:42", dry_run=True) == 3
    assert orders.counts().sizes.total == 4
    assert orders.cancel(group="order:42") == 3
    assert orders.cancel(group="order:42") == 0
    assert [message.id for message in orders.scan()] == ["other"]


def test_cancel_a_span_of_time(orders: Any) -> None:
    orders.put_many([NewMessage(body=1, id=f"m{n}", delay=n) for n in range(10)])
    after, before = START / 1000 + 3, START / 1000 + 6
    assert orders.cancel(after=after, before=before, dry_run=True) == 3
    assert orders.cancel(after=after, before=before) == 3
    assert orders.get("m3") is None
    assert orders.get("m6").state == "delayed"
    assert orders.cancel(after=before) == 4
    assert orders.cancel(before=before) == 3
    assert orders.counts().sizes.total == 0


def test_cancel_a_span_of_a_group(orders: Any) -> None:
    orders.put_many([NewMessage(body=1, id=f"m{n}", delay=n, group="g") for n in range(4)])
    orders.put(1, id="other", delay=3)
    assert orders.cancel(group="g", after=START / 1000 + 2) == 2
    assert sorted(message.id for message in orders.scan()) == ["m0", "m1", "other"]


def test_cancel_by_rule_goes_on_until_nothing_is_left(orders: Any) -> None:
    orders.put_many(range(2_345), delay=60, group="big")
    orders.put(1, group="big")
    orders.claim()
    assert orders.cancel(group="big") == 2_345
    assert orders.counts().sizes.leased == 1


def test_reschedule_moves_a_message(orders: Any, clock: FakeClock) -> None:
    orders.put(1, id="a", delay=60)
    outcome = orders.reschedule("a", delay="10s")
    assert (outcome.done, outcome.due) == (True, START + 10_000)
    assert orders.reschedule("a", at=DUE).due == START + 60_000
    clock.advance(59.999)
    assert orders.claim() == []
    clock.advance(0.001)
    assert len(orders.claim()) == 1


def test_reschedule_only_what_was_seen_and_what_nobody_holds(orders: Any) -> None:
    orders.put(1, id="a", delay=60)
    assert not orders.reschedule("a", delay=1, if_due=START / 1000)
    assert orders.reschedule("a", delay=0, if_due=DUE)
    orders.claim()
    held = orders.reschedule("a", delay=1)
    assert (held.done, held.state) == (False, "leased")
    assert not orders.reschedule("nobody", delay=1)


def test_pause_and_resume(orders: Any, make: Any) -> None:
    orders.put(1, id="a")
    orders.pause()
    assert orders.counts().paused
    assert make("orders").claim() == []
    assert orders.put(2)
    orders.resume()
    assert len(orders.claim(5)) == 2


def test_purge_deletes_a_state(orders: Any) -> None:
    orders.put_many(range(3), delay=60)
    orders.put_many(range(4))
    (held,) = orders.claim()
    held.bury("no use")
    assert orders.purge(state="ready") == 3
    assert orders.purge(state="delayed", before=START / 1000 + 60) == 0
    assert orders.purge(state="delayed", before=START / 1000 + 61) == 3
    assert orders.purge(state="dead") == 1
    assert orders.counts().flow.purged == 7
    assert orders.audit()


def test_purge_goes_on_until_nothing_is_left(orders: Any) -> None:
    orders.put_many(range(2_100), delay=60)
    assert orders.purge(state="delayed") == 2_100


def test_keep_remembers_what_was_acked_and_refuses_its_id(make: Any, clock: FakeClock) -> None:
    orders = make(keep="1d")
    orders.put(1, id="a")
    orders.claim()[0].ack()
    again = orders.put(1, id="a")
    assert (again.done, again.state) == (False, "acked")
    assert [message.id for message in orders.scan("acked")] == ["a"]
    assert (orders.counts().kept, orders.counts().keep) == (1, 86_400_000)
    clock.advance(86_400)
    assert orders.put(1, id="a")


def test_keep_is_the_queues_own_and_for_all_who_use_it(make: Any) -> None:
    make(keep="1h").put(1, id="a")
    other = make()
    other.claim()[0].ack()
    assert not other.put(1, id="a")
    assert make("elsewhere").counts().keep == 0


def test_nothing_is_kept_by_default(orders: Any) -> None:
    orders.put(1, id="a")
    orders.claim()[0].ack()
    assert orders.put(1, id="a")


@pytest.mark.parametrize("state", ["acked", "expired"])
def test_what_is_remembered_can_be_purged_and_counts_as_nothing(
    make: Any, clock: FakeClock, state: str
) -> None:
    orders = make(keep="1d")
    orders.put(1, id="a", expires="1s")
    if state == "acked":
        orders.claim()[0].ack()
    else:
        clock.advance(2)
        orders.claim()
    assert orders.purge(state=state) == 1
    assert orders.counts().flow.purged == 0
    assert orders.audit()
