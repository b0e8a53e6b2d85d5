"""Whoever claims a message whose run is over plans its next run; the caller does not see it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import bide
from bide.engines.memory import MemoryEngine
from bide.engines.port import Identities
from bide.lane.lane import Lane
from bide.model import commands as cmd
from bide.model.errors import StoreUnavailable
from bide.model.message import Item, Message
from bide.model.replies import Claimed, Found, Outcomes, Reply, expect
from bide.model.runs import Run
from bide.model.time_rule import TimeRule
from bide.testing.clock import FakeClock
from tests.start import START

HOUR = 3_600_000
NOW = START // HOUR * HOUR
"""A full hour."""


class Faulty(MemoryEngine):
    """A store in memory that refuses some commands."""

    refused: type[cmd.Command] | None = None

    def execute(
        self, commands: Sequence[cmd.Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        for command in commands:
            if self.refused is not None and isinstance(command, self.refused):
                raise StoreUnavailable("the store is away")
        return super().execute(commands, now, identities)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def engine() -> Faulty:
    return Faulty()


@pytest.fixture(params=["caller's thread", "lane's thread"])
def ask(
    request: pytest.FixtureRequest, clock: FakeClock, engine: Faulty
) -> Iterator[Callable[[cmd.Command], Any]]:
    """Provide what executes a command on a lane, in each of its two ways."""
    lane = Lane(lambda: engine, clock)

    def execute(command: cmd.Command) -> Any:
        if request.param == "caller's thread":
            return lane.call(command)
        return lane.call(command, wait=0)

    yield execute
    lane.close()


def put(ask: Callable[[cmd.Command], Any], rule: bide.Repeat, **fields: Any) -> None:
    item = Item("a", b"1", at=NOW, rule=rule.text, run=Run(NOW).text)
    ask(cmd.Put("q", [Item(**{**as_dict(item), **fields})]))


def as_dict(item: Item) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__struct_fields__}


def claimed(ask: Callable[[cmd.Command], Any]) -> Claimed:
    return expect(Claimed, ask(cmd.Claim("q", 5, 1_000, "w")))


def message(ask: Callable[[cmd.Command], Any], id: str = "a") -> Message:
    (read,) = expect(Found, ask(cmd.Find("q", [id]))).messages
    assert read is not None
    return read


def ack(ask: Callable[[cmd.Command], Any], reply: Claimed) -> None:
    assert expect(Outcomes, ask(cmd.Ack("q", reply.leases))).outcomes[0].done


def test_a_run_that_somebody_acked_without_a_plan_is_planned(
    ask: Callable[[cmd.Command], Any],
) -> None:
    put(ask, bide.Every("1h"))
    ack(ask, claimed(ask))
    assert message(ask).run == "ended 2023-11-14T22:00:00.000Z"
    reply = claimed(ask)
    assert (reply.messages, reply.next) == ([], HOUR)
    planned = message(ask)
    assert (planned.state, planned.due, planned.attempt) == ("delayed", NOW + HOUR, 0)
    assert planned.run == "2023-11-14T23:00:00.000Z after=2023-11-14T22:00:00.000Z"


def test_others_are_delivered_in_the_same_claim(ask: Callable[[cmd.Command], Any]) -> None:
    put(ask, bide.Every("1h"))
    ack(ask, claimed(ask))
    ask(cmd.Put("q", [Item("b", b"2"), Item("c", b"3", rule=bide.Every("1h").text, run="1")]))
    reply = claimed(ask)
    assert [delivered.id for delivered in reply.messages] == ["b"]
    assert reply.next is None


def test_what_goes_back_hides_no_others(ask: Callable[[cmd.Command], Any]) -> None:
    night = TimeRule(window=bide.Window("23:00-24:00")).text
    closed = [Item(str(number), b"1", at=NOW - 1, rule=night) for number in range(20)]
    ask(cmd.Put("q", [*closed, Item("plain", b"1", at=NOW)]))
    reply = expect(Claimed, ask(cmd.Claim("q", 1, 1_000, "w")))
    assert [delivered.id for delivered in reply.messages] == ["plain"]
    empty = expect(Claimed, ask(cmd.Claim("q", 1, 1_000, "w")))
    assert (empty.messages, empty.next) == ([], 1_000)  # when the lease ends


def test_a_run_without_attempts_becomes_a_dead_letter_once(
    ask: Callable[[cmd.Command], Any], engine: Faulty, clock: FakeClock
) -> None:
    put(ask, bide.Every("1h"), attempts=1)
    claimed(ask)
    clock.advance(1)  # the lease lapses
    engine.refused = cmd.Renew  # the dead letter is put, and then the store is away
    assert claimed(ask).messages == []
    engine.refused = None
    letter = message(ask, "a@2023-11-14T22:00:00.000Z")
    assert (letter.state, letter.attempt, letter.failures[0].lapsed) == ("dead", 1, True)
    clock.advance(1)
    reply = claimed(ask)
    assert reply.messages == []
    assert [died.id for died in reply.died] == ["a"]
    assert message(ask).due == NOW + HOUR
    assert message(ask, letter.id) == letter


def test_what_cannot_be_planned_now_is_planned_later(
    ask: Callable[[cmd.Command], Any],
    engine: Faulty,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(ask, bide.Every("1h"))
    ack(ask, claimed(ask))
    engine.refused = cmd.Renew
    with caplog.at_level(logging.WARNING):
        assert claimed(ask).messages == []
    assert (
        "q: messages that repeat or have a local date were not planned: the store is away"
        in caplog.text
    )
    assert message(ask).state == "leased"
    engine.refused = None
    clock.advance(1)
    assert claimed(ask).messages == []
    assert message(ask).due == NOW + HOUR


def test_a_rule_that_cannot_be_read_is_left_to_others(
    ask: Callable[[cmd.Command], Any], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ask(cmd.Put("q", [Item("a", b"1", rule='{"moon":"full"}', run=Run(NOW).text)]))
    with caplog.at_level(logging.ERROR):
        assert claimed(ask).messages == []
    assert "a of q has a rule, and is not delivered: " in caplog.text
    left = message(ask)
    assert (left.state, left.attempt, left.due) == ("delayed", 0, NOW + 60_000)
    assert left.error is not None
    assert "is not a rule" in left.error


def test_a_run_that_is_too_late_makes_place_for_one_that_is_not(
    ask: Callable[[cmd.Command], Any], clock: FakeClock
) -> None:
    put(ask, bide.Every("1h"), expires=HOUR // 2)
    clock.advance("5h10m")
    # The run of the last full hour takes its place.
    (delivered,) = claimed(ask).messages
    assert (delivered.due, delivered.attempt) == (NOW + 5 * HOUR, 1)
    assert ask(cmd.Count("q")).flow.expired == 1
