from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide import NewMessage
from bide.testing.clock import FakeClock
from tests.start import START

DUE = datetime.fromtimestamp(START / 1000 + 60, UTC)


def test_cancel_takes_back_what_nobody_holds(orders: Any) -> None:
    orders.put(1, id="a", delay=60)
    outcome = orders.cancel("a")
    assert outcome
    assert orders.get("a") is None
    assert orders.counts().flow.cancelled == 1


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
