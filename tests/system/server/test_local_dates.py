"""Local dates over HTTP: puts, changes and answers; a server that plans by newer time zones."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.model.times import unix
from bide.server.app import ServerApp
from bide.server.settings import Settings
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve
from tests.system.server.process import ServerProcess
from tests.zone_data import BEFORE, LATER, TOWN, machine_with, write_zones

ONE = f"{Q}/messages/a"
NINE = {"at": "2097-07-01 09:00", "timezone": TOWN}
DUE = unix(datetime(2097, 7, 1, 7, tzinfo=UTC))
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def old_zones(tmp_path: Path) -> Iterator[Path]:
    folder = write_zones(tmp_path / "old", "2099a", {TOWN: BEFORE})
    with machine_with(folder):
        yield folder


@pytest.fixture
def client(serve: Serve, tmp_path: Path) -> Client:
    return serve(ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db")))


def get(client: Client) -> Any:
    return client.get(ONE).json


def patch(client: Client, path: str, content: Any, **headers: Any) -> Reply:
    return client.send("PATCH", path, content, **headers)


def test_a_date_is_put_and_answered(client: Client) -> None:
    assert client.put(ONE, {"body": 1, **NINE}).json["due"] == DUE
    message = get(client)
    assert (message["date"], message["timezone"]) == ("2097-07-01 09:00", TOWN)
    (put,) = client.post(f"{Q}/put", {"messages": [{"body": 2, **NINE}]}).json["outcomes"]
    assert put["due"] == DUE
    path = f"{Q}/messages?at=2097-07-01T09:00&timezone={TOWN}"
    assert client.post(path, {"body": 3}).json["due"] == DUE


@pytest.mark.parametrize("headers", [{}, {"if-match": "seen"}])
def test_a_date_is_changed(client: Client, headers: dict[str, str]) -> None:
    client.put(ONE, {"body": 1, "delay": "1h", "group": "g"})
    for hour in (10, 11):
        if headers:
            headers = {"if-match": client.get(ONE).headers["etag"]}
        at = f"2097-07-01 {hour}:00"
        reply = patch(client, ONE, {"at": at, "timezone": TOWN, "priority": 3}, **headers)
        assert (reply.status, reply.json["due"]) == (200, DUE + (hour - 9) * HOUR)
        if headers:
            assert reply.headers["etag"] == client.get(ONE).headers["etag"]
        assert (get(client)["date"], get(client)["priority"]) == (at, 3)
    moved = patch(client, f"{Q}/messages?group=g", NINE)
    assert (moved.status, moved.json["count"], get(client)["due"]) == (200, 1, DUE)
    patch(client, ONE, {"delay": "1h"})
    assert "date" not in get(client)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"at": "2097-07-01 09:00"}, "has a zone|with a zone"),
        ({"timezone": TOWN}, "timezone= goes with a local date"),
        ({"at": 4_000_000_000, "timezone": TOWN}, "is an instant"),
        ({**NINE, "delay": "1h"}, "cannot be combined"),
        ({**NINE, "timezone": "Mars"}, "not known"),
        ({**NINE, "repeat": {"every": "1h"}}, "cannot be combined"),
    ],
)
def test_what_is_refused(client: Client, content: dict[str, Any], error: str) -> None:
    client.put(ONE, {"body": 1, "delay": "1h"})
    for reply in (
        client.put(f"{Q}/messages/b", {"body": 1, **content}),
        patch(client, ONE, content),
    ):
        assert reply.status == 400, reply.json
        assert any(part in reply.json["detail"].replace("`", "") for part in error.split("|"))
    assert patch(client, f"{Q}/messages?group=g&undo=true", NINE).status == 400


def test_a_server_plans_anew_by_its_own_zones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    new = write_zones(tmp_path / "new", "2099b", {TOWN: LATER})
    with bide.Queue("orders", url) as orders:
        orders.put(1, id="a", at="2097-07-01 09:00", timezone=TOWN)
        monkeypatch.setenv("PYTHONTZPATH", str(new))
        with ServerProcess(tmp_path, "--store", url) as server:
            with bide.Queue("orders", server.url) as remote:
                for _look in range(600):
                    (message,) = remote.scan()
                    if message.due == DUE + HOUR:
                        break
                    time.sleep(0.05)
                assert message.due == DUE + HOUR
                assert remote.audit()
