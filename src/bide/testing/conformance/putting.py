# ruff: noqa: D102  (the name of each case says what it checks)
"""Put: new messages, known ids, replacing, importing; contents and names; queues share nothing."""

import json
from typing import Any

import pytest

from bide.model import body as bodies
from bide.model import replies as rep
from bide.model.limits import MAX_BODY
from bide.model.message import MAX_ATTEMPT, Failure, Item
from bide.testing.conformance.driver import HOUR, RICH, START, Driver, done, leases

GIVEN: dict[str, Any] = {
    **RICH,
    "attempt": 2,
    "failures": (Failure(1, 2, "w", "no"), Failure(2, 5, "w2", "!", 3)),
}
"""What can be given with a message beside its due time."""

PLAIN: dict[str, Any] = {name: getattr(Item("a", b"1"), name) for name in GIVEN}

ODD_IDS = [
    "x" * 512,
    "ü" * 256,
    "雪",
    "🦉",
    "a b",
    " ",
    "'",
    '"',
    "';--",
    "%",
    "_",
    "a%",
    "\\",
    "/",
    "?",
    "*",
    "[a]",
    "{}",
    "null",
    "true",
    "0",
    "-1",
    "1e1",
    "10",
    "9",
    "010",
    "1.0",
    "NaN",
    "0x1F",
    "\u2028",
    "\u0301e",
    "é",
    "\ufeff",
    "A",
    "a",
    "id:a",
    "0.0.0",
    "\U0010ffff",
    "\ue000",
]

BODIES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**53,
    1.5,
    1e300,
    "",
    "text",
    "ünï 雪 🦉",
    "nul \0",
    "\u2028",
    [],
    {},
    [1, [2, [3]]],
    {"a": {"b": [None]}},
    {"": 0},
    "1",
    "1e1",
    "null",
]

HEADERS: list[dict[str, str] | None] = [None, {}, {"a": "1", "": "", "ü": "雪'\""}]

BYTES = [b"", b"\0", b"\xff\xfe", b"1", b'{"a": 1}', bytes(range(256)), "ü".encode()]


