"""A connection is cut at each place of an exchange: each answer is true, nothing happens twice."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from bide.engines.port import Identity
from bide.engines.postgres import PostgresEngine, from_url
from bide.lane.lane import Lane
from bide.model import commands as cmd
from bide.model.errors import OutcomeUnknown
from bide.model.message import Item, Progress
from bide.model.replies import Claimed, Outcomes, Reply
from bide.testing.clock import FakeClock
from bide.testing.conformance.driver import START, Driver
from tests.effort import one_in
from tests.postgres_server import PostgresServer
from tests.proxy import Fault, Faults, Proxy
from tests.system.engines.postgres.test_pooler import bouncer

Scene = Callable[[Driver], cmd.Command]


class AtPlace(Faults):
    """One fault, at a place in the order of what passes."""

    def __init__(self, place: int) -> None:
        super().__init__(0)
        self.left = place

    def draw(self) -> Fault | None:
        self.left -= 1
        return "cut" if self.left == 0 else None


def version(driver: Driver, id: str) -> str:
    driver.put(id, delay=60_000)
    return driver.get(id).version


def two_leases(driver: Driver) -> list[cmd.Lease]:
    return [driver.lease("a"), driver.lease("b")]


def stopping(driver: Driver) -> list[cmd.Lease]:
    leases = two_leases(driver)
    driver.cancel("a", running=True)
    return leases


def with_dead(driver: Driver) -> Driver:
    driver.put("a", "b", delay=60_000)
    driver.set_aside("a")
    return driver


def waiting(driver: Driver, **fields: Any) -> Driver:
    driver.put("a", "b", "c", delay=60_000, **fields)
    return driver


def held(driver: Driver) -> Driver:
    two_leases(driver)
    return driver


def due(driver: Driver) -> Driver:
    driver.put("a", "b", "c")
    return driver


CHANGES: dict[str, Scene] = {
    "put": lambda d: cmd.Put(d.queue, [Item("a", b"1", delay=60_000)]),
    "put again": lambda d: cmd.Put(waiting(d).queue, [Item("a", b"2", delay=60_000)]),
    "put many": lambda d: cmd.Put(
        waiting(d).queue, [Item(id, b"2", delay=70_000) for id in ("x", "a", "y")]
    ),
    "put with a priority": lambda d: cmd.Put(d.queue, [Item("a", b"1", delay=1, priority=9)]),
    "put replace": lambda d: cmd.Put(
        waiting(d).queue, [Item("a", b"2", delay=70_000)], on_conflict="replace"
    ),
    "put revive": lambda d: cmd.Put(
        with_dead(d).queue, [Item("a", b"2", delay=70_000)], on_conflict="revive"
    ),
    "put if_version": lambda d: cmd.Put(
        d.queue, [Item("a", b"2", delay=70_000)], "replace", if_version=version(d, "a")
    ),
    "put from an outbox": lambda d: cmd.Put(
        d.queue, [Item("a", b"1", delay=60_000)], origin=cmd.Origin("shop", ["1"], "0")
    ),
    "cancel": lambda d: cmd.Cancel(waiting(d).queue, ["a"]),
    "cancel what is not there": lambda d: cmd.Cancel(waiting(d).queue, ["none", "b", "a"]),
    "cancel if_version": lambda d: cmd.Cancel(d.queue, ["a"], if_version=version(d, "a")),
    "cancel by rule": lambda d: cmd.Cancel(waiting(d, group="g").queue, where=cmd.Where(group="g")),
    "stop": lambda d: cmd.Cancel(d.queue, [held.id for held in two_leases(d)], running=True),
    "stop by rule": lambda d: cmd.Cancel(held(d).queue, where=cmd.Where(after=0), running=True),
    "reschedule": lambda d: cmd.Reschedule(waiting(d).queue, ["a"], delay=90_000),
    "reschedule if_due": lambda d: cmd.Reschedule(
        waiting(d).queue, ["a"], delay=90_000, if_due=START + 60_000
    ),
    "edit": lambda d: cmd.Edit(waiting(d).queue, ["a"], data=b"7"),
    "edit if_version": lambda d: cmd.Edit(d.queue, ["a"], priority=7, if_version=version(d, "a")),
    "claim": lambda d: cmd.Claim(due(d).queue, 2, 60_000, "w"),
    "ack": lambda d: cmd.Ack(d.queue, two_leases(d)),
    "ack again": lambda d: cmd.Ack(d.queue, [*two_leases(d), cmd.Lease("none", 5)]),
    "retry": lambda d: cmd.RetryCommand(
        d.queue, two_leases(d), delay=60_000, reason="no \U0001f600"
    ),
    "release": lambda d: cmd.Release(d.queue, [lease.id for lease in two_leases(d)]),
    "bury": lambda d: cmd.BuryCommand(d.queue, two_leases(d), "bad"),
    "report": lambda d: cmd.Extend(d.queue, two_leases(d), None, [Progress(1), None]),
    "ack of what is stopping": lambda d: cmd.Ack(d.queue, stopping(d)),
    "retry of what is stopping": lambda d: cmd.RetryCommand(d.queue, stopping(d)),
    "extend of what is stopping": lambda d: cmd.Extend(d.queue, stopping(d), 90_000),
    "extend": lambda d: cmd.Extend(d.queue, two_leases(d), lease=90_000),
    "revive": lambda d: cmd.Revive(with_dead(d).queue, ["a"], delay=60_000),
    "purge": lambda d: cmd.Purge(with_dead(d).queue, "dead"),
    "purge by id": lambda d: cmd.Purge(with_dead(d).queue, "dead", ids=["a"]),
    "configure": lambda d: cmd.Configure(d.queue, keep=60_000),
    "pause": lambda d: cmd.Configure(d.queue, paused=True),
    "delete": lambda d: cmd.Delete(d.queue),
}


@pytest.fixture(params=["direct", "pooled"])
def proxied(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    postgres_url: Callable[[], str],
    proxy_before: Callable[[str | int], Proxy],
) -> Iterator[tuple[str, Proxy, str]]:
    """Provide the URL of a store, a proxy before its server or a pooler, and the URL through it."""
    url = postgres_url()
    schema = url.rpartition("&schema=")[2]

    def through(socket: str) -> tuple[str, Proxy, str]:
        proxy = proxy_before(socket)
        address = f"postgresql://bide@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
        return url, proxy, f"{address}&schema={schema}&reconnect=60s"

    if request.param == "direct":
        yield through(f"{postgres.folder}/.s.PGSQL.5432")
        return
    with bouncer(postgres) as pooler:
        folder = pooler.partition("host=")[2].partition("&")[0]
        yield through(f"{folder}/.s.PGSQL.6432")


def told(reply: Reply) -> object:
    """Return what a reply says, without what differs from one claim to the next."""
    if isinstance(reply, Claimed):
        messages = [(one.id, one.state, one.attempt, one.until) for one in reply.messages]
        return messages, reply.now, reply.died
    return reply


@pytest.mark.parametrize("name", one_in(6, CHANGES))
def test_an_answer_is_true_wherever_the_connection_is_cut(
    proxied: tuple[str, Proxy, str], name: str
) -> None:
    url, proxy, through = proxied
    scene = CHANGES[name]
    with closing(from_url(urlsplit(url))()) as direct:
        lane = Lane(from_url(urlsplit(through)), FakeClock(START))
        lane.call(scene(Driver(direct, "first", watched=False)))
        for place in itertools.count(1):
            driver, twin = (
                Driver(direct, f"{kind}{place}", watched=False) for kind in ("cut", "twin")
            )
            command, same = scene(driver), scene(twin)
            (right,) = direct.execute([same], START)
            faults = proxy.faults = AtPlace(place)
            answer = lane.call(command)
            proxy.faults = None
            assert told(answer) == told(right), (place, answer, right)
            if name != "delete":
                assert driver.counts() == twin.counts(), place
            if isinstance(answer, Claimed):
                leases = [cmd.Lease(one.id, answer.token) for one in answer.messages]
                assert all(driver.ack(*leases))
            if faults.left > 0:
                break
        assert place > 2  # a request and an answer were cut off
        lane.close()


def identity(number: int, *, place: int = 0, repeated: bool = False) -> Identity:
    return Identity("lane:test", number, place, repeated)


def put(id: str) -> cmd.Put:
    return cmd.Put("q", [Item(id, b"1", delay=60_000)])


def dones(reply: Reply) -> list[bool]:
    assert isinstance(reply, Outcomes)
    return [outcome.done for outcome in reply.outcomes]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_repetition_waits_for_an_original_that_still_runs(
    postgres: PostgresServer, engine: PostgresEngine, ends: str
) -> None:
    (first,) = engine.execute([put("a")], None, [identity(1)])
    assert dones(first) == [True]
    call = f"SELECT * FROM {engine.schema}._change('cancel', 'q', NULL, '{{a}}'"
    named = ", p_sender => 'lane:test', p_number => 2, p_place => '0')"
    with postgres.client() as original:
        original.autocommit = False
        original.execute((call + named).encode())
        replies: list[Reply] = []

        def repeat() -> None:
            replies.extend(
                engine.execute([cmd.Cancel("q", ["a"])], None, [identity(2, repeated=True)])
            )

        repetition = threading.Thread(target=repeat)
        repetition.start()
        with postgres.client() as other:
            waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while other.execute(waits.encode()).fetchone() != (True,):
                assert repetition.is_alive()
        getattr(original, ends)()
        repetition.join(60)
    assert dones(replies[0]) == [True]
    (again,) = engine.execute([cmd.Cancel("q", ["a"])], None, [identity(3)])
    assert dones(again) == [False]


def test_commands_of_a_batch_are_repeated_one_by_one_or_together(engine: PostgresEngine) -> None:
    engine.execute([put("a")], None, [identity(1)])
    commands: list[cmd.Command] = [put("b"), cmd.Cancel("q", ["a", "none"]), put("b")]
    places = [identity(2, place=place) for place in range(3)]
    replies = engine.execute(commands, None, places)
    assert list(map(dones, replies)) == [[True], [True, False], [False]]
    repeated = [msgspec.structs.replace(one, repeated=True) for one in places]
    assert engine.execute(commands, None, repeated) == replies
    for command, place, reply in zip(commands, repeated, replies, strict=True):
        assert engine.execute([command], None, [place]) == [reply]
    assert engine.execute(commands[1:], None, [repeated[1], identity(2, place=9)])[0] == replies[1]


def test_puts_that_were_joined_are_repeated_one_by_one_or_together(engine: PostgresEngine) -> None:
    engine.execute([put("there")], None, [identity(1)])
    puts: list[cmd.Command] = [
        cmd.Put("q", [Item(id, b"1", delay=60_000) for id in ids])
        for ids in (["a", "there"], ["b"], ["a", "c", "there"])
    ]
    places = [identity(2, place=place) for place in (0, 1, 7)]
    replies = engine.execute(puts, None, places)
    assert list(map(dones, replies)) == [[True, False], [True], [False, True, False]]
    engine.execute([cmd.Cancel("q", ["a", "b", "c"])])
    repeated = [msgspec.structs.replace(one, repeated=True) for one in places]
    for command, place, reply in zip(puts, repeated, replies, strict=True):
        assert engine.execute([command], None, [place]) == [reply]
    assert engine.execute(puts, None, repeated) == replies
    assert engine.execute(puts, None, places) == replies  # the original comes later


def test_what_idle_senders_were_answered_is_forgotten(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    for number in range(1, 4):
        engine.execute([put(f"m{number}")], None, [identity(number)])
    table = f"{engine.schema}.answer"
    with postgres.client() as client:

        def numbers_after(seconds: int) -> list[int]:
            client.execute(f"UPDATE {table} SET seen = seen - {seconds} * 1000".encode())
            client.execute(f"UPDATE {engine.schema}.store SET forgot = 0".encode())
            client.execute(f"SELECT {engine.schema}._fold()".encode())
            rows = client.execute(f"SELECT number FROM {table} ORDER BY number".encode())
            return [number for (number,) in rows]

        assert numbers_after(0) == [0, 1, 2, 3]  # statements may run that do not see the last
        assert numbers_after(3) == [3]
        assert numbers_after(890) == [3]
        assert numbers_after(10) == []
        with pytest.raises(OutcomeUnknown):
            engine.execute([put("m3")], None, [identity(3, repeated=True)])
        client.execute(
            f"INSERT INTO {table} SELECT 'web:' || n, 1, {engine.schema}._moment(NULL) - n"
            " FROM generate_series(1, 1005) AS n".encode()
        )
        numbers_after(0)
        oldest = f"SELECT count(*), max(_moment(NULL) - seen) < 60000 FROM {table}"
        client.execute(f"SET search_path = {engine.schema}".encode())
        assert client.execute(oldest.encode()).fetchall() == [(1000, True)]


def test_an_answer_that_is_too_large_is_not_remembered(engine: PostgresEngine) -> None:
    many = [f"{'x' * 100}{number}" for number in range(2_000)]
    engine.execute([cmd.Put("q", [Item(id, b"1", delay=60_000) for id in many])])
    cancel = cmd.Cancel("q", many)
    (first,) = engine.execute([cancel], None, [identity(1)])
    assert all(dones(first))
    with pytest.raises(OutcomeUnknown, match="too large"):
        engine.execute([cancel], None, [identity(1, repeated=True)])


class Passing(Faults):
    """Counts what passes."""

    def __init__(self) -> None:
        super().__init__(0)
        self.passed = 0

    def draw(self) -> Fault | None:
        self.passed += 1
        return None


def several(number: int) -> list[cmd.Command]:
    return [cmd.Claim("q", 1, 60_000, "w"), cmd.Cancel("q", ["ab"[number - 1]])]


@pytest.mark.parametrize(
    ("commands_of", "identities", "round_trips"),
    [
        (lambda number: [put(f"new{number}")], True, 1),
        (lambda number: [cmd.Find("q", ["a"])], False, 1),
        (lambda number: [cmd.Cancel("q", ["ab"[number - 1]])], True, 1),
        (lambda number: [cmd.Claim("q", 1, 60_000, "w")], True, 1),
        # The row of the batch and locks are sent with the first command, answers with the commit.
        pytest.param(several, True, 3, id="each command, the commit"),
        pytest.param(several, False, 3, id="each command, the commit, without identities"),
    ],
)
def test_how_many_round_trips_a_batch_takes(
    postgres: PostgresServer,
    postgres_url: Callable[[], str],
    proxy_before: Callable[[str | int], Proxy],
    commands_of: Callable[[int], list[cmd.Command]],
    identities: bool,
    round_trips: int,
) -> None:
    schema = postgres_url().rpartition("&schema=")[2]
    proxy = proxy_before(f"{postgres.folder}/.s.PGSQL.5432")
    address = f"postgresql://bide@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    with closing(from_url(urlsplit(f"{address}&schema={schema}"))()) as engine:
        engine.execute([put("a"), put("b")])
        engine.execute([cmd.Put("q", [Item("due", b"1")])])
        engine.execute([cmd.Put("q", [Item("due too", b"1")])])
        for number in (1, 2):  # the first one prepares the statements
            commands = commands_of(number)
            passing = proxy.faults = Passing()
            places = [identity(number, place=place) for place in range(len(commands))]
            engine.execute(commands, None, places if identities else None)
    assert passing.passed == 2 * round_trips
