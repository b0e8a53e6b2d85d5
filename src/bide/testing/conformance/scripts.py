# ruff: noqa: D102  (the name of each case says what it checks)
"""Random scripts: any order of commands gets the replies of the memory engine.

They have few ids and short times, and settle what was claimed last, so that their commands
interact.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from random import Random
from typing import Any, ClassVar, NamedTuple, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.message import (
    EXPIRED_KEEP,
    LAPSED,
    STATES,
    Failure,
    Item,
    Message,
    State,
    version_of,
)
from bide.model.replies import Claimed, Explained, Page, Reply, Sizes
from bide.model.times import LIMITS
from bide.testing.conformance.driver import HOUR, START, Driver, leases
from bide.testing.conformance.watch import Watch, audit, dump

T = TypeVar("T")

EXAMPLES = int(os.environ.get("BIDE_EXAMPLES", "100"))
FIRST = Random().getrandbits(32) if "BIDE_EXAMPLES" in os.environ else 0
"""The seed of the first script; the others follow."""

IDS = ["a", "10", "9", "1e1"]
QUEUES = ["q", "q2"]
GROUPS = ["g", "g2"]
DELAYS = [0, 0, 0, 1, 2, 5, 20, HOUR]
MOMENTS = [START - 5, START - 1, START, START + 1, START + 2, START + 5, START + 10]
STEPS = [*[0, 0, 0, 1, 1, 2, 3, 5, 10] * 4, EXPIRED_KEEP]
SORTED: list[State] = ["delayed", "leased", "dead", "acked", "expired"]
"""States whose messages have one order; ready ones have theirs once a claim has looked at them."""
WEIGHTS = [0, 0, 0, 1, 9, 10, 255]
VERSIONS = [
    version_of(Item("a", data, attempts=attempts), due)
    for data in (b"1", b"2") for attempts in (1, 2) for due in (START, START + 1, START + 2)
]  # fmt: skip


class Held(NamedTuple):
    """A command about leases; the tokens are known only when the script is played."""

    verb: Any
    queue: str
    refs: list[tuple[int, str]]
    """Each lease by how many were given after it, and which token it has."""
    fields: dict[str, Any]


Op = cmd.Command | Held
Script = list[tuple[int, list[Op]]]
Draw = Callable[[Random], T]


def some(values: Iterable[T]) -> Draw[T]:
    """Return what draws one of some values."""
    known = list(values)
    return lambda chance: chance.choice(known)


def either(*draws: Draw[Any]) -> Draw[Any]:
    """Return what draws from one of several."""
    return lambda chance: chance.choice(draws)(chance)


def several(draw: Draw[T], most: int, least: int = 0) -> Draw[list[T]]:
    """Return what draws a list."""
    return lambda chance: [draw(chance) for _ in range(chance.randint(least, most))]


def build(make: Callable[..., T], *draws: Draw[Any], **named: Draw[Any]) -> Draw[T]:
    """Return what draws the arguments of a call, and calls it."""
    return lambda chance: make(
        *(draw(chance) for draw in draws), **{name: draw(chance) for name, draw in named.items()}
    )


queues = some([*QUEUES[:1] * 6, *QUEUES[1:]])
ids = some(IDS)
named, a_few = several(ids, 3), several(ids, 3, 1)
actors = some([None, "ann"])
delays = some(DELAYS)
maybe_due = some([*[None] * 8, *MOMENTS])
maybe_version = some([*[None] * 9, *VERSIONS])
wheres = build(cmd.Where, group=some([None, None, *GROUPS]), after=maybe_due, before=maybe_due)
rules = either(some([None]), wheres)
items = build(
    Item,
    id=ids,
    data=some([b"1", b"2"]),
    json=some([True, True, False]),
    at=some([*[None] * 12, *MOMENTS]),
    delay=delays,
    priority=some(WEIGHTS),
    expires=some([*[None] * 9, 0, 2, 10]),
    attempts=some([1, 2, 2, 3]),
    group=some([None, *GROUPS]),
    headers=some([None, None, {}, {"a": "b"}]),
    attempt=some([0, 0, 0, 1]),
    failures=some([(), (), (Failure(1, START - 3, "w9", LAPSED),)]),
    died=some([*[None] * 10, START - 2, START + 3]),
    created=some([*[None] * 5, 0, START - 9]),
    latest=some([None, 0, 2, 20]),
)
edits = build(
    cmd.Edit,
    queue=queues,
    ids=several(ids, 3),
    data=some([UNSET, UNSET, b"1", b"2"]),
    json=some([True, False]),
    priority=some([UNSET, UNSET, *WEIGHTS]),
    attempts=some([UNSET, UNSET, 1, 2, 3]),
    expires=some([UNSET, UNSET, None, 2, 10]),
    group=some([UNSET, UNSET, None, *GROUPS]),
    headers=some([UNSET, UNSET, None, {}, {"a": "b"}]),
    at=some([None, None, None, None, *MOMENTS[:3]]),
    delay=some([None, None, None, *DELAYS]),
    if_version=maybe_version,
)


def _put(queue: str, items: list[Item], on_conflict: Any, version: str | None = None) -> cmd.Put:
    """Return a put; `latest` is for those that replace."""
    if on_conflict != "replace":
        items = [replace(item, latest=None) for item in items]
    return cmd.Put(queue, items, on_conflict, version)


def _forwarded(command: Any, outbox: str, number: int, before: str) -> cmd.Command:
    """Return a command with an origin; a row is always about the same message."""
    ids = [item.id for item in command.items] if isinstance(command, cmd.Put) else command.ids
    rows = [f"{id}.{index}.{number}" for index, id in enumerate(ids)]
    forwarded: cmd.Command = replace(command, origin=cmd.Origin(outbox, rows, before))
    return forwarded


def _ack_with_results(queue: str, leases: list[cmd.Lease]) -> cmd.Ack:
    return cmd.Ack(queue, leases, [b"1", None, b"[2]", b"null"][: len(leases)])


def _held(verb: Any, **fields: Draw[Any]) -> Draw[Held]:
    which = some(["right"] * 5 + ["stale", "another's"])

    def refs(chance: Random) -> list[tuple[int, str]]:
        return [(before, which(chance)) for before in chance.sample(range(4), chance.randint(0, 3))]

    return build(Held, some([verb]), queues, refs, build(dict, **fields))


PUTS = build(_put, queues, several(items, 4, 1), some(["keep"] * 3 + ["replace"] * 2 + ["revive"]))
CLAIMS = build(
    cmd.Claim, queues, some([0, 1, 1, 2, 3, 10]), some([1, 3, 10, 100, 100]), some(["w1", "w2"]),
    slots=some([None, None, 0, 1, 2]),
)  # fmt: skip
SETTLES: list[Draw[Held]] = [
    _held(cmd.Ack),
    _held(_ack_with_results),
    _held(cmd.Extend, lease=some([0, 1, 5, 100])),
    _held(cmd.Retry, delay=delays, reason=some(["", "no"]), release=some([True, False])),
    _held(cmd.Bury, reason=some(["", "bad"])),
]
CHANGES: list[Draw[cmd.Command]] = [
    build(cmd.Cancel, queues, named, if_due=maybe_due, actor=actors),
    build(cmd.Cancel, queues, named, if_version=maybe_version),
    build(cmd.Reschedule, queues, named, maybe_due, delays, if_version=maybe_version),
    build(_put, queues, several(items, 2), some(["replace"]), maybe_version),
    build(cmd.Cancel, queues, where=wheres, dry_run=some([True, False]), actor=actors),
    build(cmd.Reschedule, queues, named, maybe_due, delays, if_due=maybe_due),
    build(cmd.Reschedule, queues, named, delay=delays),
    edits,
    build(
        _forwarded,
        either(PUTS, build(cmd.Cancel, queues, a_few), build(cmd.Reschedule, queues, a_few)),
        some(["shop", "mail"]), some([1, 2]), some(["", "", "9"]),
    ),
    build(cmd.Release, queues, named, some(["released", "no"])),
    build(cmd.Revive, queues, named, delays),
    build(cmd.Bury, queues, reason=some(["", "moved"]), ids=named, actor=actors),
    build(cmd.Purge, queues, some(["dead"]), ids=named, actor=actors),
    build(cmd.Delete, queues),
    build(
        cmd.Configure, queues, some([None, None, None, False, False, True]),
        some([None, None, 0, 3, 10, 3 * EXPIRED_KEEP]), some([None, None, 0, 3, EXPIRED_KEEP]),
        some([None, None, 0, 2, EXPIRED_KEEP]), actor=actors,
    ),
    build(cmd.Purge, queues, some(STATES), maybe_due, actor=actors),
]  # fmt: skip
READS: list[Draw[cmd.Command]] = [
    build(cmd.Find, queues, several(ids, 6)),
    build(cmd.Scan, queues, some(SORTED), rules, limit=some([1, 2, 3, 500])),
    build(cmd.Scan, queues, some(["ready", "next"]), rules, limit=some([500])),
    build(cmd.Scan, queues, where=rules, limit=some([500])),
    build(cmd.Scan, queues, prefix=some(["", "1", "10", "a", "z"]), limit=some([500])),
    build(cmd.Count, queues, some([True, False])),
    build(cmd.History, queues, ids),
    build(cmd.Forecast, queues, some([1, 5, HOUR]), some([0, 1, 3])),
    build(cmd.Explain, queues, some([None, *IDS])),
    build(cmd.Queues, some(["", "q", "q2", "%"])),
]
OPS = either(*[PUTS, CLAIMS] * 6, *SETTLES * 2, *CHANGES, *READS)
"""One command of a script; puts, claims and what settles come more often than the rest."""


limits, rates = some([None, 0, 1, 2]), some([None, None, 0, 1_500, 15_000])
LIMITING = build(
    cmd.Configure, queues, limit=limits, rate=rates, group_limit=limits, group_rate=rates
)


def _steps(op: Draw[Op], most: int, first: Draw[list[Op]]) -> Draw[Script]:
    """Return what draws how far time moves, then a batch, and so on."""
    step = build(lambda *step: step, some(STEPS), several(op, most, 1))
    return build(lambda ops, rest: [(0, ops), *rest], first, several(step, 40, 20))


scripts = _steps(OPS, 5, several(PUTS, 2))
limited_scripts = _steps(either(*[OPS] * 6, LIMITING), 6, several(LIMITING, 3, 2))
"""Scripts that begin with limits of a queue, and change them now and then."""


class Player:
    """Plays the steps of a script on an engine.

    It remembers the leases that the engine gave, for scripts that use right and wrong ones.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.watch = Watch(engine)
        self._given = {queue: [cmd.Lease("a", 0)] for queue in QUEUES}

    def batch(self, ops: Sequence[Op], now: int) -> list[Reply]:
        """Execute a step as one batch."""
        commands = [self._resolve(op) for op in ops]
        return self._plain(commands, self._engine.execute(commands, now))

    def singly(self, ops: Sequence[Op], now: int, *, watched: bool = False) -> list[Reply]:
        """Execute a step command by command, each checked against the lifecycle if watched."""
        commands = [self._resolve(op) for op in ops]
        if watched:
            return self._plain(commands, [self.watch.execute(each, now) for each in commands])
        return self._plain(commands, [self._engine.execute([each], now)[0] for each in commands])

    def _plain(self, commands: list[cmd.Command], replies: list[Reply]) -> list[Reply]:
        """Return what is to be compared of replies, and remember their leases."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Claimed) and reply.messages:
                given = self._given[command.queue]
                assert reply.token > given[-1].token, "a token did not grow"
                given += leases(reply)
        return [plain(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _resolve(self, op: Op) -> cmd.Command:
        """Return the command that a step of a script means for this engine."""
        if not isinstance(op, Held):
            return op
        held = {lease.id: lease for lease in (self._lease(op.queue, *ref) for ref in op.refs)}
        command: cmd.Command = op.verb(op.queue, list(held.values()), **op.fields)
        return command

    def _lease(self, queue: str, before: int, which: str) -> cmd.Lease:
        given = self._given[queue]
        lease = given[max(0, len(given) - 1 - before)]
        if which == "stale":
            return cmd.Lease(lease.id, lease.token - 1)
        return cmd.Lease(lease.id, given[-1].token) if which == "another's" else lease


def plain(command: cmd.Command, reply: Reply) -> Reply:
    """Return a reply without what may differ: tokens, cursors, the order of some scans."""
    if isinstance(reply, Claimed):
        died = sorted(reply.died, key=lambda one: one.id)  # shard by shard on Redis
        return replace(reply, token=0, died=died)
    if isinstance(reply, Explained):  # a server adds what it knows besides
        return replace(reply, workers=None, subscriptions=None, end=None)
    if isinstance(reply, Page) and isinstance(command, cmd.Scan):
        return Page(reply.messages if command.state in SORTED else by_id(reply.messages), None)
    return reply


def at(engine: Engine, queue: str, now: int) -> Driver:
    """Return a caller of a queue at some time."""
    return Driver(engine, queue, watched=False).wait(now - START)


def dumped(engine: Engine, queue: str, now: int) -> dict[str, Any]:
    """Return all that commands can read of a queue."""
    one = at(engine, queue, now)
    seen: dict[str, Any] = {state: one.messages(state, limit=2) for state in SORTED}
    seen |= {state: by_id(one.messages(state, limit=2)) for state in ("ready", "next")}
    for group in GROUPS:
        seen[f"group {group}"] = by_id(one.messages(where=cmd.Where(group=group), limit=2))
    seen["later"] = by_id(one.messages(where=cmd.Where(after=now - 5), limit=2))
    seen["all"] = dump(engine, queue, now)
    assert by_id(one.messages(limit=2)) == by_id(seen["all"].values())
    reads: list[cmd.Command]
    reads = [cmd.Forecast(queue, HOUR, 4), cmd.Queues(""), *(cmd.History(queue, id) for id in IDS)]
    seen["reads"] = one.batch(*reads)
    return seen


def by_id(messages: Iterable[Message]) -> list[Message]:
    """Return messages in the order of their ids."""
    return sorted(messages, key=lambda message: message.id)


def clear(engine: Engine, queue: str, now: int) -> None:
    """Remove everything from a queue; nothing may be left."""
    one = at(engine, queue, now + 2 * EXPIRED_KEEP)  # no lease of a script is that long
    one.configure(paused=False, keep=0, history=0, result_ttl=0, **dict.fromkeys(LIMITS, 0))
    one.claim(0)
    for gone in (one.cancel_where(after=0), one.purge("dead"), one.purge("expired")):
        assert not gone.more
    counts = one.counts()
    assert (counts.sizes, counts.kept, counts.oldest) == (Sizes(), 0, None)
    assert dump(engine, queue, one.now) == {}


def compare(engine: Engine, script: Script) -> None:
    """Play a script on a new engine and on the memory engine; the replies must be the same."""
    oracle = MemoryEngine()
    subject, example = Player(engine), Player(oracle)
    now = START
    for number, (step, ops) in enumerate(script):
        now += step
        # A batch is its commands one after the other, so every other step goes singly.
        play = subject.singly if number % 2 else subject.batch
        assert play(ops, now) == example.singly(ops, now, watched=True)
        for queue in QUEUES:
            assert audit(engine, queue, now) == audit(oracle, queue, now)
    for queue in QUEUES:
        assert dumped(engine, queue, now) == dumped(oracle, queue, now)
        clear(engine, queue, now)


def shortened(script: Script, fails: Callable[[Script], bool]) -> Script:
    """Return a script without the commands without which it still fails."""
    for number, (step, ops) in enumerate(script):
        for op in ops:
            fewer = [one for one in script[number][1] if one is not op]
            shorter = [*script[:number], (step, fewer), *script[number + 1 :]]
            if fails(shorter):
                script = shorter
    return script


def search(make_engine: Callable[[], Engine], draw: Draw[Script], examples: int) -> None:
    """Compare engines with the memory engine by random scripts; show a short one that fails."""

    def play(script: Script) -> Exception | None:
        with closing(make_engine()) as engine:
            try:
                compare(engine, script)
            except Exception as error:  # noqa: BLE001  (it is raised below)
                return error
        return None

    for seed in range(FIRST, FIRST + examples):
        script = draw(Random(seed))
        error = play(script)
        if error is not None:
            script = shortened(script, lambda shorter: play(shorter) is not None)
            print(f"The script of seed {seed}, shortened: {script}")  # noqa: T201
            raise play(script) or error


class ScriptCases:
    """What holds for any script."""

    examples: ClassVar[int] = EXAMPLES
    """How many scripts are played; half as many of limited queues."""

    def test_any_script_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine]
    ) -> None:
        search(make_engine, scripts, self.examples)

    def test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine]
    ) -> None:
        search(make_engine, limited_scripts, self.examples // 2)
