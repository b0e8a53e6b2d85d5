"""The commands of random scripts: few ids, few tokens, short times, so that they interact."""

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import UNSET, structs

from bide.model import commands as cmd
from bide.model.message import EXPIRED_KEEP, LAPSED, Failure, Item, version_of
from bide.testing.conformance.desk import START

__all__ = ["GROUPS", "IDS", "QUEUES", "Held", "Op", "Ref", "Script", "limited_scripts", "scripts"]

IDS = ["a", "b", "10", "9", "1e1"]
QUEUES = ["q", "q2"]
GROUPS = ["g", "g2"]
DELAYS = [0, 0, 0, 1, 2, 5, 10]
MOMENTS = [START - 5, START - 1, START, START + 1, START + 2, START + 5, START + 10]
STEPS = [0, 0, 1, 1, 2, 3, 5, 10, EXPIRED_KEEP]
WEIGHTS = [0, 0, 0, 1, 9, 10, 255]


class Ref(NamedTuple):
    """A lease, by which token it has."""

    id: str
    which: str


class Held(NamedTuple):
    """A command about leases; the tokens are known only when the script is played."""

    verb: Any
    queue: str
    refs: tuple[Ref, ...]
    fields: tuple[tuple[str, Any], ...] = ()


Op = cmd.Command | Held
Script = list[tuple[int, list[Op]]]

some = st.sampled_from
queues = some([*QUEUES[:1] * 4, *QUEUES[1:]])
ids = some(IDS)
actors = some([None, "ann"])
maybe_due = st.none() | some(MOMENTS)
VERSIONS = [
    version_of(Item("a", data, attempts=attempts), due)
    for data in (b"1", b"2") for attempts in (1, 2) for due in (START, START + 1, START + 2)
]  # fmt: skip
maybe_version = some([None, None, None, *VERSIONS])
wheres = st.builds(cmd.Where, group=some([None, None, *GROUPS]), after=maybe_due, before=maybe_due)
failures = some([(), (), (Failure(1, START - 3, "w9", LAPSED),)])


def items() -> SearchStrategy[Item]:
    """Return messages to put."""
    return st.builds(
        Item,
        id=ids,
        data=some([b"1", b"2"]),
        json=some([True, True, False]),
        at=some([None, None, None, *MOMENTS]),
        delay=some(DELAYS),
        priority=some(WEIGHTS),
        expires=some([None, None, None, 0, 2, 10]),
        attempts=some([1, 2, 2, 3]),
        group=some([None, *GROUPS]),
        headers=some([None, None, {}, {"a": "b"}]),
        attempt=some([0, 0, 0, 1]),
        failures=failures,
        died=some([None, None, None, None, None, START - 2, START + 3]),
        created=some([None, None, None, None, None, 0, START - 9]),
        latest=some([None, None, 0, 2, 10]),
    )


def _put(queue: str, items: list[Item], on_conflict: Any, version: str | None = None) -> cmd.Put:
    """Return a put; `latest` is for those that replace."""
    if on_conflict != "replace":
        items = [structs.replace(item, latest=None) for item in items]
    return cmd.Put(queue, items, on_conflict, version)


def edits() -> SearchStrategy[cmd.Edit]:
    """Return changes of what is named of messages."""
    return st.builds(
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
    )


def _ack_with_results(queue: str, leases: list[cmd.Lease]) -> cmd.Ack:
    return cmd.Ack(queue, leases, [b"1", None, b"[2]", b"null"][: len(leases)])


def _held(verb: Any, **fields: SearchStrategy[Any]) -> SearchStrategy[Held]:
    whiches = some(["right"] * 5 + ["stale", "another's", "another queue's"])
    refs = st.lists(st.builds(Ref, ids, whiches), max_size=4).map(tuple)
    drawn = st.fixed_dictionaries(fields).map(lambda found: tuple(found.items()))
    return st.builds(Held, st.just(verb), queues, refs, drawn)


