from datetime import UTC, datetime

import msgspec
import pytest

from bide.model.message import KEPT_FAILURES, Failure, Item, Message, NewMessage, remember


def message(**fields: object) -> Message:
    given = {"id": "a", "queue": "q", "data": b"[1]", "json": True, "due": 1_000, "priority": 0}
    return Message(**{**given, "attempt": 0, "attempts": 3, "state": "ready", **fields})  # type: ignore[arg-type]


def test_the_body_is_decoded_anew_at_each_access() -> None:
    one = message()
    assert one.body == [1]
    assert one.body is not one.body
    assert message(data=b"[1]", json=False).body == b"[1]"


def test_due_as_a_datetime_is_aware() -> None:
    assert message(due=1_893_456_000_000).due_at == datetime(2030, 1, 1, tzinfo=UTC)


def test_the_error_is_the_reason_of_the_last_failure() -> None:
    failures = (Failure(1, 5, "w", "first"), Failure(2, 6, "w", "last"))
    assert message().error is None
    assert message(failures=failures).error == "last"


@pytest.mark.parametrize("count", [0, 1, KEPT_FAILURES - 1, KEPT_FAILURES, KEPT_FAILURES + 5])
def test_the_last_failures_are_remembered(count: int) -> None:
    failures: tuple[Failure, ...] = ()
    for number in range(count):
        failures = remember(failures, Failure(number, 0, "", ""))
    kept = range(max(0, count - KEPT_FAILURES), count)
    assert [failure.attempt for failure in failures] == list(kept)


def test_messages_travel_as_json() -> None:
    item = Item("a", b"\xff", json=False, failures=(Failure(1, 2, "w", "r"),), headers={"a": "b"})
    assert msgspec.json.decode(msgspec.json.encode(item), type=Item) == item
    seen = message(failures=(Failure(1, 2, "w", "r"),), group="g")
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Message) == seen


def test_a_new_message_takes_its_body_by_name_only_as_struct_but_reads_like_put() -> None:
    new = NewMessage(body={"order": 42}, delay="30m", id="order-42")
    assert (new.id, new.delay, new.attempts) == ("order-42", "30m", 10)
