"""What records of counters say of each slot: rates, gaps, and queues that were made again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.past import (
    KEPT_SLOTS,
    Past,
    PastSlot,
    past_command,
    slot_id,
    slot_start,
)
from bide.observing.past import (
    LATEST_START,
    Counters,
    PastRecord,
    encode_record,
    hours_between,
    minutes_between,
    record_in,
    slot_between,
)
from bide.observing.recorder import MOST_LOOKED_AT, looked_at, most_used
from bide.observing.tally import BOUNDS, Histogram

MINUTE, HOUR = 60_000, 3_600_000


def counters(put: int = 0, acked: int = 0, **others: int) -> Counters:
    names = ("cancelled", "expired", "died", "retried", "lapsed")
    return Counters(put, acked, *(others.get(name, 0) for name in names))


def record(at: int, left_out: int = 0, late: Any = None, **queues: Counters) -> PastRecord:
    return PastRecord(at, queues, late or {}, left_out)


def late(*seconds: float) -> list[int]:
    histogram = Histogram()
    histogram.observe(*seconds)
    return histogram.buckets


def test_a_slot_is_the_difference_of_two_records() -> None:
    before = record(0, orders=counters(10, 5, retried=1))
    after = record(MINUTE, orders=counters(15, 8, cancelled=1, died=2, retried=2, lapsed=1))
    assert slot_between(before, after, {"orders": late(0.004, 0.2)}) == PastSlot(
        put=5, done=3, failed=4, cancelled=1, died=2, delivered=2, p50=5.0, p99=250.0
    )


def test_several_queues_are_added_up() -> None:
    before = record(0, orders=counters(1), mail=counters(2))
    after = record(MINUTE, orders=counters(2), mail=counters(4), new=counters(8))
    slot = slot_between(before, after, {"orders": late(0.001), "mail": late(7_200)})
    assert slot is not None
    assert (slot.put, slot.delivered, slot.p50, slot.p99) == (11, 2, 1.0, None)


def test_a_queue_that_was_made_again_gives_no_number() -> None:
    before = record(0, orders=counters(10, 10))
    assert slot_between(before, record(MINUTE, orders=counters(3)), {}) is None
    assert slot_between(before, record(MINUTE), {}) is None
    beside = record(MINUTE, orders=counters(3), mail=counters(4))
    slot = slot_between(before, beside, {})
    assert slot is not None
    assert slot.put == 4


def test_a_queue_that_is_new_has_begun_with_nothing_unless_queues_were_left_out() -> None:
    after = record(MINUTE, orders=counters(3))
    slot = slot_between(record(0), after, {})
    assert slot is not None
    assert slot.put == 3
    assert slot_between(record(0, left_out=1), after, {}) is None


def test_a_queue_that_does_not_exist_had_nothing_unless_queues_were_left_out() -> None:
    assert slot_between(record(0), record(MINUTE), {}) == PastSlot()
    assert slot_between(record(0), record(MINUTE, left_out=1), {}) is None


def test_a_gap_is_no_zero() -> None:
    records = {
        number * MINUTE: record(number * MINUTE + 5, orders=counters(number))
        for number in (0, 1, 4, 5)
    }
    slots = minutes_between(records, range(0, 6 * MINUTE, MINUTE))
    assert [None if slot is None else slot.put for slot in slots] == [1, None, None, None, 1, None]


def test_an_hour_is_between_two_records_of_hours() -> None:
    records = {
        0: record(5, orders=counters(1)),
        HOUR: record(HOUR + 5, orders=counters(61), late={"orders": late(0.5)}),
    }
    first, second = hours_between(records, {}, [0, HOUR])
    assert first is not None
    assert (first.put, first.p99) == (60, 500.0)
    assert second is None


def test_the_hour_under_way_ends_at_its_last_minute() -> None:
    records = {0: record(5, orders=counters(1))}
    minutes = {
        number * MINUTE: record(
            number * MINUTE + 5, orders=counters(1 + number), late={"orders": late(0.5)}
        )
        for number in (1, 2, 3)
    }
    (slot,) = hours_between(records, minutes, [0])
    assert slot is not None
    assert (slot.put, slot.delivered) == (3, 3)


def test_an_hour_does_not_end_with_a_record_that_came_late() -> None:
    records = {0: record(5, orders=counters(1)), HOUR: record(HOUR + LATEST_START)}
    assert hours_between(records, {}, [0]) == [None]


Flows = st.lists(st.integers(0, 50), min_size=7, max_size=7)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), Flows), min_size=2), st.integers(0, 2))
def test_no_number_is_ever_negative(flows: list[dict[str, list[int]]], left_out: int) -> None:
    records = {
        number * MINUTE: record(
            number * MINUTE, left_out, **{name: Counters(*flow) for name, flow in queues.items()}
        )
        for number, queues in enumerate(flows)
    }
    for slot in minutes_between(records, records):
        if slot is not None:
            values = slot.put, slot.done, slot.failed, slot.cancelled, slot.expired, slot.died
            assert min(values) >= 0


def stored(data: bytes) -> Message:
    return Message(
        "minute-0", "bide:past", data, True, 0, priority=0, attempt=0, attempts=1, state="delayed"
    )


def test_a_record_of_an_earlier_round_is_not_of_this_slot() -> None:
    data = encode_record(record(5, orders=counters(1), mail=counters(2)))
    known = record_in(stored(data), 0, "minute", lambda name: name == "orders")
    assert known == record(5, orders=counters(1))
    round_later = (KEPT_SLOTS["minute"] + 1) * MINUTE
    assert slot_id(0, "minute") == slot_id(round_later, "minute")
    assert record_in(stored(data), round_later, "minute", lambda name: True) is None
    assert record_in(None, 0, "minute", lambda name: True) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"[]",
        b'{"at": 5, "queues": {"orders": [1]}}',
        b'{"at": 5, "queues": {"orders": [1, 2, 3, 4, 5, 6, -7]}}',
        b'{"at": 5, "queues": {}, "late": {"orders": [1]}}',
    ],
)
def test_what_cannot_be_read_is_no_record(data: bytes) -> None:
    assert record_in(stored(data), 0, "minute", lambda name: True) is None


def test_a_place_has_one_slot_of_a_round() -> None:
    for by, length in (("minute", MINUTE), ("hour", HOUR)):
        count = KEPT_SLOTS[by] + 1  # type: ignore[index]
        ids = {slot_id(number * length, by) for number in range(count)}  # type: ignore[arg-type]
        assert len(ids) == count
    assert slot_start(HOUR + 61_000, "hour") == HOUR


@pytest.mark.parametrize(
    ("span", "by", "slots", "chosen"),
    [
        ("1h", None, 60, "minute"),
        ("3h", None, 180, "minute"),
        ("24h", None, 24, "hour"),
        ("24h", "minute", 1_440, "minute"),
        ("30d", None, 720, "hour"),
        ("90s", None, 2, "minute"),
        (0, None, 1, "minute"),
    ],
)
def test_a_span_has_so_many_slots(span: Any, by: Any, slots: int, chosen: str) -> None:
    command = past_command("orders", span, by)
    assert (command.slots, command.by) == (slots, chosen)


@pytest.mark.parametrize(
    ("span", "by", "text"),
    [
        ("25h", "minute", "longer than the 1d for which minutes are kept"),
        ("31d", None, "longer than the 30d for which hours are kept"),
        ("1h", "day", "by='day' must be 'minute' or 'hour'"),
        ("soon", None, "span='soon' is not a valid duration"),
    ],
)
def test_a_span_must_be_kept(span: Any, by: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        past_command("orders", span, by)


def test_an_empty_past_says_why() -> None:
    assert Past(0, MINUTE, [None]).why_empty == "no worker or server has recorded yet"
    begun = Past(0, MINUTE, [None], recorded=1).why_empty
    assert begun is not None
    assert begun.startswith("recording has just begun")
    left_out = Past(0, MINUTE, [None], recorded=1, left_out=1_234).why_empty
    assert left_out is not None
    assert "1,234 queues are left out" in left_out
    assert Past(0, MINUTE, [None, PastSlot()]).why_empty is None


def test_iterating_gives_times_and_slots() -> None:
    past = Past(MINUTE, MINUTE, [None, PastSlot(put=1)])
    assert [(time.timestamp(), slot) for time, slot in past] == [
        (60, None),
        (120, PastSlot(put=1)),
    ]


def test_the_busiest_queues_of_each_namespace_are_chosen() -> None:
    flows = {f"noisy/{number:03}": counters(1_000 + number) for number in range(300)}
    flows |= {"quiet/orders": counters(1), "mail": counters(2)}
    chosen = most_used(flows, 4)
    assert chosen == ["mail", "noisy/298", "noisy/299", "quiet/orders"]


def test_queues_that_are_left_out_are_looked_at_in_turn() -> None:
    queues = [f"q{number:04}" for number in range(1_000)]
    recorded = queues[:100]
    seen: set[str] = set()
    for turn in range(5):
        counted = looked_at(queues, recorded, turn)
        assert counted[:100] == recorded
        assert len(counted) == 100 + MOST_LOOKED_AT
        seen |= set(counted)
    assert seen == set(queues)


def test_buckets_are_those_of_histograms() -> None:
    assert len(late(0.1)) == len(BOUNDS) + 1