def _changes() -> list[SearchStrategy[Any]]:
    named = st.lists(ids, max_size=4)
    delays = some(DELAYS)
    return [
        st.builds(cmd.Cancel, queues, named, if_due=st.none() | some(MOMENTS), actor=actors),
        st.builds(cmd.Cancel, queues, named, if_version=maybe_version),
        st.builds(cmd.Reschedule, queues, named, maybe_due, delays, if_version=maybe_version),
        st.builds(
            _put, queues, st.lists(items(), max_size=2), st.just("replace"), maybe_version
        ),
        st.builds(cmd.Cancel, queues, where=wheres, dry_run=st.booleans(), actor=actors),
        st.builds(cmd.Reschedule, queues, named, maybe_due, delays, if_due=maybe_due),
        st.builds(cmd.Reschedule, queues, named, delay=delays),
        edits(),
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
        st.builds(cmd.Purge, queues, some(["delayed", "ready", "leased", "dead", "acked",
                                           "expired"]), maybe_due, actor=actors),
    ]  # fmt: skip


def _looks() -> list[SearchStrategy[Any]]:
    states = some(["delayed", "ready", "leased", "dead", "acked", "expired", "next"])
    rules = st.none() | wheres
    return [
        st.builds(cmd.Find, queues, st.lists(ids, max_size=6)),
        st.builds(cmd.Scan, queues, states, rules, limit=some([1, 2, 3, 500])),
        st.builds(cmd.Scan, queues, where=rules, limit=st.just(500)),
        st.builds(cmd.Scan, queues, prefix=some(["", "1", "10", "a", "z"]), limit=st.just(500)),
        st.builds(cmd.Count, queues, st.booleans()),
        st.builds(cmd.History, queues, ids),
        st.builds(cmd.History, queues, ids),
        st.builds(cmd.Forecast, queues, some([1, 2, 5]), some([0, 1, 3])),
        st.builds(cmd.Explain, queues, st.none() | ids),
        st.builds(cmd.Queues, some(["", "q", "q2", "%"])),
    ]


def ops() -> SearchStrategy[Op]:
    """Return one step of a script; puts, claims and what settles come more often than the rest."""
    puts = st.builds(
        _put,
        queues,
        st.lists(items(), max_size=4),
        some(["keep", "keep", "keep", "replace", "replace", "revive"]),
    )
    claims = st.builds(
        cmd.Claim, queues, some([0, 1, 1, 2, 3, 10]), some([0, 1, 3, 5, 100]), some(["w1", "w2"]),
        slots=some([None, None, 0, 1, 2]),
    )  # fmt: skip
    settles: list[SearchStrategy[Any]] = [
        _held(cmd.Ack),
        _held(_ack_with_results),
        _held(cmd.Extend, lease=some([0, 1, 5, 100])),
        _held(cmd.Retry, delay=some(DELAYS), reason=some(["", "no"]), release=st.booleans()),
        _held(cmd.Bury, reason=some(["", "bad"])),
    ]
    often: list[SearchStrategy[Any]] = [puts] * 6 + [claims] * 6 + settles * 2
    return st.one_of(*often, *_changes(), *_looks())


def scripts() -> SearchStrategy[Script]:
    """Return scripts: how far time moves, then a batch, and so on."""
    steps = st.tuples(some(STEPS), st.lists(ops(), min_size=1, max_size=5))
    return st.lists(steps, min_size=3, max_size=16)


def limited_scripts() -> SearchStrategy[Script]:
    """Return scripts that begin with limits of a queue, and change them now and then."""
    limits, rates = some([None, 0, 1, 2]), some([None, None, 0, 1_500, 15_000])
    limiting = st.builds(
        cmd.Configure, queues, limit=limits, rate=rates, group_limit=limits, group_rate=rates
    )
    often = st.one_of(ops(), ops(), ops(), ops(), ops(), ops(), limiting)
    steps = st.tuples(some(STEPS), st.lists(often, min_size=1, max_size=6))
    first = st.tuples(st.just(0), st.lists(limiting, min_size=2, max_size=3))
    return st.builds(
        lambda one, rest: [one, *rest], first, st.lists(steps, min_size=3, max_size=16)
    )
