"""Batches in msgpack are read in steps as a decoder reads them whole."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.model import commands as cmd
from bide.model.limits import MAX_COUNT, MAX_PACKED
from bide.model.message import Failure, Item
from bide.model.undoing import Bulk, Undo
from bide.server.limits import decoding
from bide.server.limits.decoding import RequestBatch, unpack
from bide.server.limits.request_bodies import LargeBodies
from bide.server.problem import Problem
from tests.system.server.client import Client, Reply

ITEM = Item("a", b'{"n": 1}', group="g", headers={"h": "1"}, failures=(Failure(1, 2, "w", "why"),))

RUN = cmd.NextRun(1_900_000_000_000, "2030-03-17T17:46:40.000Z")

COMMANDS: list[Any] = [
    cmd.Put("q", [ITEM, Item("b", b"2")], "replace"),
    cmd.Put("q", []),
    cmd.Cancel("q", ["a", "b"]),
    cmd.Ack("q", [cmd.Lease("a", 7, "secret")], results=[b"1"]),
    cmd.Renew("q", [cmd.Lease("a", 7, "secret"), cmd.Lease("b", 7)], [RUN, None], "dead"),
    cmd.Edit("q", ["a"], headers={"h": "1"}),
    cmd.Edit("q", ["a"], rule='{"every":"1h"}', run="2030-01-01T00:00:00.000Z"),
    cmd.Put("q", [Item("a", b"1", rule='{"every":"1h"}', run="2030-01-01T00:00:00.000Z")]),
    Bulk(queue="q", verb="cancel", undo="0" * 32),
    Undo(queue="q", undo="0" * 32),
]


def read(data: bytes) -> Any:
    return asyncio.run(unpack(data, LargeBodies(1).pauses()))


@pytest.fixture(params=["at once", "in steps"], autouse=True)
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in steps":
        monkeypatch.setattr(decoding, "UNCOUNTED_BYTES", 0)
        monkeypatch.setattr(decoding, "LARGE", 0)


def test_every_command_is_read_as_it_was_written() -> None:
    data = msgspec.msgpack.encode({"commands": COMMANDS})
    assert read(data) == RequestBatch(COMMANDS)
    assert read(msgspec.msgpack.encode({"commands": []})) == RequestBatch([])


@pytest.mark.parametrize(
    "given",
    [
        {"commands": 1},
        {"commands": [1]},
        {"commands": [{"command": "put", "queue": "q"}]},
        {"commands": [{"command": "put", "queue": "q", "items": 1}]},
        {"commands": [{"command": "put", "queue": "q", "items": [{"id": 1}]}]},
        {"commands": [{"command": "nothing", "queue": "q", "items": []}]},
        {"commands": [{"command": "find", "queue": "q", "items": 1}]},
        {"commands": [{"command": "renew", "queue": "q", "leases": [["a", 7]]}]},
        {"commands": [{"command": "renew", "queue": "q", "leases": [], "next": [["soon", ""]]}]},
        {"commands": [], "more": 1},
    ],
)
def test_what_is_no_batch(given: dict[str, Any]) -> None:
    if given["commands"] == [{"command": "find", "queue": "q", "items": 1}]:
        given["commands"][0]["ids"] = 5
    with pytest.raises(msgspec.DecodeError):
        read(msgspec.msgpack.encode(given))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=40)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
)


@given(VALUES)
def test_any_value_is_counted_to_its_end(value: object) -> None:
    data = msgspec.msgpack.encode(value)

    def count(data: bytes) -> None:
        asyncio.run(decoding.count_values(data, LargeBodies(1).pauses()))

    count(data)
    with pytest.raises(msgspec.DecodeError):
        count(data[:-1])


def test_a_put_with_too_many_header_fields_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "LARGE", 0)
    monkeypatch.setattr("bide.model.limits.MAX_FIELDS_TOTAL", 10)
    headers = dict.fromkeys("abcdef", "")
    items = [*({"id": "a", "data": b"1", "headers": headers} for _ in range(2)), {"id": 1}]
    put = {"command": "put", "queue": "q", "items": items}
    with pytest.raises(Problem, match="more than 10 header fields"):
        read(msgspec.msgpack.encode({"commands": [put]}))


def test_a_list_that_announces_too_many_values_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "UNCOUNTED_BYTES", 0)
    monkeypatch.setattr(decoding, "LARGE", 0)
    announced = b"\x81\xa8commands\xdd" + MAX_PACKED.to_bytes(4, "big")
    with pytest.raises(Problem, match="more than 6,000,000 values"):
        read(announced + b"\xc0" * 4_096)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536])
def test_lengths_of_each_size_are_counted(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(decoding, "UNCOUNTED_BYTES", 0)
    monkeypatch.setattr(decoding, "LARGE", 0)
    monkeypatch.setattr(decoding, "_VALUES_PER_PAUSE", 1)
    monkeypatch.setattr("bide.model.limits.MAX_PACKED", 20)
    assert read(msgspec.msgpack.encode({"commands": [cmd.Put("q", [Item("a", b"1" * size)])]}))
    with pytest.raises(Problem, match="more than 20 values"):
        read(msgspec.msgpack.encode({"commands": [cmd.Find("q", ["i"] * 20)]}))


def test_a_packed_put_has_as_many_messages_as_other_commands_name(client: Client) -> None:
    def send(count: int) -> Reply:
        items = [{"id": "a", "data": b"", "json": False}] * count
        one = {"command": "put", "queue": "q", "items": items}
        data = msgspec.msgpack.encode({"commands": [one]})
        return client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")

    assert send(MAX_COUNT).status == 200
    refused = send(MAX_COUNT + 1)
    assert refused.status == 400
    assert "length <= 100000" in refused.problem["detail"]
