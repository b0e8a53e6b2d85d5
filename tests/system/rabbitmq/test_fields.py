"""What becomes of properties and headers, there and back again."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest
from aio_pika import IncomingMessage
from aiormq import spec
from aiormq.abc import DeliveredMessage
from pamqp.header import ContentHeader

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_AMQP_HEADERS, MAX_BODY
from bide.model.message import Message
from bide.targets.amqp import parse
from bide.targets.rabbitmq.messages import GIVEN_ID, due_of, item_of, to_amqp

ADDRESS = parse("amqp://mq/?exchange=shop&key=default")


def message(headers: dict[str, str] | None = None, **fields: Any) -> Message:
    given: dict[str, Any] = {
        "id": "m1",
        "queue": "orders",
        "data": b"{}",
        "json": True,
        "due": 1_700_000_000_500,
        "priority": 0,
        "attempt": 1,
        "attempts": 10,
        "state": "leased",
        "headers": headers,
    }
    return Message(**given | fields)


def arrival(headers: dict[str, Any] | None = None, **fields: Any) -> IncomingMessage:
    """What aio-pika hands over."""
    given: dict[str, Any] = {"body": b"hi", "routing_key": "k"} | fields
    body, key = given.pop("body"), given.pop("routing_key")
    properties = spec.Basic.Properties(headers=headers or {}, **given)
    header = ContentHeader(body_size=len(body), properties=properties)
    delivery = spec.Basic.Deliver("consumer", 1, False, "x", key)
    return IncomingMessage(DeliveredMessage(delivery, header, body, cast(Any, None)))


def test_a_message_is_published_persistent_with_its_id_and_due_time() -> None:
    body, sent, key = to_amqp(message(), ADDRESS)
    assert (body, key, sent.message_id) == (b"{}", "default", "m1")
    assert (sent.delivery_mode, sent.content_type) == (2, "application/json")
    assert sent.timestamp == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert sent.headers == {
        "bide-queue": "orders",
        "bide-due": 1_700_000_000_500,
        "bide-attempt": 1,
    }


def test_reserved_headers_set_key_expiration_priority_and_properties() -> None:
    _, sent, key = to_amqp(
        message(
            {
                "amqp-key": "a.b",
                "amqp-expiration": "60000",
                "amqp-priority": "7",
                "amqp-correlation-id": "c",
                "amqp-reply-to": "r",
                "amqp-type": "t",
                "content-type": "text/plain",
                "tenant": "eu",
            }
        ),
        ADDRESS,
    )
    assert (key, sent.expiration, sent.priority) == ("a.b", "60000", 7)
    assert (sent.correlation_id, sent.reply_to, sent.message_type) == ("c", "r", "t")
    headers = sent.headers or {}
    assert (sent.content_type, headers["tenant"]) == ("text/plain", "eu")
    assert not any(name.startswith("amqp-") for name in headers)


def test_the_priority_of_the_queue_is_passed_on() -> None:
    assert to_amqp(message(priority=9), ADDRESS).properties.priority == 9


@pytest.mark.parametrize("name", ["x-death", "x-first-death-queue", "x-delivery-count"])
def test_what_the_broker_adds_is_taken_out_both_ways(name: str) -> None:
    assert name not in (to_amqp(message({name: "1"}), ADDRESS).properties.headers or {})
    assert name not in (item_of(arrival({name: "1"})).headers or {})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"id": "é" * 128}, "id is longer than the 255 bytes"),
        ({"headers": {"amqp-key": "k" * 256}}, "amqp-key is longer"),
        ({"headers": {"amqp-expiration": "soon"}}, "amqp-expiration='soon' must be"),
        ({"headers": {"amqp-expiration": "-1"}}, "amqp-expiration"),
        ({"headers": {"amqp-priority": "256"}}, "from 0 to 255"),
        ({"headers": {"amqp-headers": "[1]"}}, "JSON object"),
        ({"headers": {"amqp-headers": "{"}}, "not what bide writes"),
        ({"headers": {"a": "x" * MAX_AMQP_HEADERS}}, "headers take 100,001"),
        ({"headers": {"n" * 256: ""}}, "name of more than 255"),
    ],
)
def test_what_cannot_be_a_message_of_amqp_is_refused_with_the_reason(
    fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        to_amqp(message(**fields), ADDRESS)


def test_properties_and_typed_headers_come_back_as_they_were() -> None:
    headers: dict[str, Any] = {
        "text": "é",
        "number": 5,
        "none": None,
        "list": [1, {"a": True}],
        "bytes": b"\xff",
        "time": datetime(2030, 1, 1, tzinfo=UTC),
        "money": Decimal("1.50"),
        "no number": [float("inf"), float("-inf")],
        "amqp-key": "mine",
        "content-type": "a header",
        "like ours": {"amqp:bytes": "no hex"},
    }
    properties = {
        "content_type": "application/x-python",
        "content_encoding": "utf-8",
        "reply_to": "r",
        "correlation_id": "c",
        "message_type": "t",
        "app_id": "shop",
        "priority": 3,
        "message_id": "m1",
    }
    item = item_of(arrival({**headers, "x-delay": 5}, expiration="1500", **properties))
    assert (item.id, item.delay, item.data, item.json) == ("m1", 5, b"hi", False)
    _, back, key = to_amqp(
        message(item.headers, data=item.data, json=item.json, priority=item.priority), ADDRESS
    )
    assert back.marshal()  # the library can send all of them
    assert {name: getattr(back, name) for name in properties} == properties
    assert (back.expiration, key) == ("1500", "k")
    told = back.headers or {}
    assert {name: told[name] for name in headers} == headers
    assert "x-delay" not in told


def test_a_header_that_is_no_number_stays_one() -> None:
    item = item_of(arrival({"ratio": float("nan")}))
    headers = to_amqp(message(item.headers), ADDRESS).properties.headers or {}
    assert math.isnan(cast(Any, headers["ratio"]))


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ({}, (None, 0)),
        ({"x-delay": 1500}, (None, 1500)),
        ({"x-delay": "1500"}, (None, 1500)),
        ({"x-delay": -5}, (None, 0)),
        ({"x-delay": None}, (None, 0)),
        ({"x-opt-delivery-time": 1_893_456_000_000}, (1_893_456_000_000, 0)),
        ({"bide-delay": "1h30m"}, (None, 5_400_000)),
        ({"bide-delay": 2.5}, (None, 2_500)),
        ({"bide-delay": "2.5"}, (None, 2_500)),
        ({"bide-at": 1_893_456_000}, (1_893_456_000_000, 0)),
        ({"bide-at": "1893456000.5"}, (1_893_456_000_500, 0)),
        ({"bide-at": "2030-01-01T01:00:00+01:00"}, (1_893_456_000_000, 0)),
        ({"bide-at": datetime(2030, 1, 1, tzinfo=UTC)}, (1_893_456_000_000, 0)),
    ],
)
def test_headers_say_when_a_message_is_due(
    headers: dict[str, Any], due: tuple[int | None, int]
) -> None:
    assert due_of(headers) == due


@pytest.mark.parametrize(
    "headers",
    [
        {"x-delay": "soon"},
        {"x-delay": True},
        {"x-delay": float("nan")},
        {"x-delay": float("inf")},
        {"x-delay": float("-inf")},
        {"x-delay": 10**15},
        {"x-delay": "9" * 30},
        {"bide-delay": "-1s"},
        {"bide-delay": "5 mins"},
        {"bide-at": "2030-01-01T00:00:00"},
        {"bide-at": "tomorrow"},
        {"bide-at": 1_893_456_000_000},
        {"bide-at": 2027},
        {"bide-delay": 1_893_456_000},
        {"x-delay": 1_893_456_000_000},
        {"x-opt-delivery-time": 1_893_456_000},
        {"x-delay": 5, "bide-delay": "5s"},
        {"x-delay": {"a": 1}},
    ],
)
def test_a_delay_that_cannot_be_is_refused(headers: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        due_of(headers)


def test_headers_that_are_nested_too_deeply_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": [deep]}
    with pytest.raises(InvalidArgument, match="more than 100 levels"):
        item_of(arrival(deep))
    text = '{"a":' * 100_000 + "1" + "}" * 100_000
    with pytest.raises(InvalidArgument, match="not what bide writes there"):
        to_amqp(message({"amqp-headers": text}), ADDRESS)


def test_only_a_body_that_is_json_is_stored_as_json() -> None:
    def stored(body: bytes, kind: str | None = "application/json") -> bool:
        item = item_of(arrival(body=body, content_type=kind))
        assert item.data == body
        return item.json

    assert stored(b'{"a": 1}')
    assert stored(b"1", "application/json; charset=utf-8")
    assert not stored(b"{oops")
    assert not stored(b"[" * 501 + b"]" * 501)
    assert not stored(b'{"a": 1}', None)
    assert not stored(b'{"a": 1}', "text/plain")


def test_a_message_without_a_usable_id_gets_one() -> None:
    assert item_of(arrival()).id != item_of(arrival()).id
    item = item_of(arrival(message_id="a\nb"))
    assert (item.id != "a\nb", (item.headers or {})[GIVEN_ID]) == (True, "a\nb")


def test_an_oversized_body_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="takes 1,048,577 bytes, the limit is 1,048,576"):
        item_of(arrival(body=b"x" * (MAX_BODY + 1)))
