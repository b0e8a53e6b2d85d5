# ruff: noqa: D102  (the name of each case says what it checks)
"""Bodies, headers and ids come back as they were, and queues share nothing."""

import json
from typing import Any

import pytest

from bide.model import body as bodies
from bide.model import commands as cmd
from bide.model.limits import MAX_BODY
from bide.model.message import Item
from bide.model.replies import (
    Affected,
    Claimed,
    Counts,
    Deleted,
    Flow,
    Forecasted,
    Outcome,
    Page,
    Sizes,
    expect,
)
from bide.testing.conformance.desk import START, Desk, leases

__all__ = ["ContentCases"]

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


class ContentCases:
    """What content and names promise."""

    def test_bodies_and_headers_come_back_as_they_were(self, desk: Desk) -> None:
        contents: list[tuple[bytes, bool, Any, Any]]
        contents = [(*bodies.encode(body), body, None) for body in BODIES]
        contents += [(data, False, data, None) for data in BYTES]
        contents += [(b"1", True, 1, headers) for headers in HEADERS]
        for data, is_json, body, headers in contents:
            desk.put("a", data=data, json=is_json, headers=headers)
            claimed = desk.claim()
            for message in (desk.get("a"), claimed.messages[0]):
                assert (message.body, message.json, message.data) == (body, is_json, data)
                assert message.headers == headers
            desk.ack(*leases(claimed))

    @pytest.mark.parametrize("is_json", [True, False])
    def test_a_large_body_comes_back_whole(self, bare: Desk, is_json: bool) -> None:
        data = json.dumps("x" * (MAX_BODY - 2)).encode()
        assert len(data) == MAX_BODY
        bare.put("a", data=data, json=is_json)
        assert bare.claim().messages[0].data == data

    def test_an_odd_id_is_an_id_like_any_other(self, desk: Desk) -> None:
        for id in ODD_IDS:
            assert desk.put(id, id, delay=1, group=id)[0].id == id
            assert desk.reschedule(id, "other", delay=0)[0]
            assert desk.scan() == desk.scan(group=id) == desk.scan("ready") == [id]
            assert desk.get(id).group == id
            claimed = desk.claim()
            assert desk.extend(*leases(claimed))[0]
            assert desk.bury(*leases(claimed))[0]
            assert desk.revive(id)[0]
            assert desk.cancel(id) == [Outcome(id, True, due=START)]

    def test_odd_ids_are_different_ids(self, desk: Desk) -> None:
        outcomes = desk.put(*ODD_IDS)
        assert all(outcome.done for outcome in outcomes)
        assert [m and m.id for m in desk.find(*ODD_IDS)] == ODD_IDS
        assert sorted(desk.scan(limit=3)) == sorted(ODD_IDS)
        assert desk.take(100) == ODD_IDS
        for id in ODD_IDS:
            assert desk.cancel_where(group=id).count == 0

    def test_odd_groups_are_different_groups(self, desk: Desk) -> None:
        desk.put_items(Item(id, b"1", group=id) for id in ODD_IDS)
        for id in ODD_IDS:
            assert desk.scan(group=id) == [id]
            assert desk.cancel_where(group=id).count == 1

    # Extremes.

    def test_extreme_numbers_come_back_as_they_were(self, desk: Desk) -> None:
        far = 4_102_444_800_000  # 2100
        desk.put("a", at=far, priority=255, attempts=10_000, expires=far, attempt=9_999)
        desk.put("b", at=far, priority=0)
        message = desk.get("a")
        assert (message.due, message.priority, message.expires) == (far, 255, far)
        assert (message.attempts, message.attempt) == (10_000, 9_999)
        assert desk.claim().next == far - START
        desk.wait(far - START)
        assert desk.take() == ["a", "b"]

    # Queues apart.

    def test_a_queue_that_is_not_there_is_empty_and_is_not_made(self, desk: Desk) -> None:
        assert desk.find("a", "b") == [None, None]
        assert desk.page() == desk.page("ready") == Page([], None)
        assert desk.ask(cmd.Count("q"), Counts) == Counts(Sizes(), Flow())
        assert desk.counts() == Counts(Sizes(), Flow(), recount=Sizes(), strays=0)
        assert desk.forecast(10, 2) == Forecasted(START, 0, [0, 0], 0)
        assert desk.claim() == Claimed([], 0, START)
        for dry_run in (False, True):
            assert desk.cancel_where(group="g", dry_run=dry_run) == Affected(0)
        assert desk.purge("dead") == Affected(0)
        assert desk.delete() == Deleted(False)
        assert desk.queues() == []

    def test_two_queues_share_nothing(self, desk: Desk) -> None:
        for name, other in (("a", "a2"), ("b", "B"), ("c", "c/c"), ("d", "d."), ("e", "f")):
            one, beside = desk.apart(name), desk.apart(other)
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

    def test_the_token_of_the_same_id_in_another_queue_is_refused(self, desk: Desk) -> None:
        beside = desk.apart("q2")
        beside.lease("x")
        beside.lease("y")
        mine, theirs = desk.lease("a"), beside.lease("a")
        assert mine.token != theirs.token
        assert not desk.ack(theirs)[0]
        assert not beside.ack(mine)[0]
        assert desk.ack(mine)[0]

    def test_settings_hold_for_one_queue(self, desk: Desk) -> None:
        beside = desk.apart("q2")
        desk.configure(paused=True, keep=99)
        beside.put("a")
        assert beside.take() == ["a"]
        counts = beside.counts()
        assert (counts.paused, counts.keep) == (False, 0)

    def test_one_put_in_a_batch_for_many_queues(self, desk: Desk) -> None:
        names = [f"q{number}" for number in range(5)]
        item = [Item("a", b"1"), Item("b", b"1")]
        replies = desk.batch(*(cmd.Put(name, item) for name in names + names))
        assert [bool(r.outcomes[0]) for r in replies if hasattr(r, "outcomes")] == (
            [True] * 5 + [False] * 5
        )
        for reply in desk.batch(*(cmd.Count(name) for name in names)):
            assert expect(Counts, reply).sizes == Sizes(ready=2)
