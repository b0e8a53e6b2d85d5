# ruff: noqa: D102  (the name of each case says what it checks)
"""Random scripts: any order of commands gets the replies of the memory engine.

They have few ids, few tokens and short times, so that their commands interact.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import UNSET
from msgspec.structs import replace

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.message import EXPIRED_KEEP, LAPSED, STATES, Failure, Item, Message, version_of
from bide.model.replies import Claimed, Explained, Page, Reply, Sizes
from bide.model.times import LIMITS
from bide.testing.conformance.driver import START, Driver
from bide.testing.conformance.watch import Watch, audit, dump

EXAMPLES = int(os.environ.get("BIDE_EXAMPLES", "200"))

searching = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="BIDE_EXAMPLES" not in os.environ,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    database=None,
    print_blob=False,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # `make_engine` makes a new one for each example
        HealthCheck.differing_executors,  # each engine's class runs the same functions
        HealthCheck.too_slow,
    ],
)

IDS = ["a", "b", "10", "9", "1e1"]
QUEUES = ["q", "q2"]
GROUPS = ["g", "g2"]
DELAYS = [0, 0, 0, 1, 2, 5, 10]
MOMENTS = [START - 5, START - 1, START, START + 1, START + 2, START + 5, START + 10]
STEPS = [0, 0, 1, 1, 2, 3, 5, 10, EXPIRED_KEEP]
WEIGHTS = [0, 0, 0, 1, 9, 10, 255]
VERSIONS = [
    version_of(Item("a", data, attempts=attempts), due)
    for data in (b"1", b"2") for attempts in (1, 2) for due in (START, START + 1, START + 2)
]  # fmt: skip


class Held(NamedTuple):
    """A command about leases; the tokens are known only when the script is played."""

    verb: Any
    queue: str
    refs: list[tuple[str, str]]
    """Each lease by its id, and by which token it has."""
    fields: dict[str, Any]


Op = cmd.Command | Held
Script = list[tuple[int, list[Op]]]

some = st.sampled_from
queues = some([*QUEUES[:1] * 4, *QUEUES[1:]])
ids = some(IDS)
named = st.lists(ids, max_size=4)
actors = some([None, "ann"])
delays = some(DELAYS)
maybe_due = st.none() | some(MOMENTS)
maybe_version = some([None, None, None, *VERSIONS])
wheres = st.builds(cmd.Where, group=some([None, None, *GROUPS]), after=maybe_due, before=maybe_due)
rules = st.none() | wheres
items = st.builds(
    Item,
    id=ids,
    data=some([b"1", b"2"]),
    json=some([True, True, False]),
    at=some([None, None, None, *MOMENTS]),
    delay=delays,
    priority=some(WEIGHTS),
    expires=some([None, None, None, 0, 2, 10]),
    attempts=some([1, 2, 2, 3]),
    group=some([None, *GROUPS]),
    headers=some([None, None, {}, {"a": "b"}]),
    attempt=some([0, 0, 0, 1]),
    failures=some([(), (), (Failure(1, START - 3, "w9", LAPSED),)]),
    died=some([None, None, None, None, None, START - 2, START + 3]),
    created=some([None, None, None, None, None, 0, START - 9]),
    latest=some([None, None, 0, 2, 10]),
)  # fmt: skip
edits = st.builds(
    cmd.Edit,
    queue=queues,
    ids=st.lists(ids, max_size=3),
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
)  # fmt: skip


def _put(queue: str, items: list[Item], on_conflict: Any, version: str | None = None) -> cmd.Put:
    """Return a put; `latest` is for those that replace."""
    if on_conflict != "replace":
        items = [replace(item, latest=None) for item in items]
    return cmd.Put(queue, items, on_conflict, version)


def _ack_with_results(queue: str, leases: list[cmd.Lease]) -> cmd.Ack:
    return cmd.Ack(queue, leases, [b"1", None, b"[2]", b"null"][: len(leases)])


def _held(verb: Any, **fields: SearchStrategy[Any]) -> SearchStrategy[Held]:
    whiches = some(["right"] * 5 + ["stale", "another's", "another queue's"])
    refs = st.lists(st.tuples(ids, whiches), max_size=4)
    return st.builds(Held, st.just(verb), queues, refs, st.fixed_dictionaries(fields))


def _weighted(strategies: Sequence[SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """Return one of some strategies, the more often the more often it is given.

    `one_of` drops what it is given again.
    """
    return some(range(len(strategies))).flatmap(strategies.__getitem__)


PUTS = st.builds(
    _put, queues, st.lists(items, max_size=4), some(["keep"] * 3 + ["replace"] * 2 + ["revive"])
)
CLAIMS = st.builds(
    cmd.Claim, queues, some([0, 1, 1, 2, 3, 10]), some([0, 1, 3, 5, 100]), some(["w1", "w2"]),
    slots=some([None, None, 0, 1, 2]),
)  # fmt: skip
SETTLES: list[SearchStrategy[Any]] = [
    _held(cmd.Ack),
    _held(_ack_with_results),
    _held(cmd.Extend, lease=some([0, 1, 5, 100])),
    _held(cmd.Retry, delay=delays, reason=some(["", "no"]), release=st.booleans()),
    _held(cmd.Bury, reason=some(["", "bad"])),
]
CHANGES: list[SearchStrategy[Any]] = [
    st.builds(cmd.Cancel, queues, named, if_due=maybe_due, actor=actors),
    st.builds(cmd.Cancel, queues, named, if_version=maybe_version),
    st.builds(cmd.Reschedule, queues, named, maybe_due, delays, if_version=maybe_version),
    st.builds(_put, queues, st.lists(items, max_size=2), st.just("replace"), maybe_version),
    st.builds(cmd.Cancel, queues, where=wheres, dry_run=st.booleans(), actor=actors),
    st.builds(cmd.Reschedule, queues, named, maybe_due, delays, if_due=maybe_due),
    st.builds(cmd.Reschedule, queues, named, delay=delays),
    edits,
    st.builds(cmd.Release, queues, named, some(["released", "no"])),
    st.builds(cmd.Revive, queues, named, delays),
    st.builds(cmd.Bury, queues, reason=some(["", "moved"]), ids=named, actor=actors),
    st.builds(cmd.Purge, queues, st.just("dead"), ids=named, actor=actors),
    st.builds(cmd.Delete, queues),
    st.builds(
        cmd.Configure, queues, some([None, None, None, False, False, True]),
        some([None, None, 0, 3, 10, 3 * EXPIRED_KEEP]), some([None, None, 0, 3, EXPIRED_KEEP]),
        some([None, None, 0, 2, EXPIRED_KEEP]), actor=actors,
    ),
    st.builds(cmd.Purge, queues, some(STATES), maybe_due, actor=actors),
]  # fmt: skip
READS: list[SearchStrategy[Any]] = [
    st.builds(cmd.Find, queues, st.lists(ids, max_size=6)),
    st.builds(cmd.Scan, queues, some([*STATES, "next"]), rules, limit=some([1, 2, 3, 500])),
    st.builds(cmd.Scan, queues, where=rules, limit=st.just(500)),
    st.builds(cmd.Scan, queues, prefix=some(["", "1", "10", "a", "z"]), limit=st.just(500)),
    st.builds(cmd.Count, queues, st.booleans()),
    st.builds(cmd.History, queues, ids),
    st.builds(cmd.History, queues, ids),
    st.builds(cmd.Forecast, queues, some([1, 2, 5]), some([0, 1, 3])),
    st.builds(cmd.Explain, queues, st.none() | ids),
    st.builds(cmd.Queues, some(["", "q", "q2", "%"])),
]
OPS = _weighted([*[PUTS, CLAIMS] * 6, *SETTLES * 2, *CHANGES, *READS])
"""One command of a script; puts, claims and what settles come more often than the rest."""


def scripts() -> SearchStrategy[Script]:
    """Return scripts: how far time moves, then a batch, and so on."""
    steps = st.tuples(some(STEPS), st.lists(OPS, min_size=1, max_size=5))
    return st.lists(steps, min_size=3, max_size=16)


def limited_scripts() -> SearchStrategy[Script]:
    """Return scripts that begin with limits of a queue, and change them now and then."""
    limits, rates = some([None, 0, 1, 2]), some([None, None, 0, 1_500, 15_000])
    limiting = st.builds(
        cmd.Configure, queues, limit=limits, rate=rates, group_limit=limits, group_rate=rates
    )
    often = _weighted([*[OPS] * 6, limiting])
    steps = st.tuples(some(STEPS), st.lists(often, min_size=1, max_size=6))
    first = st.tuples(st.just(0), st.lists(limiting, min_size=2, max_size=3))
    return st.builds(
        lambda one, rest: [one, *rest], first, st.lists(steps, min_size=3, max_size=16)
    )


class Player:
    """Plays the steps of a script on an engine.

    It remembers the tokens that the engine gave, for scripts that use right and wrong ones.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch = Watch(engine)
        self._tokens: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._last: dict[str, int] = {}

    def batch(self, ops: Sequence[Op], now: int) -> list[Reply]:
        """Execute a step as one batch."""
        commands = [self._resolve(op) for op in ops]
        return self._told(commands, self._engine.execute(commands, now))

    def singly(self, ops: Sequence[Op], now: int, *, watched: bool = False) -> list[Reply]:
        """Execute a step command by command, each checked against the lifecycle if watched."""
        commands = [self._resolve(op) for op in ops]
        if watched:
            return self._told(commands, [self._watch.execute(each, now) for each in commands])
        return self._told(commands, [self._engine.execute([each], now)[0] for each in commands])

    def _told(self, commands: list[cmd.Command], replies: list[Reply]) -> list[Reply]:
        """Return what is to be compared of replies, and remember their tokens."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Claimed) and reply.messages:
                assert reply.token > self._last.get(command.queue, 0), "a token did not grow"
                self._last[command.queue] = reply.token
                for message in reply.messages:
                    self._tokens[command.queue, message.id].append(reply.token)
        return [plain(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _resolve(self, op: Op) -> cmd.Command:
        """Return the command that a step of a script means for this engine."""
        if not isinstance(op, Held):
            return op
        leases = [cmd.Lease(id, self._token(op.queue, id, which)) for id, which in op.refs]
        command: cmd.Command = op.verb(op.queue, leases, **op.fields)
        return command

    def _token(self, queue: str, id: str, which: str) -> int:
        mine = self._tokens[queue, id] or [1]
        match which:
            case "right":
                return mine[-1]
            case "stale":
                return mine[-2] if len(mine) > 1 else mine[-1] - 1
            case "another's":
                return self._last.get(queue, 1)
            case _:
                theirs = [tokens for (name, _), tokens in self._tokens.items() if name != queue]
                return max((tokens[-1] for tokens in theirs if tokens), default=1)


def plain(command: cmd.Command, reply: Reply) -> Reply:
    """Return a reply without what may differ: tokens, cursors, the order of a scan of all."""
    if isinstance(reply, Claimed):
        died = sorted(reply.died, key=lambda one: one.id)  # shard by shard on Redis
        return replace(reply, token=0, died=died)
    if isinstance(reply, Explained):  # a server adds who claims through it
        return replace(reply, workers=None, subscriptions=None)
    if isinstance(reply, Page) and isinstance(command, cmd.Scan):
        return Page(reply.messages if command.state else by_id(reply.messages), None)
    return reply


def at(engine: Engine, queue: str, now: int) -> Driver:
    """Return a caller of a queue at some time."""
    return Driver(engine, queue, watched=False).wait(now - START)


def dumped(engine: Engine, queue: str, now: int) -> dict[str, Any]:
    """Return all that commands can read of a queue."""
    one = at(engine, queue, now)
    seen: dict[str, Any] = {state: one.messages(state, limit=2) for state in (*STATES, "next")}
    for group in GROUPS:
        seen[f"group {group}"] = by_id(one.messages(where=cmd.Where(group=group), limit=2))
    seen["all"] = dump(engine, queue, now)
    assert by_id(one.messages(limit=2)) == by_id(seen["all"].values())
    reads: list[cmd.Command]
    reads = [cmd.Forecast(queue, 3, 4), cmd.Queues(""), *(cmd.History(queue, id) for id in IDS)]
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
    for queue in QUEUES:
        clear(engine, queue, now)
    engine.close()


class ScriptCases:
    """What holds for any script."""

    @searching
    @given(script=scripts())
    def test_any_script_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine], script: Script
    ) -> None:
        compare(make_engine(), script)

    @settings(searching, max_examples=EXAMPLES // 2)
    @given(script=limited_scripts())
    def test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine], script: Script
    ) -> None:
        compare(make_engine(), script)
