# ruff: noqa: D102  (the name of each case says what it checks)
"""Put: new messages, known ids, replacing, importing; contents and names; queues share nothing."""

import json
from typing import Any

import pytest

from bide.model import body as bodies
from bide.model import commands as cmd
from bide.model.limits import MAX_BODY
from bide.model.message import Failure, Item, State
from bide.model.replies import (
    Affected,
    Claimed,
    Counts,
    Deleted,
    Flow,
    Forecasted,
    Outcome,
    Outcomes,
    Page,
    Sizes,
    expect,
)
from bide.model.times import to_datetime
from bide.testing.conformance.driver import HOUR, START, Driver, leases

__all__ = ["PutCases"]

GIVEN: dict[str, Any] = {
    "data": b'"x"', "json": False, "priority": 9, "expires": 50, "attempts": 3, "group": "g",
    "headers": {"a": "b"}, "attempt": 2,
    "failures": (Failure(1, 2, "w", "no"), Failure(2, 5, "w2", "!", 3)),
}  # fmt: skip
"""What can be given with a message beside its moment."""

PLAIN: dict[str, Any] = {name: getattr(Item("a", b"1"), name) for name in GIVEN}

ODD_IDS = [
    "x" * 512, "ü" * 256, "雪", "🦉", "a b", " ", "'", '"', "';--", "%", "_", "a%", "\\", "/", "?",
    "*", "[a]", "{}", "null", "true", "0", "-1", "1e1", "10", "9", "010", "1.0", "NaN", "0x1F",
    "\u2028", "\u0301e", "é", "\ufeff", "A", "a", "id:a", "0.0.0", "\U0010ffff", "\ue000",
]  # fmt: skip

BODIES: list[Any] = [
    None, True, False, 0, -1, 2**53, 1.5, 1e300, "", "text", "ünï 雪 🦉", "nul \0", "\u2028", [],
    {}, [1, [2, [3]]], {"a": {"b": [None]}}, {"": 0}, "1", "1e1", "null",
]  # fmt: skip

HEADERS: list[dict[str, str] | None] = [None, {}, {"a": "1", "": "", "ü": "雪'\""}]

BYTES = [b"", b"\0", b"\xff\xfe", b"1", b'{"a": 1}', bytes(range(256)), "ü".encode()]


