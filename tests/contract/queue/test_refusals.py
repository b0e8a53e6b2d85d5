"""Bad input: each error names the cause and the mend, and nothing is stored."""

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from bide import App, InvalidArgument, Job, NewMessage, move
from tests.start import START


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.full)])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """None of this reaches a store, and both faces have it checked in one place."""
    return request.param, "memory"


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001  (this is what it is about)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


class Tell(Job):
    guest: int


PUTS: list[tuple[dict[str, Any], str]] = [
    ({"at": NAIVE}, "at=2030-01-01 00:00:00 has no time zone.*tzinfo=UTC"),
    ({"at": math.nan}, "at=nan is not a finite number"),
    ({"at": START}, "looks like milliseconds, give seconds"),
    ({"at": -1}, "not between 1970 and 2100"),
    ({"at": 2027}, "at=2027 is 1970-01-01T00:33:47.000Z .* before 2001 .* for a year write 2027-"),
    ({"delay": START // 1000}, "looks like a time in Unix seconds, .* for a time use at="),
    ({"expires": START // 1000}, "looks like a time in Unix seconds, .* give a length"),
    ({"at": "tomorrow"}, "at='tomorrow' is not a date and time; write at='2027-03-28T09:00.02:00'"),
    (
        {"at": "2027-03-28 09:00"},
        "at='2027-03-28 09:00' is a local date: add its zone, such as timezone='Europe/Paris', or",
    ),
    ({"delay": -1}, "delay=-1 is negative; for now give 0.*at="),
    ({"delay": timedelta(days=-1)}, "is negative"),
    ({"delay": math.nan}, "delay=nan is not a finite number"),
    ({"delay": math.inf}, "delay=inf is not a finite number"),
    ({"delay": 1e300}, "longer than 130 years; are those seconds"),
    ({"delay": "40000d"}, "delay=.40000d. ends past the year 2100$"),
    ({"delay": "soon"}, "delay='soon' is not a valid duration; write '250ms', '30s'"),
    ({"delay": "1h -5m"}, "is not a valid duration"),
    ({"delay": ""}, "is not a valid duration"),
    ({"delay": True}, "delay cannot be of type bool"),
    ({"delay": [1]}, "delay cannot be of type list; give seconds, a timedelta"),
    ({"delay": 1, "at": 1}, "give delay= or at=, not both"),
    ({"priority": 256}, "priority=256 must be a whole number from 0 to 255"),
    ({"priority": -1}, "priority=-1 must be"),
    ({"priority": 1.5}, "priority=1.5 must be"),
    ({"priority": True}, "priority=True must be"),
    ({"attempts": 0}, "attempts=0 must be a whole number from 1 to 10,000"),
    ({"attempts": 10_001}, "attempts=10001 must be"),
    ({"attempts": "3"}, "attempts='3' must be"),
    ({"expires": 0}, "expires must be longer than 0; leave it out for 'never'"),
    ({"expires": -1}, "expires=-1 is negative"),
    ({"id": ""}, "id is 0 bytes long; it may have 1 to 512"),
    ({"id": "x" * 513}, "id is 513 bytes long; it may have 1 to 512, so use a hash of it"),
    ({"id": "ü" * 257}, "id is 514 bytes long"),
    ({"id": "a\nb"}, r"id='a\\nb' has control characters in it; remove them"),
    ({"id": "a\x7f"}, "has control characters"),
    ({"id": "\ud800"}, "is not valid Unicode"),
    ({"id": 42}, "id must be a str, not int; convert it with str"),
    ({"group": ""}, "group is 0 bytes long"),
    ({"group": 42}, "group must be a str, not int"),
    ({"headers": {"a": 1}}, r"headers\['a'\] must map a str to a str, not 1"),
    ({"headers": {1: "a"}}, r"headers\[1\] must map a str to a str"),
    ({"headers": [("a", "b")]}, "headers must map str to str, not be list"),
    ({"headers": {"a": "\ud800"}}, "is not valid Unicode"),
    ({"on_conflict": "ignore"}, "on_conflict='ignore' must be one of keep, replace, raise"),
]

BODIES: list[tuple[Any, str]] = [
    (
        object(),
        "body is of type object, which JSON cannot represent.*encode the whole body",
    ),
    ({"a": {"b": [1, object()]}}, r"body\['a'\]\['b'\]\[1\] is of type object"),
    ({("a", 1): 2}, r"body is of type dict, which JSON.* tuple .*\(keys to str\)"),
    ({"a": math.nan}, r"body\['a'\] is nan.*put None or a string instead"),
    ([1.0, math.inf], r"body\[1\] is inf"),
    ("\ud800", "body is of type str"),
    (DEEP, "nested too deeply"),
    ("x" * (1 << 20), "body takes 1,048,578 bytes, the limit is 1,048,576.*max_body="),
    (b"x" * ((1 << 20) + 1), "body takes 1,048,577 bytes"),
    (NewMessage(NewMessage(1)), r"NewMessage has its own .* body of another.*put\(message\)"),
    (Tell(7), r"Tell belongs to no queue yet; register it with @app.job\(queue\)"),
]


@pytest.mark.parametrize(("options", "text"), PUTS, ids=lambda value: str(value)[:40])
def test_put_refuses(orders: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        orders.put(1, **options)
    assert orders.counts().flow.put == 0


@pytest.mark.parametrize(("options", "text"), PUTS[:-1], ids=lambda value: str(value)[:40])
def test_put_many_refuses_the_same(orders: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        orders.put_many([NewMessage(body="good"), NewMessage(body=1, **options)])
    assert orders.counts().flow.put == 0


@pytest.mark.parametrize(("body", "text"), BODIES, ids=[str(n) for n in range(len(BODIES))])
def test_bodies_that_cannot_be(orders: Any, body: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        orders.put(body)
    assert orders.counts().flow.put == 0


def test_a_body_of_exactly_the_limit_fits(orders: Any, make: Any) -> None:
    assert orders.put(b"x" * (1 << 20))
    assert make("small", max_body=10).put("x" * 8)
    assert make("large", max_body=2 << 20).put(b"x" * (2 << 20))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda q: q.put_many("text"), "put_many takes an iterable.*not str; .* use put"),
        (lambda q: q.put_many({"a": 1}), "not dict"),
        (lambda q: q.put_many(b"x"), "not bytes"),
        (lambda q: q.put_many(5), "not int"),
        (
            lambda q: q.put_many([1], on_conflict="raise"),
            "on_conflict='raise' must be one of keep, replace",
        ),
        (lambda q: q.cancel(), "cancel needs an id, group=.*purge"),
        (lambda q: q.cancel("a", group="g"), "one message by its id, or several.*not both"),
        (lambda q: q.cancel("a", dry_run=True), "not both"),
        (lambda q: q.cancel(""), "id is 0 bytes long"),
        (lambda q: q.cancel(group=""), "group is 0 bytes long"),
        (lambda q: q.cancel(after=NAIVE), "after=.*has no time zone"),
        (lambda q: q.cancel("a", if_due=NAIVE), "if_due=.*has no time zone"),
        (lambda q: q.cancel(group="g", if_due=START / 1000), "are for one message: give its id"),
        (lambda q: q.cancel(group="g", if_version="0" * 16), "are for one message: give its id"),
        (lambda q: q.reschedule(delay=1), "reschedule needs an id, or group="),
        (lambda q: q.reschedule(group="g", delay=1, if_due=START / 1000), "are for one message"),
        (
            lambda q: q.cancel("a", if_version="1"),
            r"if_version='1' is no.*the version of the message",
        ),
        (lambda q: q.cancel("a", if_version=1), "if_version=1 is not a version"),
        (lambda q: q.reschedule("a", delay=1, if_version="A" * 16), "is not a version"),
        (lambda q: q.put(1, id="a", if_version="0" * 16), 'add its id and on_conflict="replace"'),
        (
            lambda q: q.put(1, on_conflict="replace", if_version="0" * 16),
            'add its id and on_conflict="replace"',
        ),
        (
            lambda q: q.put(1, id="a", on_conflict="replace", if_version=""),
            "if_version='' is not a version",
        ),
        (lambda q: q.cancel_many("abc"), "must be a list of str"),
        (lambda q: q.reschedule("a"), "reschedule needs the new due time: delay= or at="),
        (lambda q: q.reschedule("a", delay=1, at=1), "give delay= or at=, not both"),
        (lambda q: q.reschedule("a", delay="40000d"), "past the year 2100"),
        (lambda q: q.get(7), "id must be a str, not int"),
        (lambda q: q.peek(0), "^count=0 must be a whole number from 1 to 10,000"),
        (lambda q: list(q.ended("lost")), "how='lost' must be one of acked, cancelled, expired"),
        (
            lambda q: list(q.scan("sleeping")),
            "state='sleeping' must be one of delayed, ready, leased",
        ),
        (lambda q: list(q.scan(page=0)), "page=0 must be"),
        (lambda q: list(q.scan(before="x")), "before cannot be of type str"),
        (lambda q: q.claim(0), "count=0 must be a whole number from 1 to 100,000"),
        (lambda q: q.claim(1.0), "count=1.0 must be"),
        (lambda q: q.claim(wait=-1), "wait=-1 is negative"),
        (lambda q: q.claim(wait="soon"), "wait='soon' is not a valid duration"),
        (lambda q: q.claim(lease=0), "lease=0s must be between 1 ms and 24 hours"),
        (lambda q: q.claim(lease="31d"), "take a short lease and extend it"),
        (lambda q: q.take(wait=-1), "wait=-1 is negative"),
        (lambda q: q.forecast(bucket=0), "bucket=0s and horizon=1h must give 1 to 10,000 buckets"),
        (lambda q: q.forecast(bucket="1h", horizon="1m"), "must give 1 to 10,000 buckets"),
        (lambda q: q.forecast(bucket="1ms", horizon="1h"), "must give 1 to 10,000 buckets"),
        (lambda q: q.forecast("1s", "10000500ms"), "bucket=1s and horizon=2h46m must give 1 to"),
        (
            lambda q: q.purge(state="leased"),
            "leased messages cannot be purged.*until their leases lapse",
        ),
        (lambda q: q.purge(state="all"), "state='all' must be one of"),
        (lambda q: q.take(retry="soon"), "retry='soon' is not a valid duration"),
        (lambda q: q.ack(["x"]), r"takes a list of deliveries, .* not str; one .*an id is"),
        (lambda q: q.ack("x"), "not str;"),
        (lambda q: q.ack(None), "not NoneType;"),
        (lambda q: q.retry([None]), "a list of deliveries"),
        (lambda q: q.bury([{}]), "a list of deliveries"),
        (lambda q: q.release(5), "not int;"),
        (lambda q: q.ack(iter([])), "takes a list of deliveries, .* not list_iterator;"),
        (lambda q: q.extend(["x"]), "a list of deliveries"),
        (lambda q: q.cancel_many(None), "ids must be a list of str, not NoneType"),
        (lambda q: q.cancel_many([5]), "id must be a str, not int"),
        (lambda q: q.revive(5), "ids must be a list of str, not int"),
        (lambda q: q.revive(b"a"), "not bytes"),
        (lambda q: q.load(None), "load takes lines, as an open file .* not NoneType"),
        (lambda q: q.load("line"), "not str"),
        (
            lambda q: q.load([5]),
            "line 1 is not a message of an export: it is of type int, not text",
        ),
        (
            lambda q: q.load(['{"id": "a", "due": 1, "body": ' + "[" * 5_000 + "]" * 5_000 + "}"]),
            "line 1 is not a message of an export: (maximum recursion|body is nested too deeply)",
        ),
        (
            lambda q: q.load(['{"id": "a", "due": 1, "body": "\ud800"}']),
            "line 1 is not a message of an export: .* surrogates not allowed",
        ),
        (lambda q: q.ack([], iter([])), "results must be a list of 0: one result"),
        (lambda q: q.ack([], "ab"), "results must be a list of 0: one result"),
        (lambda q: q.put(1, at=10**400), "at=10+ is not between 1970 and 2100; that looks like"),
        (lambda q: q.cancel(after=2027), "after=2027 is .* before 2001"),
        (lambda q: q.cancel("a", if_due=2027), "if_due=2027 is .* before 2001"),
        (lambda q: q.reschedule("a", at=2027), "at=2027 is .* before 2001"),
        (lambda q: q.purge(state="dead", before=2027), "before=2027 is .* before 2001"),
        (lambda q: q.revive(["a"], delay=-1), "delay=-1 is negative"),
        (lambda q: q.revive(delay=-1), "delay=-1 is negative"),
        (lambda q: q.revive(["a"], delay="40000d"), "past the year 2100"),
    ],
    ids=[f"call {number}" for number in range(73)],
)
def test_other_calls_refuse(orders: Any, call: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        call(orders)


def test_one_delivery_is_settled_by_itself(orders: Any) -> None:
    orders.put(1)
    (delivery,) = orders.claim()
    with pytest.raises(InvalidArgument, match=r"not (Async)?Delivery; .* delivery\.ack"):
        orders.ack(delivery)
    assert orders.ack((delivery,))[0]


def test_messages_are_no_deliveries_and_the_error_does_not_show_what_they_say(orders: Any) -> None:
    orders.put({"card": "4111-1111"}, id="a")
    message = orders.get("a")
    for wrong in ([message], message, [message.body]):
        with pytest.raises(InvalidArgument, match="takes a list of deliveries") as refused:
            orders.ack(wrong)
        assert "4111" not in str(refused.value)


def test_a_url_of_an_app_is_a_text() -> None:
    with pytest.raises(
        InvalidArgument, match="url=5 must be a str; for a file write 'sqlite:///path"
    ):
        App(5)  # type: ignore[arg-type]


def test_move_takes_queues(orders: Any) -> None:
    url: Any = "sqlite:///bide.db"
    for pair in ((url, orders), (orders, url)):
        with pytest.raises(InvalidArgument, match=r"move takes two bide\.Queue, not "):
            move(*pair)


def test_settling_refuses_what_cannot_be_and_keeps_the_lease(orders: Any) -> None:
    orders.put(1)
    (delivery,) = orders.claim()
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: delivery.retry(-1), "delay=-1 is negative"),
        (lambda: delivery.retry("40000d"), "past the year 2100"),
        (lambda: orders.retry([delivery], "40000d"), "past the year 2100"),
        (lambda: delivery.extend(0), "lease=0s must be between"),
    ]
    for call, text in calls:
        with pytest.raises(InvalidArgument, match=text):
            call()
    delivery.ack()


@pytest.mark.parametrize(
    "name", ["", " ", "-a", "a b", "a\n", "ü", "x" * 129, "a/b/c", "/a", "a/", 7, None]
)
def test_names_of_queues_that_break_the_rule(make: Any, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not a valid name of a queue: 1 to 128 of"):
        make(name)


@pytest.mark.parametrize("name", ["a", "Orders.v2", "a_b-c:d", "9", "x" * 128, "tenant/orders"])
def test_names_of_queues_that_keep_the_rule(make: Any, name: str) -> None:
    assert make(name).name == name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_body": 0}, "max_body=0 must be a number of bytes above 0"),
        ({"max_body": "1M"}, "max_body='1M' must be"),
        ({"keep": -1}, "keep=-1 is negative"),
        ({"keep": "long"}, "keep='long' is not a valid duration"),
        ({"holder": ""}, "holder is 0 bytes long"),
        ({"holder": 5}, "holder must be a str"),
    ],
)
def test_a_queue_refuses_options_that_cannot_be(
    make: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        make(**options)


def test_an_invalid_argument_is_a_value_error(orders: Any) -> None:
    with pytest.raises(ValueError, match="negative"):
        orders.put(1, delay=-1)
