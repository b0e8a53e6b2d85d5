"""A batch in msgpack is bounded before it is read."""

from typing import Any

import msgspec
import pytest

from bide.model.limits import MAX_HEADERS, MAX_PACKED, MAX_PUT_FAILURES
from tests.server.client import Client, Reply

FAILURE = [1, 0, "w", "r"]


def packed(**fields: Any) -> bytes:
    command = {"command": "find", "queue": "q", **fields}
    return msgspec.msgpack.encode({"commands": [command] * 3})


FIELDS = {
    "id": "a",
    "data": b"1" * 20_000,
    "json": False,
    "headers": {str(n): "" for n in range(10_000)},
}
FAILED = {"id": "a", "data": b"1", "failures": [FAILURE] * MAX_PUT_FAILURES}


@pytest.mark.parametrize(
    ("fields", "past"),
    [
        ({"ids": ["i" * 9] * 66_666}, {"ids": ["i" * 9] * 66_667}),
        (
            {"command": "cancel", "ids": ["i" * 9] * 66_666},
            {"command": "cancel", "ids": ["i" * 9] * 66_667},
        ),
        ({"command": "put", "items": [FIELDS] * 16}, {"command": "put", "items": [FIELDS] * 17}),
        (
            {"command": "put", "items": [FAILED] * 1_666},
            {"command": "put", "items": [FAILED] * 1_667},
        ),
    ],
)
def test_a_packed_batch_holds_a_bounded_number_of_objects(
    client: Client, fields: dict[str, Any], past: dict[str, Any]
) -> None:
    def send(fields: dict[str, Any]) -> Reply:
        data = packed(**fields)
        return client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")

    assert send(fields).status == 200
    assert send(past).status == 413


def test_a_packed_batch_holds_a_bounded_number_of_values(client: Client) -> None:
    def send(count: int) -> Reply:
        one = {"command": "find", "queue": "q", "junk": msgspec.Raw(b"\x91" * count + b"\xc0")}
        data = msgspec.msgpack.encode({"commands": [one]})
        return client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")

    values = (MAX_PACKED // 4_096 + 1) * 4_096  # where it is looked
    assert "nested too deeply" in str(send(MAX_PACKED - 100).problem["detail"])
    assert send(values).status == 413


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": [], **{f"junk{number}": None for number in range(10_000)}},
        {"ids": ["i"] * 100_001},
        {"command": "cancel", "ids": [], "versions": ["v"] * 100_001},
        {"command": "cancel", "ids": [], "origin": {"outbox": "o", "rows": ["r"] * 100_001}},
    ],
    ids=["fields", "ids", "versions", "rows"],
)
def test_a_packed_command_that_announces_too_much_is_not_read(
    client: Client, fields: dict[str, Any]
) -> None:
    data = packed(**fields)
    refused = client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")
    assert refused.status == 400
    assert "of length <= 100" in refused.problem["detail"]


@pytest.mark.parametrize("put", [True, False])
def test_headers_in_a_packed_batch_are_bounded(client: Client, put: bool) -> None:
    def send(size: int) -> Reply:
        headers = {"a": "b" * (size - 8)}
        one: dict[str, Any] = {"command": "edit", "ids": ["a"], "headers": headers}
        if put:
            one = {"command": "put", "items": [{"id": "a", "data": b"1", "headers": headers}]}
        data = msgspec.msgpack.encode({"commands": [{"queue": "q", **one}]})
        return client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")

    assert send(MAX_HEADERS).status == 200
    refused = send(MAX_HEADERS + 1)
    assert refused.status == 400
    assert "headers take 262,145 bytes, the limit is 262,144" in refused.problem["detail"]


def test_many_commands_are_refused_before_they_are_read(client: Client) -> None:
    one = msgspec.msgpack.encode({"command": "count", "queue": "q"})
    data = b"\x81\xa8commands\xdd" + (100_000).to_bytes(4, "big") + one * 100_000
    refused = client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")
    assert refused.status == 400
    assert "length <= 1000" in refused.problem["detail"]