class PutCases:
    """What a put promises."""

    def test_a_message_may_be_due_since_the_beginning_of_time(self, driver: Driver) -> None:
        assert driver.put("a", at=0) == [rep.Outcome("a", True, "ready", 0)]
        driver.replace("b", "c", at=0)
        assert driver.wake == 0
        assert driver.take() == ["a", "b", "c"]

    def test_all_fields_and_each_field_alone_come_back(self, driver: Driver) -> None:
        # An engine may know a shorter way for simple puts into a queue it has met before.
        for known in (0, 2):
            for fields in (GIVEN, *({name: value} for name, value in GIVEN.items())):
                own_driver = driver.apart(f"{'-'.join(fields)}{known}")
                for number in range(known):
                    own_driver.put(f"m{number}", at=START + HOUR)
                assert own_driver.put("a", **fields)[0]
                own_driver.shows("a", **{**PLAIN, **fields})
                own_driver.shows(
                    "a", queue=own_driver.queue, due=START, holder=None, until=None, ended=None
                )
                (message,) = own_driver.claim().messages
                assert (message.id, message.attempt) == ("a", fields.get("attempt", 0) + 1)

    def test_a_message_that_was_delivered_very_often_is_delivered_again(
        self, driver: Driver
    ) -> None:
        driver.put("a", attempt=MAX_ATTEMPT)
        (message,) = driver.claim(lease=10).messages
        assert message.attempt == MAX_ATTEMPT + 1
        driver.wait(11)
        assert driver.take() == []
        assert driver.get("a").state == "dead"

    # Replacing.

    def test_replace_with_a_version_of_an_unknown_id_stores_nothing(self, driver: Driver) -> None:
        for other in ("b", "c", "d"):
            assert driver.replace("a", if_version="0" * 16) == [rep.Outcome("a", False)]
            driver.put(other)

    # Contents and names.

    def test_bodies_and_headers_come_back_as_they_were(self, driver: Driver) -> None:
        contents: list[tuple[bytes, bool, Any, Any]]
        contents = [(*bodies.encode(body), body, None) for body in BODIES]
        contents += [(data, False, data, None) for data in BYTES]
        contents += [(b"1", True, 1, headers) for headers in HEADERS]
        for data, is_json, body, headers in contents:
            driver.put("a", data=data, json=is_json, headers=headers)
            driver.shows("a", body=body, json=is_json, data=data, headers=headers)
            claimed = driver.claim()
            assert claimed.messages == [driver.get("a")]
            driver.ack(*leases(claimed))

    @pytest.mark.parametrize("is_json", [True, False])
    def test_a_large_body_comes_back_whole(self, bare: Driver, is_json: bool) -> None:
        data = json.dumps("x" * (MAX_BODY - 2)).encode()
        assert len(data) == MAX_BODY
        bare.put("a", data=data, json=is_json)
        assert bare.claim().messages[0].data == data

    def test_an_odd_id_is_an_id_like_any_other(self, driver: Driver) -> None:
        for id in ODD_IDS:
            assert driver.put(id, id, delay=1, group=id)[0].id == id
            assert driver.reschedule(id, "other", delay=0)[0]
            assert driver.scan() == driver.scan(group=id) == driver.scan("ready") == [id]
            driver.shows(id, group=id)
            held_leases = driver.hold()
            assert driver.extend(*held_leases)[0]
            assert driver.bury(*held_leases)[0]
            assert driver.revive(id)[0]
            assert driver.cancel(id) == [rep.Outcome(id, True, due=START)]

    def test_odd_ids_and_groups_are_different_ids_and_groups(self, driver: Driver) -> None:
        assert all(driver.put_items(Item(id, b"1", group=id) for id in ODD_IDS))
        assert [m and m.id for m in driver.find(*ODD_IDS)] == ODD_IDS
        assert sorted(driver.scan(limit=3)) == sorted(ODD_IDS)
        for id in ODD_IDS[::2]:
            assert driver.scan(group=id) == [id]
            assert driver.cancel_where(group=id).count == 1
        assert driver.take(100) == ODD_IDS[1::2]

    def test_extreme_numbers_come_back_as_they_were(self, driver: Driver) -> None:
        far = 4_102_444_800_000  # 2100
        driver.put("a", at=far, priority=255, attempts=10_000, expires=far, attempt=9_999)
        driver.put("b", at=far, priority=0)
        driver.shows("a", due=far, priority=255, attempts=10_000, expires=far, attempt=9_999)
        assert driver.claim().next == far - START
        assert driver.wait(far - START).take() == ["a", "b"]

    def test_what_expires_before_its_retry_is_put_as_it_is(self, driver: Driver) -> None:
        driver.retry(driver.lease("a", expires=5), delay=20)
        driver.shows("a", due=START + 20, expires=-15)
        item = driver.get("a").as_item((), None)
        driver.cancel("a")
        assert done(driver.wait(9).put_items([item])) == [True]
        driver.shows("a", due=START + 20, expires=-15)
        assert driver.wait(11).take() == []
        assert driver.state("a") == "expired"

    # Queues apart.

    def test_a_queue_that_is_not_there_is_empty_and_is_not_made(self, driver: Driver) -> None:
        assert driver.find("a", "b") == [None, None]
        assert driver.page() == driver.page("ready") == rep.Page([], None)
        assert driver.count() == rep.Counts(rep.Sizes(), rep.Flow())
        assert driver.count(stored=True) == rep.Counts(rep.Sizes(), rep.Flow(), stored=0)
        assert driver.counts() == rep.Counts(rep.Sizes(), rep.Flow(), recount=rep.Sizes(), strays=0)
        assert driver.forecast(10, 2) == rep.Forecasted(START, 0, [0, 0], 0)
        assert driver.claim() == rep.Claimed([], 0, START)
        for dry_run in (False, True):
            assert driver.cancel_where(group="g", dry_run=dry_run) == rep.Affected(0)
        assert driver.purge("dead") == rep.Affected(0)
        assert driver.delete() == rep.Deleted(False)
        assert driver.queues() == []

    def test_two_queues_share_nothing(self, driver: Driver) -> None:
        for name, other in (("a", "a2"), ("b", "B"), ("c", "c/c"), ("d", "d."), ("e", "f")):
            driver_a, driver_b = driver.apart(name), driver.apart(other)
            driver_a.put("a", group="g", delay=5)
            driver_b.put("a", group="g", data=b"2", priority=9)
            assert (driver_a.get("a").body, driver_b.get("a").body) == (1, 2)
            assert driver_a.take() == []
            claimed = driver_b.claim()
            assert [message.queue for message in claimed.messages] == [other]
            assert not driver_a.ack(*leases(claimed))[0]
            assert driver_a.cancel_where(group="g").count == 1
            assert driver_b.ack(*leases(claimed))[0]
            assert driver_a.counts().flow == rep.Flow(put=1, cancelled=1)
            assert driver_b.counts().flow == rep.Flow(put=1, acked=1)
