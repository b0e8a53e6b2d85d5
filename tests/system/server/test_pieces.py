"""Large lists of messages are taken apart as a decoder would read them, and bounded before."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bide.model.limits import MAX_HEADERS, MAX_HTTP_MESSAGES, MAX_PACKED, MAX_PUT_FAILURES
from bide.server.limits import decoding
from bide.server.limits.request_bodies import LargeBodies
from bide.server.problem import Problem
from tests.effort import effort
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve

VALUES = st.recursive(
    st.none() | st.integers() | st.text('ab"\\[]{},:é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\{}[]'), inner),
)


def split(data: bytes, longest: int = 1 << 20) -> tuple[bytes, list[bytes]]:
    return asyncio.run(decoding.split(data, longest, LargeBodies(1).pauses()))


@settings(max_examples=effort(10, 100))
@given(
    st.lists(st.dictionaries(st.text('a"\\{}['), VALUES), max_size=5),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from([8, 64, 100, 1_000]),
)
def test_as_a_decoder_reads_them(
    messages: list[dict[str, object]], indent: int | None, first: bool, size: int
) -> None:
    more = {"on_conflict": "keep"}
    request = {"messages": messages} | more if first else more | {"messages": messages}
    data = json.dumps(request, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "SLICE", size)
        if len(json.dumps(request | {"messages": []}, indent=indent)) + 5 > size:
            with pytest.raises(Problem, match=r"beside its list|does not begin|is missing"):
                split(data)
            return
        around, objects = split(data)
    assert json.loads(around) == request | {"messages": []}
    assert [json.loads(one) for one in objects] == messages


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "does not begin"),
        (b"[]", "does not begin"),
        (b'{"messages": {}}', "does not begin"),
        (b'{"messages": [', "is missing at byte 14"),
        (b'{"messages": [,]}', "an object is missing"),
        (b'{"messages": [{},]}', "an object is missing"),
        (b'{"messages": [{} {}]}', "is missing at byte 16"),
        (b'{"messages": [,{}]}', "is missing at byte 14"),
        (b'{"messages": [1]}', "is missing at byte 14"),
        (b'{"messages": [{"a": "\\"', "does not end"),
        (b'{"messages": [{"a": "\\', "does not end"),
        (b'{"messages": [{"a": [', "does not end"),
        (b'{"messages": [' + b" " * 70_000 + b"{}]}", "is missing at byte 14"),
        (b'{"messages": []' + b" " * 70_000 + b"}", "beside its list"),
    ],
)
def test_what_is_no_such_request(data: bytes, told: str) -> None:
    with pytest.raises(Problem, match=told):
        split(data)


def test_too_many_and_too_long() -> None:
    many = b",".join([b"{}"] * MAX_HTTP_MESSAGES)
    assert len(split(b'{"messages": [' + many + b"]}")[1]) == MAX_HTTP_MESSAGES
    with pytest.raises(Problem, match="more than 10,000"):
        split(b'{"messages": [' + many + b",{}]}")
    with pytest.raises(Problem, match=r"messages\[1\] takes more than 100,000 bytes"):
        split(b'{"messages": [{}, {"a": [' + b"1," * 100_000 + b"1]}]}", 100_000)


def test_an_object_may_take_exactly_so_many_bytes() -> None:
    data = b'{"messages": [{"a": 12345}]}'
    assert split(data, 12)[1] == [b'{"a": 12345}']
    with pytest.raises(Problem, match=r"messages\[0\] takes more than 11 bytes"):
        split(data, 11)


@pytest.mark.parametrize(
    "value",
    [
        b'{"name": "text"},',
        b"[[]],",
        b'{"":{}},',
        b'["["],',
        b'"",',
        b'"' + b'\\"\\\\' * 99 + b'",',
        b"[" * 300 + b"]" * 300 + b",",
    ],
)
def test_a_byte_of_any_shape_takes_the_same_steps(value: bytes) -> None:
    item = b'{"body": [' + value * (1_000_000 // len(value)) + b"0]}"
    steps = 0

    async def pause() -> None:
        nonlocal steps
        steps += 1

    data = b'{"messages": [' + b",".join([item] * 3) + b"]}"
    around, objects = asyncio.run(decoding.split(data, 1 << 20, pause))
    assert (around, objects) == (b'{"messages": []}', [item] * 3)
    assert steps <= 3 * (len(item) / decoding.SLICE + 10)  # the first pieces are smaller


@pytest.mark.parametrize("opening", [b"[a", b"[", b'{"', b'{"":', b'"\\\\'])
def test_what_never_closes_takes_the_same_steps(opening: bytes) -> None:
    steps = 0

    async def pause() -> None:
        nonlocal steps
        steps += 1

    data = b'{"messages": [{"body": ' + opening * (1_000_000 // len(opening))
    with pytest.raises(Problem, match="does not end"):
        asyncio.run(decoding.split(data, 1 << 20, pause))
    assert steps <= len(data) / decoding.SLICE + 10


@pytest.mark.parametrize("before", range(250, 260))
@pytest.mark.parametrize("run", range(6))
def test_an_escape_at_the_end_of_a_step(before: int, run: int) -> None:
    text = "x" * before + "\\" * run + '"]}' + "\\" * run
    item = json.dumps({"body": text}).encode()
    around, objects = split(b'{"messages": [' + item + b",{}]}")
    assert (around, objects) == (b'{"messages": []}', [item, b"{}"])


def test_faults_of_a_large_request_tell_their_place(serve: Serve) -> None:
    client = serve()
    good = {"body": "x" * 100_000}
    for bad, status, place, told in (
        ({"body": 1, "priority": "high"}, 400, "messages[3].priority", "Expected `int`"),
        ({"body": 1, "delai": 5}, 400, "messages[3].delai", "did you mean delay?"),
        ({"body": 1, "headers": {"a": 1}}, 400, "messages[3].headers[...]", "Expected `str`"),
        ({"id": "a"}, 400, "messages[3].body", "neither is given"),
        ({"body": "x" * (1 << 20)}, 400, "messages[3]", "body takes 1,048,578 bytes"),
    ):
        refused = client.post(f"{Q}/put", {"messages": [good, good, good, bad]})
        assert (refused.status, refused.problem.get("field")) == (status, place), refused.json
        assert told in refused.problem["detail"]
    assert client.post(f"{Q}/put", {"messages": [good] * 4, "on_conflict": "no"}).status == 400
    assert client.get(f"{Q}/messages").json["messages"] == []


def test_bodies_that_are_too_large_are_refused_before_they_are_read(serve: Serve) -> None:
    client = serve(max_body=100_000)
    brackets = "[" * 100_001
    refused = client.send("POST", f"{Q}/messages", data=b'{"body":"%b"}' % brackets.encode())
    assert (refused.status, "body takes 100,0" in refused.problem["detail"]) == (400, True)
    spaces = b'{"body": [' + b" " * 500_000 + b"1]}"
    assert client.send("POST", f"{Q}/messages", data=spaces).status == 201
    signs = b'{"body": [' + b"1," * 250_000 + b"1]}"
    told = client.send("POST", f"{Q}/messages", data=signs).problem["detail"]
    assert "body takes 250,00" in told


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
        pytest.param(
            {"command": "cancel", "ids": ["i" * 9] * 66_666},
            {"command": "cancel", "ids": ["i" * 9] * 66_667},
            marks=pytest.mark.full,
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


@pytest.mark.full
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