class PutCases:
    """What a put promises."""

    @pytest.mark.parametrize(
        ("given", "state", "due"),
        [
            ({"delay": 250}, "delayed", START + 250), ({"at": START + 7}, "delayed", START + 7),
            ({"at": START - HOUR}, "ready", START - HOUR), ({"at": 0}, "ready", 0),
        ],
    )  # fmt: skip
    def test_a_message_is_due_after_its_delay_or_at_its_time(
        self, driver: Driver, given: dict[str, Any], state: State, due: int
    ) -> None:
        assert driver.put("a", **given) == [Outcome("a", True, state, due)]
        assert driver.get("a").due == due
        assert driver.take() == (["a"] if state == "ready" else [])

    def test_all_fields_and_each_field_alone_come_back(self, driver: Driver) -> None:
        # An engine may know a shorter way for simple puts into a queue it has met before.
        for known in (0, 2):
            for fields in (GIVEN, *({name: value} for name, value in GIVEN.items())):
                one = driver.apart(f"{'-'.join(fields)}{known}")
                for number in range(known):
                    one.put(f"m{number}", at=START + HOUR)
                assert one.put("a", **fields)[0]
                message = one.get("a")
                assert {name: getattr(message, name) for name in PLAIN} == {**PLAIN, **fields}
                assert (message.id, message.queue, message.due) == ("a", one.queue, START)
                assert (message.holder, message.until, message.ended) == (None, None, None)
                (message,) = one.claim().messages
                assert (message.id, message.attempt) == ("a", fields.get("attempt", 0) + 1)

    def test_an_id_is_free_again_when_its_message_is_gone(self, driver: Driver) -> None:
        lease = driver.lease("a", priority=7, expires=50, group="g", headers={"h": "1"})
        driver.retry(lease, reason="no")
        driver.cancel("a")
        driver.wait(7)
        driver.put("a", on_conflict="replace")
        message = driver.get("a")
        assert {name: getattr(message, name) for name in PLAIN} == PLAIN
        assert message.created == START + 7

    def test_wake_is_the_earliest_due_time_that_was_stored(self, driver: Driver) -> None:
        driver.put("old", delay=1)
        items = [Item("old", b"1"), Item("b", b"1", delay=30), Item("c", b"1", delay=20)]
        assert driver.put_items(items).wake == START + 20
        assert driver.put_items(items).wake is None
        assert driver.put_items([]) == Outcomes([])

    # Replacing.

    @pytest.mark.parametrize(
        ("before", "conflict"),
        [("delayed", "replace"), ("ready", "replace"), ("dead", "replace"), ("dead", "revive")],
    )
    def test_replace_changes_everything_but_when_an_id_was_first_put(
        self, driver: Driver, before: State, conflict: str
    ) -> None:
        driver.bring("a", before)
        driver.wait(5)
        item = Item("a", b"2", at=START + 9, priority=3, attempts=4, attempt=2, group="g")
        reply = driver.put_items([item], conflict)
        assert reply == Outcomes([Outcome("a", True, "delayed", START + 9)], wake=START + 9)
        message = driver.get("a")
        assert (message.body, message.priority, message.attempts, message.attempt) == (2, 3, 4, 2)
        assert (message.failures, message.ended, message.created) == ((), None, START)
        assert driver.scan(group="g") == ["a"]
        again = driver.put("a", on_conflict=conflict, data=b"3", group="h")
        assert again[0].done == (conflict == "replace")
        assert driver.get("a").created == START
        assert driver.cancel_where(group="g").count == (conflict == "revive")

    def test_each_outcome_of_a_replace_is_that_of_its_message(self, driver: Driver) -> None:
        driver.lease("held")
        driver.put("a", "c", "e")
        moments = {"a": -1, "new": 20, "c": 30, "held": 40, "other": 50, "e": 60}
        items = [Item(id, b"2", at=START + moment) for id, moment in moments.items()]
        assert driver.put_items(items, "replace").outcomes == [
            Outcome("a", True, "ready", START - 1),
            Outcome("new", True, "delayed", START + 20),
            Outcome("c", True, "delayed", START + 30),
            Outcome("held", False, "leased", START, START + 1_000, "w1"),
            Outcome("other", True, "delayed", START + 50),
            Outcome("e", True, "delayed", START + 60),
        ]

    def test_a_replaced_message_keeps_its_place_among_equals(self, driver: Driver) -> None:
        driver.put("a", "b", "c")
        driver.put("a", on_conflict="replace", data=b"2")
        assert driver.take() == ["a", "b", "c"]

    @pytest.mark.parametrize("state", ["delayed", "ready", "dead"])
    def test_replace_only_if_the_version_is_the_same(self, driver: Driver, state: State) -> None:
        driver.bring("a", state)
        seen = driver.get("a").version
        new = {"on_conflict": "replace", "at": driver.get("a").due}
        wrong = driver.put("a", data=b"9", if_version="0" * 16, **new)
        assert wrong == [driver.refusal("a")]
        assert driver.put("a", data=b"2", if_version=seen, **new)[0].done
        assert driver.get("a").body == 2
        # The moment is the same, and yet whoever saw what was there before is too late.
        assert driver.put("a", data=b"3", if_version=seen, **new) == [driver.refusal("a")]
        assert driver.put("a", data=b"3", if_version=driver.get("a").version, **new)[0].done

    def test_replace_with_a_version_of_an_unknown_id_stores_nothing(self, driver: Driver) -> None:
        for other in ("b", "c", "d"):
            put = driver.put("a", on_conflict="replace", if_version="0" * 16)
            assert put == [Outcome("a", False)]
            driver.put(other)

    # When a message was first put.

    def test_a_message_tells_when_it_was_put(self, driver: Driver) -> None:
        driver.put("a")
        driver.put("b", "c", delay=5, group="g", headers={"x": "y"})
        driver.wait(3)
        driver.put("d")
        found = driver.find("a", "b", "c", "d")
        assert [m.created for m in found if m] == [START] * 3 + [START + 3]
        for messages in (driver.page("ready").messages, driver.claim().messages):
            assert [m.created for m in messages] == [START, START + 3]
        assert driver.get("a").created_at == to_datetime(START)

    # Importing.

    @pytest.mark.parametrize("died", [None, START - 5])
    def test_an_import_keeps_when_messages_were_first_put(
        self, driver: Driver, died: int | None
    ) -> None:
        def created() -> list[int | None]:
            return [driver.get(id).created for id in ("a", "b", "c", "unknown")]

        new: dict[str, Any] = {"died": died, "at": START, "group": "g"}
        driver.put_items([Item("a", b"1", created=START - 9, **new), Item("b", b"1", **new)])
        driver.put("c", created=START - 7)
        driver.put("unknown", created=0)
        assert created() == [START - 9, START, START - 7, None]
        driver.wait(5)
        driver.put("a", "b", "unknown", on_conflict="replace")
        driver.put("c", created=START - 8, on_conflict="replace")
        assert created() == [START - 9, START, START - 8, None]

    def test_an_import_of_a_dead_letter_is_a_dead_letter(self, driver: Driver) -> None:
        died = START - HOUR
        driver.put("b")
        outcomes = driver.put_items([Item(id, b"1", at=5, died=died) for id in "ab"], "replace")
        assert outcomes == Outcomes([Outcome(id, True, "dead", 5, died) for id in "ab"])
        assert [m and m.ended for m in driver.find("a", "b")] == [died, died]
        assert driver.take() == []

    # Contents and names.

    def test_bodies_and_headers_come_back_as_they_were(self, driver: Driver) -> None:
        contents: list[tuple[bytes, bool, Any, Any]]
        contents = [(*bodies.encode(body), body, None) for body in BODIES]
        contents += [(data, False, data, None) for data in BYTES]
        contents += [(b"1", True, 1, headers) for headers in HEADERS]
        for data, is_json, body, headers in contents:
            driver.put("a", data=data, json=is_json, headers=headers)
            claimed = driver.claim()
            for message in (driver.get("a"), claimed.messages[0]):
                assert (message.body, message.json, message.data) == (body, is_json, data)
                assert message.headers == headers
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
            assert driver.get(id).group == id
            held = driver.hold()
            assert driver.extend(*held)[0]
            assert driver.bury(*held)[0]
            assert driver.revive(id)[0]
            assert driver.cancel(id) == [Outcome(id, True, due=START)]

    def test_odd_ids_and_groups_are_different_ids_and_groups(self, driver: Driver) -> None:
        outcomes = driver.put_items(Item(id, b"1", group=id) for id in ODD_IDS).outcomes
        assert all(outcome.done for outcome in outcomes)
        assert [m and m.id for m in driver.find(*ODD_IDS)] == ODD_IDS
        assert sorted(driver.scan(limit=3)) == sorted(ODD_IDS)
        for id in ODD_IDS[::2]:
            assert driver.scan(group=id) == [id]
            assert driver.cancel_where(group=id).count == 1
        assert driver.take(100) == ODD_IDS[1::2]

    def test_extreme_numbers_come_back_as_they_were(self, driver: Driver) -> None:
        far = 4_102_444_800_000  # 2100
        extreme: dict[str, Any] = {
            "priority": 255,
            "attempts": 10_000,
            "expires": far,
            "attempt": 9_999,
        }
        driver.put("a", at=far, **extreme)
        driver.put("b", at=far, priority=0)
        message = driver.get("a")
        assert {name: getattr(message, name) for name in extreme} == extreme
        assert driver.claim().next == far - START
        driver.wait(far - START)
        assert driver.take() == ["a", "b"]

    # Queues apart.

    def test_a_queue_that_is_not_there_is_empty_and_is_not_made(self, driver: Driver) -> None:
        assert driver.find("a", "b") == [None, None]
        assert driver.page() == driver.page("ready") == Page([], None)
        for stored in (None, 0):
            counts = driver.ask(cmd.Count("q", stored=stored is not None), Counts)
            assert counts == Counts(Sizes(), Flow(), stored=stored)
        assert driver.counts() == Counts(Sizes(), Flow(), recount=Sizes(), strays=0)
        assert driver.forecast(10, 2) == Forecasted(START, 0, [0, 0], 0)
        assert driver.claim() == Claimed([], 0, START)
        for dry_run in (False, True):
            assert driver.cancel_where(group="g", dry_run=dry_run) == Affected(0)
        assert driver.purge("dead") == Affected(0)
        assert driver.delete() == Deleted(False)
        assert driver.queues() == []

    def test_two_queues_share_nothing(self, driver: Driver) -> None:
        for name, other in (("a", "a2"), ("b", "B"), ("c", "c/c"), ("d", "d."), ("e", "f")):
            one, beside = driver.apart(name), driver.apart(other)
            one.put("a", group="g", delay=5)
            beside.put("a", group="g", data=b"2", priority=9)
            assert (one.get("a").body, beside.get("a").body) == (1, 2)
            assert one.take() == []
            claimed = beside.claim()
            assert [message.queue for message in claimed.messages] == [other]
            assert not one.ack(*leases(claimed))[0]
            assert one.cancel_where(group="g").count == 1
            assert beside.ack(*leases(claimed))[0]
            assert one.counts().flow == Flow(put=1, cancelled=1)
            assert beside.counts().flow == Flow(put=1, acked=1)

    def test_one_put_in_a_batch_for_many_queues(self, driver: Driver) -> None:
        names = [f"q{number}" for number in range(5)]
        item = [Item("a", b"1"), Item("b", b"1")]
        replies = driver.batch(*(cmd.Put(name, item) for name in names + names))
        done = [bool(expect(Outcomes, reply).outcomes[0]) for reply in replies]
        assert done == [True] * 5 + [False] * 5
        for reply in driver.batch(*(cmd.Count(name) for name in names)):
            assert expect(Counts, reply).sizes == Sizes(ready=2)
