"""Messages with a window over HTTP: as other languages use them, and in batches."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing import FakeClock
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve

ONE = f"{Q}/messages/a"
FRIDAY = datetime(2026, 12, 11, 16, tzinfo=UTC)
MONDAY = round(datetime(2026, 12, 14, 8, tzinfo=UTC).timestamp() * 1000)
OFFICE = {"hours": "Mon-Fri 09:00-18:00", "timezone": "Europe/Berlin"}
HOURLY = {"every": "1h"}
HOUR = 3600


@pytest.fixture
def clock() -> FakeClock:
    """Provide the clock of `client`: it is open for an hour more."""
    return FakeClock(FRIDAY)


@pytest.fixture
def client(serve: Serve, tmp_path: Path, clock: FakeClock) -> Client:
    """Provide a client of a server whose time stands still."""
    return serve(ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db"), clock))


def claim(client: Client) -> Any:
    return client.post(f"{Q}/claim", {"count": 10}).json["messages"]


def settle(client: Client, verb: str, message: Any, **fields: Any) -> Reply:
    lease = {"id": message["id"], "token": message["token"]}
    return client.post(f"{Q}/{verb}", {"leases": [lease], **fields})


def test_a_put_waits_for_the_opening(client: Client, clock: FakeClock) -> None:
    office = {**OFFICE, "holidays": ["2026-12-25", "2026-12-14"]}
    stored = client.put(ONE, {"body": 1, "delay": "2h", "window": office})
    tuesday = MONDAY + 24 * HOUR * 1000
    assert (stored.status, stored.json["due"]) == (201, tuesday)
    shown = client.get(ONE).json["window"]
    assert shown == {**OFFICE, "holidays": ["2026-12-14", "2026-12-25"]}
    many = [{"body": 2, "window": {"hours": "sat"}}, {"body": 3}]
    client.post(f"{Q}/put", {"messages": many})
    (message,) = claim(client)
    assert message["body"] == 3
    settle(client, "ack", message)
    clock.advance(9 * HOUR)
    assert [message["body"] for message in claim(client)] == [2]


def test_a_retry_of_a_plain_client_waits_for_the_opening(client: Client, clock: FakeClock) -> None:
    client.put(ONE, {"body": 1, "window": OFFICE})
    (message,) = claim(client)
    assert message["window"] == OFFICE
    settle(client, "retry", message, delay="1h")
    clock.advance(HOUR)
    assert claim(client) == []
    assert client.get(ONE).json["due"] == MONDAY
    clock.advance(MONDAY / 1000 - clock.now() / 1000)
    (message,) = claim(client)
    assert message["attempt"] == 2
    assert settle(client, "ack", message).status == 200


def test_a_plain_ack_of_a_run_waits_for_the_opening(client: Client, clock: FakeClock) -> None:
    client.put(ONE, {"body": 1, "window": OFFICE, "repeat": HOURLY, "delay": 0})
    (message,) = claim(client)
    assert (message["repeat"], message["window"]) == (HOURLY, OFFICE)
    clock.advance(5)
    settle(client, "ack", message)
    assert claim(client) == []
    after = client.get(ONE).json
    assert (after["due"], after["run_at"]) == (MONDAY, MONDAY)


def test_an_edit_changes_the_window_and_keeps_the_rest(client: Client) -> None:
    client.put(ONE, {"body": 1, "repeat": HOURLY})
    tag = client.get(ONE).headers["etag"]
    edited = client.send("PATCH", ONE, {"window": OFFICE}, if_match=tag)
    assert (edited.status, edited.json["due"]) == (200, MONDAY)
    message = client.get(ONE)
    assert message.headers["etag"] == edited.headers["etag"] != tag
    assert (message.json["repeat"], message.json["window"]) == (HOURLY, OFFICE)
    assert client.send("PATCH", ONE, {"window": None}, if_match=tag).status == 412
    assert client.send("PATCH", ONE, {"repeat": None}).status == 200
    assert client.get(ONE).json["window"] == OFFICE
    assert "repeat" not in client.get(ONE).json
    assert client.send("PATCH", ONE, {"window": None}).status == 200
    assert "window" not in client.get(ONE).json
    assert client.send("PATCH", f"{Q}/messages/none", {"window": OFFICE}).status == 404


@pytest.mark.parametrize(
    ("window", "detail"),
    [
        ({"hours": "Mo"}, "'mo' is neither days nor times"),
        ({"hours": "Mon", "timezone": "Europe/Atlantis"}, "is not known here"),
        ({"hours": "Mon", "holidays": ["25.12.2026"]}, "Invalid RFC3339"),
        ({"hours": "Mon", "holidays": "/etc/passwd"}, "Expected `array`"),
        ({"hours": "Mon", "until": 5}, "until"),
        ({"timezone": "UTC"}, "hours"),
        ("Mon", "Expected `object | null`"),
    ],
)
def test_a_window_that_is_none_is_refused(client: Client, window: Any, detail: str) -> None:
    refused = client.put(ONE, {"body": 1, "window": window})
    assert refused.status == 400
    assert detail in str(refused.problem)


def test_too_many_holidays_are_refused(client: Client) -> None:
    days = [f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 28, 2)]
    refused = client.put(ONE, {"body": 1, "window": {**OFFICE, "holidays": days}})
    assert refused.status == 400
    assert "give fewer of the 168 holidays" in refused.problem["detail"]


def test_a_batch_checks_the_window_of_a_rule(client: Client) -> None:
    def put(rule: str) -> Reply:
        item = {"id": "b", "data": "MQ==", "rule": rule}
        command = {"command": "put", "queue": "orders", "items": [item]}
        return client.post("/v1/batch", {"commands": [command]})

    assert put('{"window":{"hours":"Sat"}}').status == 200
    assert client.get(f"{Q}/messages/b").json["window"] == {"hours": "Sat"}
    refused = put('{"window":{"hours":"Samstag"}}')
    assert "is neither days nor times" in refused.data.decode()


def test_a_program_in_python_has_the_same(client: Client, clock: FakeClock) -> None:
    with bide.Queue("orders", client.url, clock=clock) as orders:
        office = bide.Window(**OFFICE)
        outcome = orders.put("x", id="a", delay="2h", window=office)
        assert outcome.due == MONDAY
        assert orders.edit("a", window=bide.Window("Sat", "Europe/Berlin"))
        assert orders.edit("a", repeat=bide.Every("1h"))
        message = orders.get("a")
        assert message is not None
        assert (message.window, message.repeat) == (
            bide.Window("Sat", "Europe/Berlin"),
            bide.Every("1h"),
        )
