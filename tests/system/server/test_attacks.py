"""Attacks on the memory of a running `bide serve`, and on messages that an attacker holds."""

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bide.model import commands as cmd
from bide.model.message import Item
from tests.system.server.client import Client, Q
from tests.system.server.process import ServerProcess

pytestmark = pytest.mark.process

MIB = 1024 * 1024


class Attacker:
    """One connection to a server."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def send(self, method: str, path: str, content: Any = None) -> tuple[int, bytes]:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = {"content-type": "application/json"} if content is not None else {}
        self.connection.request(method, path, None if content is None else data, kind)
        response = self.connection.getresponse()
        return response.status, response.read()

    def batch(self, *commands: cmd.Command) -> tuple[int, bytes]:
        data = msgspec.msgpack.encode({"commands": commands})
        kind = {"content-type": "application/msgpack"}
        self.connection.request("POST", "/v1/batch", data, kind)
        response = self.connection.getresponse()
        return response.status, response.read()


class MeasuringAttacker(Attacker):
    """A connection to a server in processes of its own."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server.port)
        self._server = server

    def peak(self) -> int:
        """Return the most memory that a process of the server has had, in bytes."""
        pids = (self._server.process.pid, *self._server.workers())
        told = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return max(int(re.findall(r"VmHWM:\s*(\d+)", text)[0]) * 1024 for text in told)


@pytest.fixture
def attacker(client: Client) -> Iterator[Attacker]:
    attacker = Attacker(client.port)
    yield attacker
    attacker.connection.close()


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[MeasuringAttacker]:
    with ServerProcess(tmp_path) as server:
        attacker = MeasuringAttacker(server)
        yield attacker
        attacker.connection.close()


@pytest.mark.full
def test_a_long_key_over_many_elements_takes_little_memory(measuring: MeasuringAttacker) -> None:
    assert measuring.send("POST", f"{Q}/messages", {"body": 1})[0] == 201
    before = measuring.peak()
    body = {"k" * 5_000: [*range(100_000), None]}
    assert measuring.send("POST", f"{Q}/messages", {"body": body})[0] == 201
    assert measuring.peak() - before < 60 * MIB


@pytest.mark.full
def test_a_long_string_beside_many_brackets_takes_little_memory(
    measuring: MeasuringAttacker,
) -> None:
    assert measuring.send("POST", f"{Q}/messages", {"body": 1})[0] == 201
    before = measuring.peak()
    body: list[Any] = [[] for _ in range(600)] + ["x" * 1_000_000]
    assert measuring.send("POST", f"{Q}/messages", {"body": body})[0] == 201
    assert measuring.peak() - before < 40 * MIB


def test_long_durations_are_not_remembered(measuring: MeasuringAttacker) -> None:
    for number in range(12):
        wait = f"{number}s" + " " * 4_000_000
        status, answer = measuring.send("POST", f"{Q}/claim", {"wait": wait})
        assert status == 400
        assert len(answer) < 1_000
    assert measuring.peak() < 250 * MIB


@pytest.mark.parametrize("cursor", ["0.9223372036854775808.0", "0.0.9999999999999999999"])
def test_a_cursor_past_what_stores_can_hold_is_refused(attacker: Attacker, cursor: str) -> None:
    for state in ("ready", "delayed", "dead"):
        path = f"{Q}/messages?state={state}&cursor={cursor}"
        assert attacker.send("GET", path)[0] == 400
    scan = cmd.Scan("orders", "ready", cursor=cursor)
    assert attacker.batch(cmd.Put("orders", []), scan)[0] == 400
    assert json.loads(attacker.send("GET", "/v1/queues")[1]) == {"queues": []}


