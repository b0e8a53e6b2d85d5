"""`Queue` and `AsyncQueue` ask a store for the same, and make the same of what it replies."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

import bide
from bide.engines.memory import MemoryEngine
from bide.engines.port import Identities
from bide.exports import to_line
from bide.lane.lane import Lane
from bide.model import commands as cmd
from bide.model.limits import MAX_BYTES
from bide.model.message import Item, version_of
from bide.model.replies import Outcome, Reply
from bide.model.times import LATEST, iso
from bide.observing.explanation import Explanation
from bide.queue.base import all_queues_in
from bide.queue.delivery import Held
from bide.queue.results import Audit, Forecast, Imported
from bide.testing.clock import FakeClock
from tests.start import START
from tests.unit.queue.sync_and_async import Blocking, Loop

MINUTE = 60_000
LATER = START + MINUTE
SOON = LATER / 1000
KNOWN = cmd.Where(after=LATER)


class Recorder(MemoryEngine):
    """A store in memory that writes down what it was asked and what it replied."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[cmd.Command] = []
        self.replies: list[Any] = []

    def execute(
        self, commands: Sequence[cmd.Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        replies = super().execute(commands, now, identities)
        self.asked += commands
        self.replies += replies
        return replies


class Call(NamedTuple):
    """What a user calls, which commands it makes, and what of the replies the user gets."""

    call: Callable[[Any], Any]
    commands: list[cmd.Command]
    result: Callable[[list[Any]], Any] = lambda replies: None


def outcome(replies: list[Any]) -> Any:
    return replies[0].outcomes[0]


def outcomes(replies: list[Any]) -> Any:
    return [outcome for reply in replies for outcome in reply.outcomes]


def refusal(call: Callable[[], object]) -> str:
    """Return how the error of a call tells what is in the queue."""
    with pytest.raises(bide.NotEmpty) as caught:
        call()
    return str(caught.value).partition("not deleted: ")[2].partition(", or")[0]


def messages(replies: list[Any]) -> Any:
    return [message for reply in replies for message in reply.messages]


def count(replies: list[Any]) -> Any:
    return sum(reply.count for reply in replies)


def nothing(replies: list[Any]) -> Any:
    return None


def held(queue: Any, *ids: str) -> Any:
    """Claim what is due, and return the deliveries of these ids."""
    return [delivery for delivery in queue.claim(9) if delivery.id in ids]


CLAIM = cmd.Claim("q", 9, 30_000, "me")
TOKEN = START + 1  # of the first claim of a queue in memory
A, B = cmd.Lease("a", TOKEN), cmd.Lease("b", TOKEN)
DUE = bide.NewMessage({"x": 1}, id="n", at=SOON, attempts=3)

HOUR = 3_600_000
HOURS = START // HOUR * HOUR
"""The last full hour before the start."""
HOURLY, THRICE = '{"every":"1h"}', '{"every":"1h","times":3}'


def run(hours: int, more: str = "") -> str:
    """Return the run of a full hour, so many after the last one."""
    return iso(HOURS + hours * HOUR) + more


DELAYED = Item("d", b"3", delay=MINUTE, group="g")
DELAYED_VERSION = version_of(DELAYED, LATER)
OFFICE = bide.Window("09:00-17:00")
"""It is closed at the start, in the evening."""
OPENING = (START // (24 * HOUR) + 1) * 24 * HOUR + 9 * HOUR
IN_OFFICE = '{"window":{"hours":"09:00-17:00"}}'
HOURLY_IN_OFFICE = '{"every":"1h","window":{"hours":"09:00-17:00"}}'
REPEATED = Item("r", b"5", at=HOURS + HOUR, rule=HOURLY, run=run(1))


def edit_of_run(run: str, at: int) -> cmd.Edit:
    """Return the command that lets the message that repeats stand for another run."""
    version = version_of(REPEATED, HOURS + HOUR)
    due = HOURS + HOUR
    return cmd.Edit(
        "q", ["r"], rule=HOURLY, run=run, at=at, if_due=due, if_version=version, actor="me"
    )


CALLS: dict[str, Call] = {
    "put": Call(
        lambda q: q.put(
            {"x": 1},
            delay="1m",
            id="n",
            priority=9,
            expires=5,
            attempts=3,
            group="g",
            headers={"h": "v"},
            on_conflict="replace",
            if_version="0" * 16,
        ),
        [
            cmd.Put(
                "q",
                [
                    Item(
                        "n",
                        b'{"x":1}',
                        delay=MINUTE,
                        priority=9,
                        expires=5_000,
                        attempts=3,
                        group="g",
                        headers={"h": "v"},
                    )
                ],
                "replace",
                "0" * 16,
            )
        ],
        outcome,
    ),
    "put bytes": Call(
        lambda q: q.put(b"\x00", id="n", at=SOON),
        [cmd.Put("q", [Item("n", b"\x00", json=False, at=LATER)])],
        outcome,
    ),
    "put_many": Call(
        lambda q: q.put_many([DUE], on_conflict="replace"),
        [cmd.Put("q", [Item("n", b'{"x":1}', at=LATER, attempts=3)], "replace")],
        outcomes,
    ),
    "put_many nothing": Call(lambda q: q.put_many([]), [], outcomes),
    "cancel": Call(
        lambda q: q.cancel("d", if_due=SOON, if_version="0" * 16),
        [cmd.Cancel("q", ["d"], LATER, "0" * 16, actor="me")],
        outcome,
    ),
    "cancel by rule": Call(
        lambda q: q.cancel(group="g", after=SOON, before=SOON + 1),
        [cmd.Cancel("q", where=cmd.Where("g", LATER, LATER + 1_000), actor="me")],
        count,
    ),
    "cancel dry": Call(
        lambda q: q.cancel(after=SOON, dry_run=True),
        [cmd.Cancel("q", where=KNOWN, dry_run=True, actor="me")],
        count,
    ),
    "cancel_many": Call(
        lambda q: q.cancel_many(["d", "x"]), [cmd.Cancel("q", ["d", "x"], actor="me")], outcomes
    ),
    "reschedule": Call(
        lambda q: q.reschedule("d", delay=5, if_due=SOON),
        [cmd.Reschedule("q", ["d"], delay=5_000, if_due=LATER, actor="me")],
        outcome,
    ),
    "reschedule at": Call(
        lambda q: q.reschedule("d", at=SOON, if_version="0" * 16),
        [cmd.Reschedule("q", ["d"], LATER, if_version="0" * 16, actor="me")],
        outcome,
    ),
    "reschedule a group": Call(
        lambda q: q.reschedule(group="g", delay=5, before=SOON + 1),
        [
            cmd.Scan("q", where=cmd.Where("g", before=LATER + 1_000), limit=1_000),
            cmd.Reschedule("q", ["d"], delay=5_000, actor="me"),
        ],
        lambda r: 1,
    ),
    "reschedule dry": Call(
        lambda q: q.reschedule(group="g", delay=5, dry_run=True),
        [cmd.Scan("q", where=cmd.Where("g"), limit=1_000)],
        lambda r: 1,
    ),
    "edit": Call(
        lambda q: q.edit(
            "d",
            body={"x": 1},
            priority=9,
            expires="5s",
            attempts=3,
            group=None,
            headers={"h": "v"},
            delay="1m",
            if_version="0" * 16,
        ),
        [
            cmd.Edit(
                "q",
                ["d"],
                b'{"x":1}',
                True,
                9,
                3,
                5_000,
                None,
                {"h": "v"},
                delay=MINUTE,
                if_version="0" * 16,
                actor="me",
            )
        ],
        outcome,
    ),
    "edit a part": Call(
        lambda q: q.edit("z", body=b"\x00"),
        [cmd.Edit("q", ["z"], b"\x00", False, actor="me")],
        outcome,
    ),
    "get": Call(lambda q: q.get("a"), [cmd.Find("q", ["a"])], lambda r: r[0].messages[0]),
    "get nothing": Call(lambda q: q.get("x"), [cmd.Find("q", ["x"])]),
    "peek": Call(lambda q: q.peek(2), [cmd.Scan("q", "next", limit=2)], messages),
    "scan": Call(
        lambda q: list(q.scan("delayed", group="g", after=SOON, before=SOON + 1)),
        [cmd.Scan("q", "delayed", cmd.Where("g", LATER, LATER + 1_000))],
        messages,
    ),
    "ended": Call(
        lambda q: list(q.ended("dead", after=SOON, before=SOON + 1)),
        [cmd.ListEnded("q", "dead", LATER, LATER + 1_000)],
        messages,
    ),
    "dead": Call(lambda q: list(q.dead()), [cmd.Scan("q", "dead")], messages),
    "export": Call(
        lambda q: list(q.export()),
        [cmd.Scan("q")],
        lambda r: [to_line(message) for message in r[0].messages],
    ),
    "load": Call(
        lambda q: q.load(['{"id":"n","due":5,"body":1}', '{"id":"a","due":5,"body":1}']),
        [cmd.Put("q", [Item("n", b"1", at=5, attempts=1), Item("a", b"1", at=5, attempts=1)])],
        lambda r: Imported(stored=1, kept=1),
    ),
    "claim": Call(
        lambda q: q.claim(2, lease="1m"),
        [cmd.Claim("q", 2, MINUTE, "me")],
        lambda r: [("Delivery", m, r[0].token, r[0].now) for m in r[0].messages],
    ),
    "ack": Call(
        lambda q: q.ack(held(q, "a", "b")), [CLAIM, cmd.Ack("q", [A, B])], lambda r: outcomes(r[1:])
    ),
    "retry": Call(
        lambda q: q.retry(held(q, "a", "b"), 5, "no"),
        [CLAIM, cmd.RetryCommand("q", [A, B], 5_000, "no")],
        lambda r: outcomes(r[1:]),
    ),
    "bury": Call(
        lambda q: q.bury(held(q, "a", "b"), "no"),
        [CLAIM, cmd.BuryCommand("q", [A, B], "no")],
        lambda r: outcomes(r[1:]),
    ),
    "release": Call(
        lambda q: q.release(held(q, "a", "b")),
        [CLAIM, cmd.RetryCommand("q", [A, B], release=True)],
        lambda r: outcomes(r[1:]),
    ),
    "release by id": Call(
        lambda q: q.release("z"),
        [cmd.Release("q", ["z"], "released by me", actor="me")],
        lambda r: outcomes(r)[0],
    ),
    "extend": Call(
        lambda q: q.extend(held(q, "a", "b"), 5),
        [CLAIM, cmd.Extend("q", [A, B], 5_000)],
        lambda r: outcomes(r[1:]),
    ),
    "delivery.ack": Call(lambda q: held(q, "a")[0].ack(), [CLAIM, cmd.Ack("q", [A])]),
    "delivery.retry": Call(
        lambda q: held(q, "a")[0].retry(5, "no"), [CLAIM, cmd.RetryCommand("q", [A], 5_000, "no")]
    ),
    "delivery.bury": Call(
        lambda q: held(q, "a")[0].bury("no"), [CLAIM, cmd.BuryCommand("q", [A], "no")]
    ),
    "delivery.release": Call(
        lambda q: held(q, "a")[0].release(), [CLAIM, cmd.RetryCommand("q", [A], release=True)]
    ),
    "delivery.extend": Call(
        lambda q: held(q, "a")[0].extend(5), [CLAIM, cmd.Extend("q", [A], 5_000)]
    ),
    "counts": Call(lambda q: q.counts(), [cmd.Count("q")], lambda r: r[0]),
    "audit": Call(
        lambda q: q.audit(), [cmd.Count("q", recount=True)], lambda r: Audit("q", r[0], [])
    ),
    "forecast": Call(
        lambda q: q.forecast("30s", "2m"),
        [cmd.ForecastCommand("q", 30_000, 4)],
        lambda r: Forecast.of(r[0], 30_000),
    ),
    "explain": Call(
        lambda q: q.explain("d"), [cmd.Explain("q", "d")], lambda r: Explanation("d", "q", r[0])
    ),
    "revive": Call(
        lambda q: q.revive(["z"], delay=5), [cmd.Revive("q", ["z"], 5_000, actor="me")], outcomes
    ),
    "revive all": Call(
        lambda q: q.revive(),
        [cmd.Scan("q", "dead"), cmd.Revive("q", ["z"], actor="me")],
        lambda r: outcomes(r[1:]),
    ),
    "pause": Call(
        lambda q: q.pause(), [cmd.Configure("q", paused=True, actor="me")], lambda r: r[0]
    ),
    "pause for a while": Call(
        lambda q: q.pause(lasting="5s"),
        [cmd.Configure("q", paused=True, paused_for=5_000, actor="me")],
        lambda r: r[0],
    ),
    "resume": Call(lambda q: q.resume(), [cmd.Configure("q", paused=False, actor="me")]),
    "delete": Call(
        lambda q: refusal(q.delete),
        [cmd.Delete("q")],
        lambda replies: "2 delayed, 2 ready, 1 dead. Let its workers finish",
    ),
    "close_group": Call(
        lambda q: q.close_group("g", keep="1m"),
        [
            cmd.CloseGroup("q", "g", MINUTE, actor="me"),
            cmd.Cancel("q", where=cmd.Where("g"), actor="me"),
        ],
        lambda replies: 1,
    ),
    "reopen_group": Call(
        lambda q: q.reopen_group("g"),
        [cmd.ReopenGroup("q", "g", actor="me")],
        lambda replies: False,
    ),
    "closed_groups": Call(
        lambda q: q.closed_groups(),
        [cmd.ClosedGroups("q")],
        lambda replies: replies[0].groups,
    ),
    "purge": Call(
        lambda q: q.purge(state="delayed", before=SOON + 1),
        [cmd.Purge("q", "delayed", LATER + 1_000, actor="me")],
        count,
    ),
    "purge, counted": Call(
        lambda q: q.purge(state="dead", dry_run=True), [cmd.Count("q")], lambda replies: 1
    ),
    "purge before, counted": Call(
        lambda q: q.purge(state="delayed", before=SOON + 1, dry_run=True),
        [cmd.Scan("q", "delayed", cmd.Where(before=LATER + 1_000), max_bytes=MAX_BYTES // 2)],
        lambda replies: 1,
    ),
    "revive, counted": Call(
        lambda q: q.revive(["z", "a", "z"], dry_run=True),
        [cmd.Find("q", ["z", "a"], max_bytes=MAX_BYTES // 2)],
        lambda replies: 1,
    ),
    "revive all, counted": Call(
        lambda q: q.revive(dry_run=True), [cmd.Count("q")], lambda replies: 1
    ),
    "put, repeated": Call(
        lambda q: q.put("x", id="n", repeat=bide.Every("1h", times=3)),
        [cmd.Put("q", [Item("n", b'"x"', at=HOURS + HOUR, rule=THRICE, run=run(1, " left=3"))])],
        outcome,
    ),
    "edit, repeated": Call(
        lambda q: q.edit("d", repeat=bide.Every("1h", times=3), at=SOON),
        [
            cmd.Find("q", ["d"]),
            cmd.Edit(
                "q",
                ["d"],
                rule=THRICE,
                run=f"{iso(LATER)} left=3",
                at=LATER,
                if_version=DELAYED_VERSION,
                actor="me",
            ),
        ],
        lambda replies: outcome(replies[1:]),
    ),
    "edit, repeated no longer": Call(
        lambda q: q.edit("r", repeat=None),
        [
            cmd.Find("q", ["r"]),
            cmd.Edit(
                "q",
                ["r"],
                rule=None,
                run=None,
                if_version=version_of(REPEATED, HOURS + HOUR),
                actor="me",
            ),
        ],
        lambda replies: outcome(replies[1:]),
    ),
    "edit, of nothing": Call(
        lambda q: q.edit("none", window=OFFICE),
        [cmd.Find("q", ["none"]), cmd.Edit("q", ["none"], rule=IN_OFFICE, run=None, actor="me")],
        lambda replies: outcome(replies[1:]),
    ),
    "edit, with a window": Call(
        lambda q: q.edit("d", window=OFFICE),
        [
            cmd.Find("q", ["d"]),
            cmd.Edit(
                "q",
                ["d"],
                rule=IN_OFFICE,
                run=None,
                at=OPENING,
                if_version=DELAYED_VERSION,
                actor="me",
            ),
        ],
        lambda replies: outcome(replies[1:]),
    ),
    "edit, repeated in a window": Call(
        lambda q: q.edit("r", window=OFFICE),
        [
            cmd.Find("q", ["r"]),
            cmd.Edit(
                "q",
                ["r"],
                rule=HOURLY_IN_OFFICE,
                run=iso(OPENING),
                at=OPENING,
                if_version=version_of(REPEATED, HOURS + HOUR),
                actor="me",
            ),
        ],
        lambda replies: outcome(replies[1:]),
    ),
    "edit, with a whole rule": Call(
        lambda q: q.edit("r", repeat=bide.Every("1h"), window=OFFICE),
        [
            cmd.Edit("q", ["r"], rule=HOURLY_IN_OFFICE, run=iso(OPENING), at=OPENING, actor="me"),
        ],
        outcome,
    ),
    "put, in a window": Call(
        lambda q: q.put("x", id="n", window=OFFICE, delay="1m"),
        [cmd.Put("q", [Item("n", b'"x"', at=OPENING, rule=IN_OFFICE)])],
        outcome,
    ),
    "put, in a window that is open": Call(
        lambda q: q.put("x", id="n", window=OFFICE, delay="13h"),
        [cmd.Put("q", [Item("n", b'"x"', delay=13 * HOUR, rule=IN_OFFICE)])],
        outcome,
    ),
    "put, repeated in a window": Call(
        lambda q: q.put("x", id="n", window=OFFICE, repeat=bide.Every("1h")),
        [
            cmd.Put("q", [Item("n", b'"x"', at=OPENING, rule=HOURLY_IN_OFFICE, run=iso(OPENING))]),
        ],
        outcome,
    ),
    "hold": Call(
        lambda q: q.hold("r"),
        [cmd.Find("q", ["r"]), edit_of_run(run(1, " held"), LATEST)],
        lambda replies: outcome(replies[1:]),
    ),
    "resume an id": Call(
        lambda q: q.resume("r"),
        [cmd.Find("q", ["r"])],
        lambda replies: Outcome("r", True, "delayed", HOURS + HOUR),
    ),
    "run_now": Call(
        lambda q: q.run_now("r"),
        [cmd.Find("q", ["r"]), edit_of_run(f"{iso(START)} added", START)],
        lambda replies: outcome(replies[1:]),
    ),
    "backfill": Call(
        lambda q: q.backfill("r", after=(HOURS - HOUR) / 1000, before=(HOURS + 2 * HOUR) / 1000),
        [
            cmd.Find("q", ["r"]),
            cmd.Put(
                "q",
                [Item(f"r@{run(number)}", b"5", at=HOURS + number * HOUR) for number in (-1, 0)],
            ),
        ],
        lambda replies: outcomes(replies[1:]),
    ),
    "backfill nothing": Call(
        lambda q: q.backfill("r", after=SOON, before=SOON), [cmd.Find("q", ["r"])], lambda _: []
    ),
}
"""Of a queue with `a` and `b` ready, `d` of the group `g` delayed by a minute, `z` dead, and `r`,
which repeats each hour."""


def fill(engine: MemoryEngine) -> None:
    due = [Item("a", b"1"), Item("b", b"2"), DELAYED]
    others = [Item("z", b"4", died=START - 1), REPEATED]
    engine.execute([cmd.Put("q", due), cmd.Put("q", others)], START)


def plain(value: Any) -> Any:
    """Return a result without what tells the two faces apart."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, Blocking):
        value = value.target
    if isinstance(value, bide.Delivery | bide.AsyncDelivery):
        kind = type(value).__name__.removeprefix("Async")
        return kind, value.message, value.token, value.claimed
    return value


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, loop: Loop) -> Iterator[tuple[Any, Recorder]]:
    clock, engine = FakeClock(START), Recorder()
    fill(engine)
    engine.asked.clear()
    engine.replies.clear()
    lane = Lane(lambda: engine, clock)
    with all_queues_in(lane):
        if request.param == "sync":
            queue: Any = bide.Queue("q", holder="me")
        else:
            queue = Blocking(bide.AsyncQueue("q", holder="me"), loop)
        yield queue, engine
        queue.close()
    lane.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_makes_its_commands_and_returns_what_was_replied(
    face: tuple[Any, Recorder], name: str
) -> None:
    queue, engine = face
    call, commands, result = CALLS[name]
    value = plain(call(queue))
    assert engine.asked == commands
    assert value == result(engine.replies)


def test_no_method_is_forgotten() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    told = {name.split()[0].rstrip(",") for name in CALLS}
    # In tests of their own.
    elsewhere = {"close", "take", "undo", "history", "result", "configure", "overdue", "recover"}
    elsewhere |= {"past"}
    assert methods(bide.Queue) - elsewhere - {"name", "url"} <= told
    settling = {"ack", "retry", "bury", "release", "extend"}
    assert settling <= methods(Held)
    assert {f"delivery.{name}" for name in settling} <= told
