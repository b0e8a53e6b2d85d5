"""Texts, numbers and times of a subclass are taken for what they are, by every store."""

import enum
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pendulum
import pytest
from freezegun import freeze_time
from markupsafe import Markup

import bide
from bide.testing import FakeClock
from tests.contract.queue.conftest import Make


class Text(str):
    """As Django's SafeString: `str` of it is itself."""

    def __str__(self) -> str:
        return self


class Float(float):
    """As numpy.float64."""


class Number(int): ...


class Binary(bytes): ...


class Day(date): ...


class Length(timedelta): ...


class Price(Decimal): ...


class Name(UUID): ...


class Level(enum.IntEnum):
    HIGH = 9


def test_texts_of_a_subclass_are_texts(make: Make, clock: FakeClock) -> None:
    orders = make(history="1h", holder=Text("me"), actor=Text("ann"))
    orders.put(1, id=Text("a"), group=Text("g"), headers={Text("h"): Text("x")}, delay="1h")
    orders.put_many([bide.NewMessage(2, id=Text("b"), group=Text("g"))])
    assert orders.edit(Text("a"), group=Text("k"), headers={"h": Text("y")})
    message = orders.get(Text("a"))
    assert (message.id, message.group, message.headers) == ("a", "k", {"h": "y"})
    kinds = {type(text) for text in (message.id, message.group, *message.headers.items())}
    assert kinds <= {str, tuple}
    assert [each.id for each in orders.scan(Text("delayed"), group=Text("k"))] == ["a"]
    version = Text(message.version)
    assert orders.reschedule(Text("a"), delay=Text("2h"), if_version=version)
    (delivery,) = orders.claim(2)
    assert orders.get("b").holder == "me"
    delivery.retry(reason=Text("no luck"))
    assert orders.get("b").failures[-1].reason == "no luck"
    assert orders.cancel(Text("a"))
    assert orders.history(Text("a"))[0].by == "ann"
    assert orders.cancel(group=Text("g")) == 1
    assert orders.audit()


def test_the_name_of_a_queue_may_be_of_a_subclass(make: Make) -> None:
    orders = make(name=Text("mails"))
    orders.put(1)
    assert orders.counts().sizes.ready == 1
    assert type(orders.name) is str


def test_numbers_of_an_enumeration_are_numbers(make: Make) -> None:
    orders = make()
    orders.put(1, id="a", priority=Level.HIGH, attempts=Level.HIGH, delay=Level.HIGH)
    message = orders.get("a")
    assert (message.priority, message.attempts) == (9, 9)
    assert type(message.priority) is int
    assert orders.edit("a", priority=Number(8), delay=0)
    (delivery,) = orders.claim(Number(1))
    assert delivery.message.priority == 8
    with pytest.raises(bide.InvalidArgument, match="priority=True must be"):
        orders.put(1, priority=True)


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (Text("x"), "x"),
        (Markup("<b>"), "<b>"),
        (Float(1.5), 1.5),
        (Number(5), 5),
        (Level.HIGH, 9),
        (Binary(b"x"), b"x"),
        (Day(2030, 1, 1), "2030-01-01"),
        (pendulum.datetime(2030, 1, 1, 12), "2030-01-01T12:00:00Z"),
        (pendulum.time(12, 30), "12:30:00"),
        (pendulum.duration(days=1, seconds=5), "P1DT5S"),
        (Length(days=1, seconds=5), "P1DT5S"),
        (Price("4.50"), "4.50"),
        (Name(int=4), "00000000-0000-0000-0000-000000000004"),
    ],
)
def test_bodies_and_their_parts_of_a_subclass(make: Make, body: Any, stored: Any) -> None:
    orders = make()
    orders.put(body, id="a")
    assert orders.get("a").body == stored
    if not isinstance(stored, bytes):
        orders.put({Text("key"): [body]}, id="b")
        assert orders.get("b").body == {"key": [stored]}


def test_numbers_of_a_subclass_that_are_not_finite_are_refused(make: Make) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"body\['total'\] is nan, which JSON cannot"):
        make().put({"total": Float("nan")})


def test_times_of_freezegun(make: Make) -> None:
    orders = make()
    with freeze_time("2030-01-01 12:00"):
        orders.put(
            {"at": datetime.now(UTC), "on": datetime.now(UTC).date()}, id="a", at=datetime.now(UTC)
        )
    message = orders.get("a")
    assert message.body == {"at": "2030-01-01T12:00:00Z", "on": "2030-01-01"}
    assert message.due == 1_893_499_200_000


def test_results_of_a_subclass(make: Make) -> None:
    orders = make(result_ttl="1h")
    orders.put(1, id="a")
    (delivery,) = orders.claim()
    delivery.ack(result={"total": Float(1.5), "name": Text("x")})
    assert orders.result("a") == {"total": 1.5, "name": "x"}
