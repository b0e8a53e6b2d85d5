"""Messages that repeat over HTTP: as other languages use them, in batches, and within limits."""

import base64
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.model.commands import Edit
from bide.model.limits import MAX_BODY, MAX_RULE, MAX_RUN
from bide.model.runs import MAX_REPEATED_ID, Run, run_id
from bide.model.time_rule import time_rule_of
from bide.model.times import LATEST, iso
from bide.queue.repeating import MAX_BACKFILL
from bide.server.app import ServerApp
from bide.server.limits import quotas as module
from bide.server.limits.request_bodies import LargeBodies
from bide.server.settings import Quota, Settings
from bide.testing import FakeClock
from bide.testing.hooks import lane_of
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve
from tests.waiting import until

NOW = 1_900_000_800_000
"""When each test begins: at a full hour."""

HOUR = 3_600_000
ONE = f"{Q}/messages/a"
HOURLY = {"every": "1h"}
RULE = '{"every":"1h"}'
RUN = "2030-03-17T19:00:00.000Z"


@pytest.fixture
def clock() -> FakeClock:
    """Provide the clock of `client`."""
    assert NOW % HOUR == 0
    return FakeClock(NOW)


@pytest.fixture
def client(serve: Serve, tmp_path: Path, clock: FakeClock) -> Client:
    """Provide a client of a server whose time stands still."""
    return serve(ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db"), clock))


def claim(client: Client, **fields: Any) -> Any:
    """Claim messages; return them as the answer has them."""
    return client.post(f"{Q}/claim", {"count": 10, **fields}).json["messages"]


def settle(client: Client, verb: str, *claimed: Any, **fields: Any) -> Reply:
    """Settle claimed messages."""
    leases = [{"id": message["id"], "token": message["token"]} for message in claimed]
    return client.post(f"{Q}/{verb}", {"leases": leases, **fields})


def batch(client: Client, command: str, **fields: Any) -> Reply:
    """Send a batch of one command."""
    one = {"command": command, "queue": "orders", **fields}
    return client.post("/v1/batch", {"commands": [one]})


# What a client in another language does.


def test_a_plain_ack_ends_a_run_and_the_next_one_comes_at_its_time(
    client: Client, clock: FakeClock
) -> None:
    stored = client.put(ONE, {"body": {"user": 7}, "repeat": HOURLY})
    assert (stored.status, stored.json["due"]) == (201, NOW + HOUR)
    assert claim(client) == []
    clock.advance(3_601)
    for number in (1, 2, 3):
        (message,) = claim(client)
        assert (message["id"], message["body"]) == ("a", {"user": 7})
        assert (message["repeat"], message["run_at"]) == (HOURLY, NOW + number * HOUR)
        assert message["attempt"] == 1
        assert settle(client, "ack", message).json["outcomes"][0]["done"]
        assert settle(client, "ack", message).status == 409
        following = client.post(f"{Q}/claim").json
        assert following["messages"] == []
        shown = client.get(ONE).json
        assert (shown["state"], shown["due"]) == ("delayed", NOW + (number + 1) * HOUR)
        clock.advance(3_600)
    counts = client.get(Q).json
    assert (counts["flow"]["put"], counts["flow"]["acked"]) == (4, 3)
    assert client.get(f"{Q}/audit").json["balanced"]


def test_a_claim_that_waits_gets_the_next_run(serve: Serve) -> None:
    client = serve()
    client.put(ONE, {"body": 1, "repeat": {"every": "100ms", "times": 3}})
    runs = []
    for _ in range(3):
        (message,) = claim(client, wait="20s")
        runs.append(message["run_at"])
        assert settle(client, "ack", message).status == 200
    assert claim(client) == []
    assert client.get(ONE).status == 404
    assert runs == sorted(set(runs))


def test_what_reads_many_rules_lets_other_requests_go_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = 0

    def counted(_: LargeBodies) -> Callable[[], Awaitable[None]]:
        async def pause() -> None:
            nonlocal paused
            paused += 1

        return pause

    def pauses_of(method: str, path: str) -> int:
        before = paused
        assert client.send(method, path, {"count": 30} if method == "POST" else None).status == 200
        return paused - before

    client.put(ONE, {"body": 1, "repeat": {"every": "1m"}})
    window = {"hours": "Mon-Sun"}
    client.post(f"{Q}/put", {"messages": [{"body": 1, "window": window} for _ in range(20)]})
    monkeypatch.setattr(LargeBodies, "pauses", counted)
    assert pauses_of("GET", f"{Q}/forecast?bucket=1h&horizon=5h&repeats=true") >= 299
    for path in (f"{Q}/messages?limit=50", "/v1/search?state=ready"):
        assert pauses_of("GET", path) >= 20
    assert pauses_of("POST", f"{Q}/claim") >= 20


def test_a_forecast_counts_all_runs_up_to_a_limit(client: Client) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    client.put(f"{Q}/messages/b", {"body": 1, "delay": "90m"})
    hours = f"{Q}/forecast?bucket=1h&horizon=3h"
    assert client.get(hours).json["counts"] == [0, 2, 0]
    assert client.get(f"{hours}&repeats=true").json["counts"] == [0, 2, 1]
    client.put(f"{Q}/messages/c", {"body": 1, "repeat": {"every": "100ms"}})
    assert client.get(f"{Q}/forecast?bucket=1m&horizon=2m&repeats=true").json["counts"] == [
        599,
        600,
    ]
    refusal = client.get(f"{hours}&repeats=true")
    assert refusal.status == 400
    assert "more than 10,000 messages and runs" in refusal.json["detail"]


def test_a_run_without_attempts_is_a_dead_letter_of_its_own(
    client: Client, clock: FakeClock
) -> None:
    client.put(ONE, {"body": 1, "attempts": 2, "repeat": HOURLY})
    clock.advance(3_600)
    settle(client, "retry", *claim(client), reason="first")
    settle(client, "retry", *claim(client), reason="second")
    assert claim(client) == []
    (dead,) = client.get(f"{Q}/dead").json["messages"]
    assert dead["id"] == run_id("a", NOW + HOUR)
    assert [failure["reason"] for failure in dead["failures"]] == ["first", "second"]
    assert (dead["attempt"], "repeat" in dead) == (2, False)
    shown = client.get(ONE).json
    assert (shown["state"], shown["due"], shown["attempt"]) == ("delayed", NOW + 2 * HOUR, 0)
    clock.advance(3_600)
    settle(client, "bury", *claim(client), reason="no")
    assert claim(client) == []
    ids = [letter["id"] for letter in client.get(f"{Q}/dead").json["messages"]]
    assert ids == [run_id("a", NOW + HOUR), run_id("a", NOW + 2 * HOUR)]
    assert client.post(f"{Q}/revive", {"ids": ids[:1]}).json["outcomes"][0]["done"]
    assert [message["id"] for message in claim(client)] == ids[:1]


def test_a_rule_is_shown_as_it_was_given(client: Client) -> None:
    given = {
        "cron": "0 9 * * MON-FRI",
        "timezone": "Europe/Berlin",
        "start": "2030-06-01T00:00:00.000Z",
        "until": "2030-12-01T00:00:00.000Z",
        "times": 5,
        "missed": "skip",
    }
    assert client.put(ONE, {"body": 1, "repeat": given}).status == 201
    shown = client.get(ONE).json
    monday = datetime(2030, 6, 3, 7, tzinfo=UTC)
    assert shown["repeat"] == given
    assert shown["run_at"] == shown["due"] == round(monday.timestamp() * 1_000)
    assert "held" not in shown
    (listed,) = client.get(f"{Q}/messages").json["messages"]
    assert listed == shown
    assert client.put(f"{Q}/messages/b", {"body": 1, "repeat": shown["repeat"]}).status == 201
    client.put(f"{Q}/messages/c", {"body": 1})
    assert not {"repeat", "run_at", "held"} & client.get(f"{Q}/messages/c").json.keys()


def test_times_of_a_rule_may_be_numbers(client: Client) -> None:
    seconds = (NOW + 90_000) / 1_000
    rule = {"every": 60, "start": seconds, "until": seconds + 600}
    assert client.put(ONE, {"body": 1, "repeat": rule}).json["due"] == NOW + 90_000
    shown = client.get(ONE).json["repeat"]
    assert shown == {"every": "1m", "start": iso(NOW + 90_000), "until": iso(NOW + 690_000)}


def test_the_first_run_may_be_at_another_time(client: Client) -> None:
    given: list[tuple[dict[str, Any], int]]
    given = [({"delay": "5m"}, 300_000), ({"at": NOW / 1_000 + 7}, 7_000)]
    for more, due in given:
        put = {"body": 1, "repeat": HOURLY, **more}
        reply = client.post(f"{Q}/messages", put).json
        assert reply["due"] == NOW + due
        assert client.get(f"{Q}/messages/{reply['id']}").json["run_at"] == NOW + due


def test_many_are_put_together(client: Client) -> None:
    messages: list[dict[str, Any]] = [{"id": "a", "body": 1, "repeat": HOURLY}, {"body": 2}]
    outcomes = client.post(f"{Q}/put", {"messages": messages}).json["outcomes"]
    assert [outcome["done"] for outcome in outcomes] == [True, True]
    assert client.get(ONE).json["repeat"] == HOURLY
    messages.append({"body": 3, "repeat": {"every": "1ms"}})
    refused = client.post(f"{Q}/put", {"messages": messages})
    assert (refused.status, refused.problem["field"]) == (400, "messages[2].repeat")


def test_a_message_of_bytes_repeats(client: Client) -> None:
    packed = base64.b64encode(b"\xff").decode()
    assert client.put(ONE, {"bytes": packed, "repeat": HOURLY}).status == 201
    assert client.get(f"{ONE}/body").data == b"\xff"
    refused = client.send(
        "PUT", f"{Q}/messages/b?repeat=1h", data=b"x", content_type="application/octet-stream"
    )
    assert refused.status == 400


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({}, "cron expression or a period"),
        ({"cron": "0 9 * * *", "every": "1h"}, "not by both"),
        ({"cron": "0 9 * *"}, "4 fields"),
        ({"cron": "99 * * * *"}, "bad minute"),
        ({"cron": "0 9 * * *", "timezone": "Mars"}, "Mars"),
        ({"every": "1h", "timezone": "Europe/Berlin"}, "a period has none"),
        ({"every": "1ms"}, "100 ms or longer"),
        ({"every": "often"}, "often"),
        ({"every": "1h", "times": 0}, ">= 1"),
        ({"every": "1h", "missed": "never"}, "all, once, skip"),
        ({"every": "1h", "start": "tomorrow"}, "start="),
        ({"every": "1h", "until": "2030-01-01T00:00:00"}, "until="),
        ({"every": "1h", "start": NOW / 1_000, "until": NOW / 1_000 - 1}, "before start"),
        ({"every": "1h", "evry": "1h"}, "did you mean every?"),
        ("1h", "Expected `object | null`"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(client: Client, rule: Any, why: str) -> None:
    client.put(f"{Q}/messages/b", {"body": 1, "delay": "1h"})
    for reply in (
        client.put(ONE, {"body": 1, "repeat": rule}),
        client.post(f"{Q}/messages", {"body": 1, "repeat": rule}),
        client.send("PATCH", f"{Q}/messages/b", {"repeat": rule}),
    ):
        assert reply.status == 400
        assert reply.problem["field"].startswith("repeat")
        assert why in reply.problem["detail"]
    assert client.get(ONE).status == 404


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"latest": "1h", "delay": "1m"}, "latest= and repeat="),
        ({"spread": "1h"}, "spread= and repeat="),
        ({"repeat": {"every": "1h", "until": NOW / 1_000}}, "has no time after"),
    ],
)
def test_what_does_not_go_with_a_rule(client: Client, more: dict[str, Any], why: str) -> None:
    put = {"body": 1, "repeat": HOURLY, **more}
    refused = client.put(f"{ONE}?on_conflict=replace", put)
    assert (refused.status, why in refused.problem["detail"]) == (400, True)