def test_a_lease_of_no_time_or_of_more_than_a_day_is_refused(attacker: Attacker) -> None:
    day = cmd.MAX_LEASE
    attacker.send("POST", f"{Q}/messages", {"body": 1, "id": "a"})
    assert attacker.send("POST", f"{Q}/claim", {"lease": "1441m"})[0] == 400
    for ms in (0, day + 1):
        assert attacker.batch(cmd.Claim("orders", 1, ms, "x"))[0] == 400
    _, answer = attacker.send("POST", f"{Q}/claim", {"lease": "24h"})
    token = json.loads(answer)["messages"][0]["token"]
    lease = {"id": "a", "token": token}
    for length, status in (("24h", 200), ("25h", 400)):
        told = {"leases": [lease], "lease": length}
        assert attacker.send("POST", f"{Q}/extend", told)[0] == status
    held = [cmd.Lease.of("a", token)]
    for ms, status in ((0, 400), (day + 1, 400), (day, 200)):
        assert attacker.batch(cmd.Extend("orders", held, ms))[0] == status


def test_a_batch_of_scans_answers_within_one_budget(measuring: MeasuringAttacker) -> None:
    for number in range(40):
        body = {"id": f"m{number}", "body": "x" * (MIB - 100)}
        assert measuring.send("POST", f"{Q}/messages", body)[0] == 201
    before = measuring.peak()
    scans = [cmd.Scan("orders", "ready", limit=100_000) for _ in range(1_000)]
    finds = [cmd.Find("orders", [f"m{number}" for number in range(40)]) for _ in range(500)]
    claims = [cmd.Claim("orders", 40, 1_000, "x") for _ in range(100)]
    for commands in (scans, finds, claims):
        status, answer = measuring.batch(*commands)
        assert status == 200
        assert len(answer) < 20 * MIB
    status, answer = measuring.send("GET", f"{Q}/messages?limit=1000")
    assert status == 200
    assert len(answer) < 9 * MIB
    assert json.loads(answer)["cursor"]
    assert measuring.peak() - before < 100 * MIB


def test_a_batch_of_lists_of_ended_messages_answers_within_one_budget(
    measuring: MeasuringAttacker,
) -> None:
    measuring.send("PATCH", Q, {"history": "1h"})
    ids = [f"m{number}" for number in range(40)]
    put = cmd.Put("orders", [Item(id, b"1", attempts=1) for id in ids])
    claim = cmd.Claim("orders", len(ids), 60_000, "x")
    release = cmd.Release("orders", ids, "x" * 2_000)  # they die
    assert measuring.batch(put, claim, release)[0] == 200
    lists = [cmd.ListEnded("orders", limit=100_000) for _ in range(1_000)]
    status, answer = measuring.batch(*lists)
    assert status == 200
    assert len(answer) < 20 * MIB
    first, *_, last = msgspec.msgpack.decode(answer)["replies"]
    assert 1 <= len(first["messages"]) <= 40
    assert (last["messages"], last["cursor"]) == ([], "0.")  # it is to be asked again


def test_a_batch_names_a_bounded_number_of_messages(attacker: Attacker) -> None:
    cancel = cmd.Cancel("orders", ["a"] * 90_000)
    assert attacker.batch(cancel, cancel)[0] == 200
    assert attacker.batch(cancel, cancel, cancel)[0] == 413


def test_an_operator_ends_a_lease(attacker: Attacker) -> None:
    attacker.send("POST", f"{Q}/messages", {"body": 1, "id": "a"})
    _, answer = attacker.send("POST", f"{Q}/claim", {"lease": "24h"})
    token = json.loads(answer)["messages"][0]["token"]
    status, answer = attacker.send("POST", f"{Q}/messages/a/release", {"reason": "hangs"})
    assert (status, json.loads(answer)["state"]) == (200, "ready")
    assert attacker.send("POST", f"{Q}/messages/a/release", {})[0] == 409
    assert attacker.send("POST", f"{Q}/messages/b/release", {})[0] == 404
    assert attacker.send("POST", f"{Q}/ack", {"leases": [{"id": "a", "token": token}]})[0] == 409
    assert b"hangs" in attacker.send("GET", f"{Q}/messages/a")[1]
