import json
from collections.abc import Iterator
from typing import Any

import pytest

from bide import InvalidArgument, NewMessage
from bide.exports import commands_of
from bide.model.limits import IMPORT_LINES, MAX_BODY
from bide.testing.clock import FakeClock
from tests.start import START


@pytest.fixture
def full(orders: Any, clock: FakeClock) -> Any:
    """A queue with messages of every kind."""
    orders.put({"a": [1, "Grüße"]}, id="json", delay=60, priority=7, group="g")
    orders.put(b"\x00\xff", id="bytes", expires="1h", headers={"h": "v"}, attempts=1)
    orders.put("dead", id="dead", attempts=5)
    orders.put("tried", id="tried", attempts=5)
    orders.put("held", id="held", attempts=5, at=1_000_000_002)
    (held,) = orders.claim(1, lease="1h")
    assert held.id == "held"
    by_id = {delivery.id: delivery for delivery in orders.claim(3)}
    by_id["dead"].bury("broken")
    by_id["tried"].retry("10s", "no luck")
    by_id["bytes"].release()
    return orders


def test_a_queue_comes_back_as_it_was(full: Any, make: Any) -> None:
    lines = list(full.export())
    copy = make("copy")
    imported = copy.load(lines)
    assert (imported.stored, imported.kept) == (5, 0)
    assert sorted(copy.export()) == sorted(line.replace("orders", "copy") for line in lines)
    for before in full.scan():
        after = copy.get(before.id)
        for name in ("data", "json", "due", "priority", "attempts", "expires", "group", "headers"):
            assert getattr(after, name) == getattr(before, name), name
        assert after.failures == before.failures
    assert copy.get("dead").state == "dead"
    assert copy.get("dead").ended == full.get("dead").ended
    assert copy.get("json").state == "delayed"
    assert copy.audit()


def test_a_commit_of_an_import_is_bounded_in_bytes() -> None:
    line = json.dumps({"id": "a", "due": 1, "body": "x" * 900_000})
    commands = list(commands_of([line] * 25, "orders", MAX_BODY))
    assert [len(command.items) for command in commands] == [9, 9, 7]


def test_what_somebody_holds_is_ready_again_after_an_import(full: Any, make: Any) -> None:
    copy = make("copy")
    copy.load(full.export())
    held = copy.get("held")
    assert (held.state, held.attempt, held.holder) == ("ready", 0, None)


def test_the_attempts_that_failed_are_not_forgotten(full: Any, make: Any, clock: FakeClock) -> None:
    copy = make("copy")
    copy.load(full.export())
    clock.advance(10)
    copy.cancel_many(["held", "bytes"])
    (tried,) = copy.claim()
    assert (tried.id, tried.attempt, tried.message.error) == ("tried", 2, "no luck")


def test_a_second_import_changes_nothing(full: Any, make: Any) -> None:
    lines = list(full.export())
    copy = make("copy")
    copy.load(lines)
    copy.cancel("json")
    again = copy.load(lines)
    assert (again.stored, again.kept) == (1, 4)
    assert full.load(lines).stored == 0


def test_what_is_gone_and_only_remembered_is_not_exported(make: Any) -> None:
    orders = make(keep="1d")
    orders.put(1, id="a")
    orders.claim()[0].ack()
    assert list(orders.export()) == []


def test_lines_are_json_that_people_can_read(full: Any) -> None:
    lines = {line["id"]: line for line in map(json.loads, full.export())}
    assert lines["json"] == {
        "id": "json",
        "due": START + 60_000,
        "queue": "orders",
        "body": {"a": [1, "Grüße"]},
        "priority": 7,
        "attempts": 10,
        "group": "g",
        "created": START,
    }
    assert lines["bytes"]["bytes"] == "AP8="
    assert "body" not in lines["bytes"]
    assert lines["tried"]["failures"][0][3] == "no luck"


def test_lines_by_hand_need_little(orders: Any) -> None:
    imported = orders.load(
        ['{"id": "a", "due": 0, "body": null}', "", b' {"id":"b","due":9,"body":1}\n']
    )
    assert imported.stored == 2
    assert [delivery.body for delivery in orders.claim(2)] == [None, 1]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("no json", "JSON is malformed"),
        ('{"id": "a"}', "missing required field `due`"),
        ('{"id": "a", "due": 1}', "needs a `body`"),
        ('{"id": "a", "due": 1, "body": 1, "bytes": ""}', "needs a `body`"),
        ('{"id": "a", "due": 1, "bytes": "?"}', "base64"),
        ('{"id": "", "due": 1, "body": 1}', "id is 0 bytes long"),
        ('{"id": "a", "due": -1, "body": 1}', "`int` >= 0 - at `$.due`"),
        ('{"id": "a", "due": 4102444800001, "body": 1}', "`int` <= 4102444800000 - at `$.due`"),
        ('{"id": "a", "due": 1, "body": 1, "priority": 256}', "`int` <= 255 - at `$.priority`"),
        ('{"id": "a", "due": 1, "body": 1, "colour": 2}', "unknown field `colour`"),
        ('{"id": "a", "due": 1, "body": "' + "x" * 200 + '"}', "body takes 202 bytes"),
        (b'{"id": "\xff", "due": 1, "body": 1}', "line 3"),
    ],
)
def test_a_bad_line_is_named_by_its_number(make: Any, line: str | bytes, cause: str) -> None:
    orders = make(max_body=100)
    lines = ['{"id": "ok", "due": 1, "body": 1}', "", line, '{"id": "ok2", "due": 1, "body": 1}']
    with pytest.raises(InvalidArgument, match="line 3 is no message of an export") as raised:
        orders.load(lines)
    assert cause in str(raised.value)
    assert "fix the line and import again" in str(raised.value)


def test_lines_before_a_bad_one_are_in_the_queue_up_to_the_last_commit(orders: Any) -> None:
    good = [f'{{"id": "m{n}", "due": 1, "body": {n}}}' for n in range(IMPORT_LINES + 5)]
    with pytest.raises(InvalidArgument, match=f"line {IMPORT_LINES + 6} "):
        orders.load([*good, "bad"])
    assert orders.counts().sizes.ready == IMPORT_LINES


def test_an_import_reads_no_more_than_it_commits() -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(3 * IMPORT_LINES):
            read += 1
            yield f'{{"id": "m{number}", "due": 1, "body": 1}}'

    commands = commands_of(lines(), "orders", 100)
    for part in (1, 2, 3):
        assert len(next(commands).items) == IMPORT_LINES
        assert read == part * IMPORT_LINES
    assert list(commands) == []


def test_an_export_reads_no_more_than_it_is_asked_for(orders: Any) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n:04}", delay=9) for n in range(1_200)])
    export = iter(orders.export())
    next(export)
    orders.cancel_many([f"m{n:04}" for n in range(600, 1_200)])
    # Redis reads in no order: some of those that are gone were read with the first.
    assert 599 <= sum(1 for _ in export) < 1_199


def test_one_queue_pours_into_another(make: Any) -> None:
    source, target = make("source"), make("target")
    source.put_many([NewMessage(body=n, id=f"m{n}") for n in range(2_500)])
    lines = source.export()
    assert target.load(getattr(lines, "_target", lines)).stored == 2_500