def test_the_id_of_one_that_repeats_leaves_room_for_its_runs(client: Client) -> None:
    longest, longer = "i" * MAX_REPEATED_ID, "i" * (MAX_REPEATED_ID + 1)
    put = {"body": 1, "repeat": HOURLY}
    assert client.put(f"{Q}/messages/{longest}", put).status == 201
    assert client.put(f"{Q}/messages/{longer}", {"body": 1}).status == 201
    for reply in (
        client.put(f"{Q}/messages/{longer}", put),
        client.send("PATCH", f"{Q}/messages/{longer}", {"repeat": HOURLY}),
        batch(client, "put", items=[{"id": longer, "data": "MQ==", "rule": RULE, "run": RUN}]),
        batch(client, "edit", ids=["a", longer], rule=RULE, run=RUN),
    ):
        assert (reply.status, "use a hash of it" in reply.problem["detail"]) == (400, True)


@pytest.fixture
def without_cronsim(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let cron expressions be unknown to the server."""
    time_rule_of.cache_clear()
    monkeypatch.setitem(sys.modules, "cronsim", None)
    yield
    time_rule_of.cache_clear()


@pytest.mark.usefixtures("without_cronsim")
def test_a_server_without_cronsim_says_what_it_needs(client: Client) -> None:
    cron = {"cron": "0 9 * * *"}
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    items = [{"id": "b", "data": "MQ==", "rule": '{"cron":"0 9 * * *"}', "run": RUN}]
    for reply in (
        client.put(f"{Q}/messages/b", {"body": 1, "repeat": cron}),
        client.send("PATCH", ONE, {"repeat": cron}),
        batch(client, "put", items=items),
    ):
        assert reply.status == 400
        assert "on the server, cron= needs" in reply.problem["detail"]
        assert "pip install 'bide[schedules]'" in reply.problem["detail"]


def test_a_rule_of_a_later_version_hides_no_message(client: Client) -> None:
    client.put(ONE, {"body": 1})
    edit = Edit("orders", ["a"], rule='{"moon":"full"}', run="next")
    client.app.service.lane.call(edit)
    shown = client.get(ONE).json
    assert (shown["repeat"], "run_at" in shown) == ({}, False)
    assert claim(client) == []  # the server cannot say which run comes next


# Changes of one that is there.


def test_a_rule_is_added_changed_and_taken_away(client: Client, clock: FakeClock) -> None:
    client.put(ONE, {"body": 1, "delay": "2d"})
    for rule, due in [
        ({"repeat": HOURLY}, NOW + HOUR),
        ({"repeat": {"cron": "30 * * * *"}}, NOW + HOUR // 2),
        ({"repeat": HOURLY, "delay": "5s"}, NOW + 5_000),
        ({"priority": 3}, NOW + 5_000),
        ({"repeat": None}, NOW + 5_000),
    ]:
        before = client.get(ONE)
        edited = client.send("PATCH", ONE, rule, if_match=before.headers["etag"])
        assert (edited.status, edited.json["due"]) == (200, due)
        after = client.get(ONE)
        assert after.headers["etag"] == edited.headers["etag"] != before.headers["etag"]
        assert client.send("PATCH", ONE, rule, if_match=before.headers["etag"]).status == 412
    clock.advance(5)
    (message,) = claim(client)
    assert "repeat" not in message
    settle(client, "ack", message)
    assert client.get(ONE).status == 404


def test_an_etag_survives_runs_and_a_put_gives_it(client: Client, clock: FakeClock) -> None:
    etag = client.put(ONE, {"body": 1, "repeat": HOURLY}).headers["etag"]
    assert client.get(ONE).headers["etag"] == etag
    clock.advance(3_600)
    settle(client, "ack", *claim(client))
    claim(client)
    assert client.get(ONE, if_none_match=etag).status == 304
    replaced = client.put(ONE, {"body": 1, "repeat": {"every": "2h"}}, if_match=etag)
    assert (replaced.status, replaced.headers["etag"] != etag) == (200, True)
    assert client.get(ONE).json["repeat"] == {"every": "2h"}


def test_one_is_held_resumed_and_run_now(client: Client, clock: FakeClock) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    held = client.post(f"{ONE}/hold")
    assert (held.status, held.json["done"], held.json["due"]) == (200, True, LATEST)
    assert client.get(ONE).json["held"] is True
    clock.advance(10 * 3_600 + 1)
    assert claim(client) == []

    ran = client.post(f"{ONE}/run-now")
    assert (ran.status, ran.json["state"]) == (200, "ready")
    settle(client, "ack", *claim(client))
    assert claim(client) == []
    assert client.get(ONE).json["due"] == LATEST  # it is held as before

    resumed = client.post(f"{ONE}/resume", {})
    assert (resumed.status, resumed.json["due"]) == (200, NOW + 11 * HOUR)
    shown = client.get(ONE).json
    assert ("held" in shown, shown["run_at"]) == (False, NOW + 11 * HOUR)


def test_one_that_is_held_stays_when_its_group_is_rescheduled(client: Client) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY, "group": "g"})
    assert client.post(f"{ONE}/hold").status == 200
    counted = client.send("PATCH", f"{Q}/messages?group=g&dry_run=true", {"delay": "1m"})
    assert (counted.status, counted.json["count"]) == (200, 0)
    moved = client.send("PATCH", f"{Q}/messages?group=g", {"delay": "1m"})
    assert (moved.status, moved.json["count"]) == (200, 0)
    assert client.get(ONE).json["due"] == LATEST


@pytest.mark.parametrize("verb", ["hold", "resume", "run-now"])
def test_what_cannot_be_held(client: Client, clock: FakeClock, verb: str) -> None:
    missing = client.post(f"{ONE}/{verb}")
    assert (missing.status, missing.problem["title"]) == (404, "Not found")
    client.put(ONE, {"body": 1})
    plain = client.post(f"{ONE}/{verb}")
    assert (plain.status, "'a' does not repeat" in plain.problem["detail"]) == (400, True)
    client.put(f"{ONE}?on_conflict=replace", {"body": 1, "delay": 0, "repeat": HOURLY})
    claim(client, holder="w1")
    taken = client.post(f"{ONE}/{verb}")
    assert taken.status == 409
    assert "held by w1" in taken.problem["detail"] or "worker w1" in taken.problem["detail"]
    assert taken.problem["outcomes"][0]["state"] == "leased"
    assert client.post(f"{ONE}/{verb}?dry_run=true").status == 400


def test_past_runs_are_put_once(client: Client) -> None:
    client.put(ONE, {"body": {"user": 7}, "group": "g", "repeat": HOURLY})
    span = {"after": (NOW - 3 * HOUR) / 1_000, "before": iso(NOW)}
    ids = [run_id("a", NOW - number * HOUR) for number in (3, 2, 1)]
    for is_new in (True, False):
        reply = client.post(f"{ONE}/backfill", span)
        assert reply.status == 200
        outcomes = reply.json["outcomes"]
        assert [(one["id"], one["done"]) for one in outcomes] == [(id, is_new) for id in ids]
    messages = claim(client)
    assert [message["id"] for message in messages] == ids
    assert [message["due"] for message in messages] == [NOW - n * HOUR for n in (3, 2, 1)]
    assert all(message["group"] == "g" and "repeat" not in message for message in messages)
    assert client.post(f"{ONE}/backfill", {**span, "before": span["after"]}).json == {
        "outcomes": []
    }


def test_what_cannot_be_backfilled(client: Client) -> None:
    span = {"after": 0, "before": iso(NOW)}
    assert client.post(f"{ONE}/backfill", span).status == 404
    client.put(f"{Q}/messages/b", {"body": 1})
    assert client.post(f"{Q}/messages/b/backfill", span).status == 400
    client.put(ONE, {"body": 1, "repeat": {"every": "1s"}})
    refused = client.post(f"{ONE}/backfill", span)
    assert (refused.status, f"{MAX_BACKFILL:,} runs" in refused.problem["detail"]) == (400, True)
    for wrong in ({}, {"after": 0}, {**span, "after": "yesterday"}, {**span, "more": 1}):
        assert client.post(f"{ONE}/backfill", wrong).status == 400
    assert client.get(Q).json["flow"]["put"] == 2


def test_large_runs_are_put_in_parts_that_a_server_takes(client: Client) -> None:
    body = "x" * (MAX_BODY // 2)
    client.put(ONE, {"body": body, "repeat": HOURLY})
    span = {"after": (NOW - 20 * HOUR) / 1_000, "before": iso(NOW)}
    outcomes = client.post(f"{ONE}/backfill", span).json["outcomes"]
    assert [outcome["done"] for outcome in outcomes] == [True] * 20
    with bide.Queue("orders", client.url) as orders:
        put = orders.backfill(
            "a",
            after=datetime.fromtimestamp(NOW / 1_000, UTC) - timedelta(hours=40),
            before=datetime.fromtimestamp(NOW / 1_000, UTC) - timedelta(hours=20),
        )
    assert all(put)


def test_a_cancel_of_a_run_that_is_held_lets_no_other_follow(
    client: Client, clock: FakeClock
) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    clock.advance(3_600)
    (message,) = claim(client, holder="w1")
    reply = client.send("DELETE", ONE)
    assert reply.status == 409
    assert reply.problem["outcomes"][0]["state"] == "ending"
    assert reply.problem["outcomes"][0]["holder"] == "w1"
    assert "ends with this run: worker w1" in reply.problem["detail"]
    assert "it repeats no longer" in reply.problem["detail"]
    again = client.send("DELETE", ONE).problem
    assert (again["outcomes"][0]["state"], again["status"]) == ("leased", 409)
    assert settle(client, "ack", message).status == 200
    assert client.get(ONE).status == 404


def test_a_waiting_one_is_cancelled_and_its_worker_is_stopped(
    client: Client, clock: FakeClock
) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    assert client.send("DELETE", ONE).status == 200
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    clock.advance(3_600)
    (message,) = claim(client)
    stopping = client.send("DELETE", f"{ONE}?running=true")
    assert (stopping.status, stopping.json["state"]) == (202, "stopping")
    settle(client, "release", message)
    assert client.get(ONE).status == 404


# What the client in Python does.


def test_the_python_client_plans_the_next_run_with_its_ack(serve: Serve) -> None:
    client = serve()
    with bide.Queue("orders", client.url) as orders:
        orders.put(1, id="a", delay=0, repeat=bide.Cron("0 9 * * *", "Europe/Berlin", times=2))
        with orders.take() as delivery:
            assert delivery.message.repeat == bide.Cron("0 9 * * *", "Europe/Berlin", times=2)
        message = orders.get("a")
        assert message is not None
        assert message.run is not None
        run = Run.of(message.run)
        assert (message.state, run.at, run.left) == ("delayed", message.due, 1)
        assert orders.hold("a")
        held = orders.get("a")
        assert held is not None
        assert held.held
        assert orders.resume("a")
        assert orders.run_now("a")
        with orders.take():
            outcome = orders.cancel("a")
            assert (bool(outcome), outcome.state) == (False, "ending")
        assert orders.get("a") is None
        assert orders.audit()


def renew(client: Client, message: Any, **fields: Any) -> Reply:
    """End a run by the batch endpoint."""
    number, _, secret = message["token"].partition(".")
    lease = [message["id"], int(number), *filter(None, [secret])]
    next_run = [NOW + 5 * HOUR, iso(NOW + 5 * HOUR)]
    return batch(client, "renew", **{"leases": [lease], "next": [next_run], **fields})


def test_a_batch_ends_a_run_with_the_next_one(client: Client, clock: FakeClock) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    clock.advance(3_600)
    (message,) = claim(client)
    (reply,) = renew(client, message).json["replies"]
    assert reply["outcomes"] == [
        {"id": "a", "done": True, "state": "delayed", "due": NOW + 5 * HOUR}
    ]
    (reply,) = renew(client, message).json["replies"]
    assert not reply["outcomes"][0]["done"]
    assert client.get(ONE).json["run_at"] == NOW + 5 * HOUR


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"next": []}, "there are 0 next runs for 1 messages"),
        ({"next": [None, None]}, "there are 2 next runs for 1 messages"),
        ({"next": [[NOW, "tomorrow"]]}, "'tomorrow' is not a run"),
        ({"next": [[NOW, "r" * (MAX_RUN + 1)]]}, f"length <= {MAX_RUN}"),
        ({"next": [[-1, RUN]]}, ">= 0"),
        ({"next": [[2 * LATEST + 1, RUN]]}, "<="),
        ({"next": [[NOW]]}, "length"),
        ({"results": ["MQ==", "MQ=="]}, "there are 2 results for 1 messages"),
        ({"results": ["eA=="]}, "result"),
        ({"how": "purged"}, "acked, dead, ended, expired"),
        ({"leases": [["", 1]]}, "id is 0 bytes"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_a_renew_is_checked(client: Client, fields: dict[str, Any], why: str) -> None:
    refused = renew(client, {"id": "a", "token": "1"}, **fields)
    assert (refused.status, why in refused.problem["detail"]) == (400, True), refused.problem


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rule": "1h", "run": RUN}, "is not a rule"),
        ({"rule": "{}", "run": RUN}, "cron expression or a period"),
        ({"rule": '{"cron":"99 * * * *"}', "run": RUN}, "bad minute"),
        ({"rule": '{"every":"1h","times":"1"}', "run": RUN}, "is not a rule"),
        ({"rule": RULE.ljust(MAX_RULE + 1), "run": RUN}, f"length <= {MAX_RULE}"),
        ({"rule": RULE, "run": "1"}, "'1' is not a run"),
        ({"rule": RULE, "run": f"{RUN} left=x"}, "is not a run"),
        ({"rule": RULE, "run": RUN.ljust(MAX_RUN + 1)}, f"length <= {MAX_RUN}"),
        ({"run": RUN}, "a run needs a rule"),
        ({"rule": None, "run": RUN}, "a run needs a rule"),
    ],
)
def test_rules_in_commands_are_checked(client: Client, fields: dict[str, Any], why: str) -> None:
    client.put(ONE, {"body": 1})
    item = {"id": "b", "data": "MQ==", **fields}
    for reply in (
        batch(client, "put", items=[item]),
        batch(client, "put", items=[{**item, "latest": 5}], on_conflict="replace"),
        batch(client, "edit", ids=["a"], **fields),
    ):
        assert (reply.status, why in reply.problem["detail"]) == (400, True), reply.problem
    assert client.get(Q).json["flow"]["put"] == 1


def test_half_of_a_rule_is_not_edited(client: Client) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    for fields in ({"rule": None}, {"run": None}):
        refused = batch(client, "edit", ids=["a"], **fields)
        assert "rule and run go together" in refused.problem["detail"]
    assert batch(client, "edit", ids=["a"], rule=None, run=None).status == 200
    assert "repeat" not in client.get(ONE).json


def test_a_renew_that_is_sent_again_gets_its_answer(client: Client, clock: FakeClock) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    clock.advance(3_600)
    (message,) = claim(client)
    lease = ["a", int(message["token"])]
    run = {"command": "renew", "queue": "orders", "leases": [lease], "next": [[NOW, iso(NOW)]]}
    sent = {"commands": [run], "client": "c", "number": 7}
    first = client.post("/v1/batch", sent).json["replies"]
    assert first[0]["outcomes"][0]["done"]
    (following,) = claim(client)  # another worker has the next run now
    assert client.post("/v1/batch", {**sent, "repeated": True}).json["replies"] == first
    assert settle(client, "ack", following).status == 200


# Rights, leases and quotas.


def test_only_the_holder_of_the_whole_token_ends_a_run(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    shop = server.with_token(make_token("shop", "admin"))
    worker = server.with_token(make_token("shop", "consume"))
    for reader in ("produce", "read"):
        other = server.with_token(make_token("shop", reader))
        assert renew(other, {"id": "a", "token": "1"}).status == 403
    shop.put(ONE, {"body": 1, "delay": 0, "repeat": HOURLY})
    (message,) = claim(worker)
    number, _, secret = message["token"].partition(".")
    for wrong in (number, f"{number}.{secret[:-1]}", f"{number}.{'A' * 22}"):
        answer = renew(worker, {**message, "token": wrong}).json
        assert "LeaseLost" in str(answer) or not answer["replies"][0]["outcomes"][0]["done"]
        assert shop.get(ONE).json["state"] == "leased"
    assert renew(worker, message).json["replies"][0]["outcomes"][0]["done"]


def test_who_may_put_backfills_and_who_may_change_holds(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    admin = server.with_token(make_token("shop", "admin"))
    admin.put(ONE, {"body": "CANARY", "repeat": HOURLY})
    span = {"after": (NOW - HOUR) / 1_000, "before": iso(NOW)}
    for right in ("put", "change", "consume", "read", "bodies"):
        client = server.with_token(make_token("shop", rights=[right]))
        status = client.post(f"{ONE}/backfill", span).status
        assert status == (200 if right == "put" else 403), right
        for verb in ("hold", "resume", "run-now"):
            reply = client.post(f"{ONE}/{verb}")
            assert reply.status == (200 if right == "change" else 403), right
            assert b"CANARY" not in reply.data
    other = server.with_token(make_token("mail", "admin"))
    assert other.post(f"{ONE}/hold").status == 404


def test_one_is_held_however_near_messages_must_be(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(longest_delay="2h")})
    shop = server.with_token(make_token("shop", "admin"))
    refused = shop.put(ONE, {"body": 1, "repeat": {"every": "30d"}})
    assert (refused.status, refused.problem["field"]) == (400, "at")
    assert shop.put(ONE, {"body": 1, "repeat": HOURLY}).status == 201
    assert shop.post(f"{ONE}/hold").status == 200
    assert shop.post(f"{ONE}/resume").status == 200
    item = {"id": "b", "data": "MQ==", "rule": RULE, "run": f"{RUN} held"}
    for at, status in [(LATEST, 200), (LATEST - 1, 400)]:
        assert batch(shop, "put", items=[{**item, "at": at}]).status == status
    assert batch(shop, "put", items=[{**item, "id": "c", "run": RUN, "at": LATEST}]).status == 400


def test_runs_are_settled_in_a_full_namespace(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the result of a run, its renew is done without one."""
    monkeypatch.setattr(module, "RECOUNT_EVERY", 0.0)
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    server = serve(auth="required", quotas={"shop": Quota(stored=20_000, pending=1, rate=1)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.send("PATCH", Q, {"result_ttl": "1d"}).status == 200
    assert shop.put(ONE, {"body": 1, "delay": 0, "repeat": HOURLY}).status == 201
    result = base64.b64encode(b'"%s"' % (b"r" * 5_000)).decode()
    for _ in range(6):
        (message,) = claim(shop)
        answer = renew(shop, message, next=[[0, RUN]], results=[result])
        assert answer.json["replies"][0]["outcomes"][0]["done"]
    ends = shop.get(f"{ONE}/history").json["ends"]
    assert ["result" in end for end in ends] == [False] * 3 + [True] * 3
    assert shop.put(f"{Q}/messages/b", {"body": 1}).status == 507


def used_up(client: Client, how: str) -> None:
    """Let a run have no attempt left, of which the server hears from a client, or by itself."""
    (message,) = claim(client, wait="20s", lease="100ms" if how == "lapsed" else "1m")
    assert message["attempt"] == 2
    if how != "lapsed":
        assert settle(client, how, message).status == 200


@pytest.mark.parametrize("how", ["retry", "bury", "lapsed"])
@pytest.mark.parametrize("has_room", [True, False])
def test_the_reasons_of_a_dead_run_are_cut_without_room(
    serve: Serve, make_token: Any, how: str, has_room: bool
) -> None:
    server = serve(auth="required", quotas={"shop": Quota(stored=60_000 if has_room else 20_000)})
    shop = server.with_token(make_token("shop", "admin"))
    an_hour_ago = datetime.now(UTC).timestamp() - 3_600
    rule = {"every": "1m", "missed": "all"}
    put = {"body": 1, "at": an_hour_ago, "attempts": 2, "repeat": rule}
    assert shop.put(ONE, put).status == 201
    reason = "the first line\n" + "x" * 8_000
    settle(shop, "retry", *claim(shop), reason=reason)
    large = {"body": "x" * 9_000, "delay": "1d"}
    # A count that is under way may have counted the reason twice.
    until(lambda: shop.put(f"{Q}/messages/b", large).status != 507)
    assert shop.get(f"{Q}/messages/b").status == 200
    used_up(shop, how)
    (following,) = claim(shop, wait="20s")
    assert (following["id"], following["attempt"]) == ("a", 1)
    (dead,) = shop.get(f"{Q}/dead").json["messages"]
    assert dead["id"] == run_id("a", ceil(an_hour_ago * 1_000))
    assert dead["failures"][0]["reason"] == (reason if has_room else "the first line")
    assert settle(shop, "ack", following).status == 200
    assert shop.get(f"{Q}/audit").json["balanced"]


@pytest.mark.parametrize("quota", [Quota(pending=4), Quota(stored=20_000)])
def test_dead_runs_count_at_once(serve: Serve, make_token: Any, quota: Quota) -> None:
    server = serve(auth="required", quotas={"shop": quota})
    shop = server.with_token(make_token("shop", "admin"))
    an_hour_ago = datetime.now(UTC).timestamp() - 3_600
    rule = {"every": "1m", "missed": "all"}
    put = {"body": "x" * 5_000, "at": an_hour_ago, "attempts": 1, "repeat": rule}
    assert shop.put(ONE, put).status == 201
    for _ in range(3):
        settle(shop, "bury", *claim(shop, wait="20s"))
    assert claim(shop, wait="20s")
    assert len(shop.get(f"{Q}/dead").json["messages"]) == 3
    assert shop.put(f"{Q}/messages/b", {"body": 1}).status == 507


def test_a_backfill_is_admitted_as_a_whole(serve: Serve, make_token: Any) -> None:
    quotas = {"shop": Quota(pending=1_502), "mail": Quota(rate=100)}
    server = serve(auth="required", quotas=quotas)
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))
    end = NOW - 100_000 * HOUR  # in the past, by the clock of the server, which is no fake
    span = {"after": (end - 1_502 * 60_000) / 1_000, "before": iso(end)}
    for client in (shop, mail):
        client.put(ONE, {"body": 1, "repeat": {"every": "1m"}})
    assert shop.post(f"{ONE}/backfill", span).status == 507
    assert shop.get(Q).json["flow"]["put"] == 1
    assert len(mail.post(f"{ONE}/backfill", span).json["outcomes"]) == 1_502
    limited = mail.post(f"{ONE}/backfill", span)
    assert (limited.status, "retry-after" in limited.headers) == (429, True)
    span["after"] = (end - 1_501 * 60_000) / 1_000
    assert shop.post(f"{ONE}/backfill", span).status == 200


def test_a_server_in_front_of_another_passes_runs_on(serve: Serve) -> None:
    behind = serve()
    front = serve(ServerApp(Settings(store=behind.url)))
    front.put(ONE, {"body": 1, "repeat": {"every": "100ms"}})
    for _ in range(2):
        settle(front, "ack", *claim(front, wait="20s"))
    shown = front.get(ONE).json
    assert shown["repeat"] == {"every": "100ms"}
    with bide.Queue("orders", front.url) as orders:
        assert lane_of(orders).capabilities.remembers
        assert orders.counts().flow.acked == 2
