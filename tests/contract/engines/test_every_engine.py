"""What all engines share: URLs, constants, names that they remember, times to wait, rules."""

import gc
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pytest
from msgspec.structs import replace

import bide
from bide.engines import bounded_dict
from bide.engines.postgres.constants import CONSTANTS as POSTGRES
from bide.engines.postgres.schema import function_texts
from bide.engines.registry import opener
from bide.engines.rules.change import (
    Change,
    Facts,
    delayed,
    ended,
    expired,
    finished,
    leased,
    ready,
)
from bide.engines.rules.decide import BY_ID, BY_LEASE, Decision, decide, decide_new, decide_put
from bide.engines.rules.record import Record
from bide.engines.sqlite.limits import SQL as LIMITS_SQL
from bide.engines.sqlite.tables import CONSTANTS as SQLITE
from bide.engines.sqlite.tables import SQL
from bide.importing.foreign_redis import ForeignRedis
from bide.model import commands as cmd
from bide.model.commands import Cancel, Claim, Delete, Find, Put
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import Item, State
from bide.model.replies import GONE, Claimed, Deleted
from bide.model.times import LATEST
from bide.outbox.forwarder import table_of
from bide.targets.amqp import parse

SCHEMES = [
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
    "unix",
    "postgresql",
    "http",
    "https",
]
PASSWORDS = ["hu[sh]hush", "hu]sh", "[hush", "hu[sh/sh", "hu/shhush"]


def opened(url: str) -> Any:
    return bide.Queue("orders", url)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    ("reads", "scheme"),
    [
        *((opened, scheme) for scheme in SCHEMES),
        (table_of, "postgresql"),
        (ForeignRedis, "redis"),
        (parse, "amqp"),
    ],
)
def test_signs_in_a_password_that_must_be_encoded(
    reads: Callable[[str], Any], scheme: str, password: str
) -> None:
    with pytest.raises(bide.InvalidArgument) as refused:
        reads(f"{scheme}://u:{password}@127.0.0.1/x")
    text = str(refused.value)
    assert "u:***@" in text
    assert "sh" not in text.replace("//", "")
    assert ("%5B" if "[" in password or "]" in password else "%2F") in text


def test_brackets_of_an_address_are_no_fault() -> None:
    with bide.Queue("orders", "redis://u:p%5Ba%5D@[::1]:1/0") as orders:
        assert orders.url == "redis://u:***@[::1]:1/0"


@pytest.mark.parametrize("url", [" redis://cache", "sqlite:///w.db ", "\tmemory://", "http://a\n"])
def test_a_blank_at_an_end_is_not_part_of_a_url(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied with a blank, it named another file, or no known store."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(bide.InvalidArgument, match="begins or ends with a blank; remove it"):
        bide.Queue("orders", url)
    assert list(tmp_path.iterdir()) == []


def test_a_url_is_unicode() -> None:
    with pytest.raises(
        bide.InvalidArgument, match=r"'sqlite:///\\\\udce9.db' is not valid Unicode"
    ):
        bide.Queue("orders", "sqlite:///\udce9.db")


POSTGRES_FILES = (files("bide.engines.postgres") / "schema" / "functions").iterdir()
SQLITE_FILES = (
    files("bide.engines.sqlite") / name for name in ("limits.sql", "reading.sql", "statements.sql")
)
WORDS = {
    word
    for file in (*POSTGRES_FILES, *SQLITE_FILES)
    for word in re.findall(r"\w+", re.sub(r"--.*", "", file.read_text()))
}


def test_each_name_in_capitals_is_that_of_a_constant() -> None:
    for text in [*function_texts(), *vars(SQL).values(), *vars(LIMITS_SQL).values()]:
        code = re.sub(r"--.*|'(?:[^']|'')*'", "", text)
        assert re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", code) == []


def test_no_word_of_sql_is_the_name_of_a_constant_in_small_letters() -> None:
    names = POSTGRES.keys() | SQLITE.keys()
    assert [word for word in WORDS - names if word.upper() in names] == []


MOST, NAMES = 20, 200


def names_within(root: Any) -> set[str]:
    """Return the names of queues that an object holds on to, in whatever it is made of."""
    found: set[str] = set()
    seen, left = {id(root): root}, [root]
    while left:
        last = left.pop()
        texts = list(last) if isinstance(last, dict) else []  # which are no referents of it
        for one in (*texts, *gc.get_referents(last)):
            if isinstance(one, str) and one.startswith("queue-"):
                found.add(one)
            elif id(one) not in seen and not isinstance(one, type) and not callable(one):
                seen[id(one)] = one
                left.append(one)
    return found


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
def test_queues_that_are_gone_are_forgotten(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_dict, "MOST", MOST)
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/q.db",
    }
    url = urls[kind]() if kind in urls else request.getfixturevalue(f"{kind}_url")()
    engine = opener(url)()
    notifier = engine.notifier()
    try:
        for number in range(NAMES):
            queue = f"queue-{number}"
            engine.execute([Claim(queue, 1, 1_000, "w"), Find(queue, ["a"])])
            engine.execute([Put(queue, [Item("a", b"1")])])
            engine.execute([Cancel(queue, ["a"]), Delete(queue)])
        assert len(names_within(engine)) <= 2 * MOST
        engine.execute([Put("queue-0", [Item("a", b"1")])])
        (reply,) = engine.execute([Claim("queue-0", 1, 1_000, "w")])
        assert [message.id for message in reply.messages] == ["a"]  # type: ignore[union-attr]
    finally:
        if notifier is not None:
            notifier.close()
            notifier.listen()  # which lets go of its connection
        engine.close()


@pytest.mark.parametrize("kind", ["memory", "redis", "redis of 8 shards", "postgres"])
def test_tokens_of_a_queue_that_is_deleted_and_made_again_go_on(
    kind: str, request: pytest.FixtureRequest
) -> None:
    name, *several = kind.split(" ", 1)
    url = "memory://" if kind == "memory" else request.getfixturevalue(f"{name}_url")()
    url += "&shards=8" if several else ""
    now = 1_700_000_000_000
    tokens = []
    engine = opener(url)()
    for _ in range(3):
        for id in ("a", "b"):
            engine.execute([Put("q", [Item(id, b"1")])], now)
            (claimed,) = engine.execute([Claim("q", 1, 1_000, "w")], now)
            assert isinstance(claimed, Claimed)
            tokens.append(claimed.token)
            engine.execute([cmd.Ack("q", [cmd.Lease(id, claimed.token)])], now)
        assert engine.execute([Delete("q")], now) == [Deleted(True)]
        if kind != "memory":  # all of which ends with its engine
            engine.close()
            engine = opener(url)()
    engine.close()
    assert sorted(set(tokens)) == tokens


LOOKS = 20


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_whoever_waits_as_told_comes_in_time(
    kind: str, tmp_path: Path, redis_url: Callable[[], str]
) -> None:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/q.db",
    }
    engine = opener(urls.get(kind, redis_url)())()
    try:
        due = time.time_ns() // 1_000_000 + 60_000
        engine.execute([Put("q", [Item("a", b"1", at=due)])])
        for _ in range(LOOKS):
            before = time.time() * 1000
            (reply,) = engine.execute([Claim("q", 1, 1_000, "me")])
            after = time.time() * 1000
            assert isinstance(reply, Claimed)
            assert reply.next is not None
            assert before - 0.01 < due - reply.next < after + 0.01  # as of some moment in between
    finally:
        engine.close()


NOW = 1_700_000_000_000
LATER = 60_000
TOKEN = 7
GROUP = "g"

HOW: tuple[Literal["acked", "dead", "expired", "ended"], ...]
HOW = ("acked", "dead", "expired", "ended")

CAUSES = {cmd.Release: "end lease"}
"""The causes that are not called as their command."""


class Step(NamedTuple):
    cause: str
    before: State | None
    after: State | None
    counts: tuple[str, ...]


def records() -> Iterator[Record]:
    """Yield a message in every state, with and without what the rules look at."""
    for attempts, successor, rule in product((1, 2), (False, True), (None, "hourly")):
        item_of = partial(Item, "a", group=GROUP, rule=rule, run=rule and "1")
        first = item_of(b"1", at=NOW - 10, attempts=attempts)
        due = Record.of(first, NOW - 10, 1, NOW)
        yield due
        yield delayed(due, NOW + LATER)
        yield ready(due)
        for until in (NOW - 1, NOW + LATER):
            held = leased(due, "w1", TOKEN, NOW - 5, until)
            for at in (NOW, NOW + LATER):
                item = item_of(b"2", at=at, latest=LATER)
                following = item.follow(None, NOW) if successor else None
                yield replace(held, successor=following)
                yield replace(held, successor=following, stopping="ann")
        for state in ("dead", "acked", "expired"):
            yield ended(due, state, NOW - 1)


def named_commands() -> Iterator[tuple[Any, str | cmd.Lease]]:
    """Yield commands that name the message, in each form in which a rule tells them apart."""
    lease = cmd.Lease("a", TOKEN)
    for delay in (0, LATER):
        yield cmd.RetryCommand("q", [lease], delay=delay), lease
        yield cmd.RetryCommand("q", [lease], delay=delay, release=True), lease
        yield cmd.Reschedule("q", ["a"], delay=delay), "a"
        yield cmd.Revive("q", ["a"], delay=delay), "a"
        yield cmd.Edit("q", ["a"], delay=delay), "a"
    yield cmd.Ack("q", [lease]), lease
    for how, following in product(HOW, (None, cmd.NextRun(NOW, "2"), cmd.NextRun(LATEST, "2"))):
        yield cmd.Renew("q", [lease], [following], how), lease
    yield cmd.BuryCommand("q", [lease]), lease
    yield cmd.BuryCommand("q", ids=["a"]), "a"
    yield cmd.Extend("q", [lease], lease=LATER), lease
    yield cmd.Cancel("q", ["a"]), "a"
    yield cmd.Cancel("q", ["a"], running=True), "a"
    yield cmd.Release("q", ["a"]), "a"
    yield cmd.Edit("q", ["a"], priority=3), "a"
    for due in (NOW, NOW + LATER):
        yield cmd.Postpone("q", ["a"], [due]), "a"
    yield cmd.Purge("q", "dead", ids=["a"]), "a"
    yield cmd.Purge("q", "dead", ids=["a"], moved=True), "a"


def puts() -> Iterator[tuple[cmd.Put, Item]]:
    for at, died, latest in product((NOW, NOW + LATER), (None, NOW - 3), (None, LATER)):
        item = Item("a", b"2", at=at, died=died, latest=latest, group=GROUP)
        policies: tuple[cmd.OnConflict, ...] = ("keep", "replace", "revive")
        for policy in policies:
            yield cmd.Put("q", [item], policy), item


def seen(record: Record | None) -> State | None:
    return None if record is None else record.state_at(NOW)


def step(cause: str, change: Change) -> Step:
    return Step(cause, seen(change.before), seen(change.after), change.counts)


def steps_of(decision: Decision, cause: str) -> Iterator[Step]:
    """Yield the steps of a decision; a lapse and a successor are causes of their own."""
    for change in decision.changes:
        is_replaced = cause == "replace" and change is decision.changes[-1]
        if change.after is change.before:
            continue
        before = change.before
        if before is not None and before.until is not None and before.until <= NOW:
            yield step("lapse", change)
        elif change.renewed and not is_replaced:
            succession = step("succeed", change)
            # What was acked has left the queue, whether it is kept or not.
            gone = None if succession.before == "acked" else succession.before
            yield succession._replace(before=gone)
        else:
            is_new = cause == "replace" and change.before is None
            yield step("put" if is_new else cause, change)


def all_steps() -> Iterator[Step]:
    for keep, closed, record in product((0, LATER), ({}, {GROUP: NOW + LATER}), records()):
        facts = Facts(NOW, keep, closes=closed.get)
        for command, name in named_commands():
            cause = CAUSES.get(type(command), command.__struct_config__.tag)
            if isinstance(command, cmd.RetryCommand) and command.release:
                cause = "release"
            if isinstance(command, cmd.Purge) and command.moved:
                cause = "move"
            if isinstance(command, cmd.Renew):
                cause = "ack" if command.how == "acked" else f"renew {command.how}"
            yield from steps_of(decide(record, command, name, 0, facts), cause)
        for command, item in puts():
            yield from steps_of(decide_put(record, command, item, facts), "replace")
            yield from steps_of(decide_new(item, 1, facts), "put")
        if record.state_at(NOW) == "ready":
            yield step("claim", Change(record, leased(record, "w1", TOKEN, NOW, NOW + LATER)))
            yield step("claim", expired(record, facts))
            yield step("claim", finished(record, "cancelled", None, facts))  # its group is closed
        if record.state != "leased":
            yield step("purge", finished(record, "purged", None, facts))


def test_the_rules_make_the_transitions_of_the_lifecycle_and_no_others() -> None:
    elsewhere = {"time", "forget"}  # no rule: a state that is seen, and the housekeeping of a store
    wanted = {
        Step(transition.cause, transition.before, transition.after, transition.counts)
        for transition in TRANSITIONS
        if transition.cause not in elsewhere
    }
    assert set(all_steps()) == wanted


def test_what_a_step_counts_keeps_the_sum() -> None:
    """put = what has left + what is in the queue."""
    inside = {"delayed", "ready", "leased", "dead"}
    for taken in set(all_steps()):
        before, after = int(taken.before in inside), int(taken.after in inside)
        entered = taken.counts.count("put")
        left = sum(taken.counts.count(name) for name in GONE)
        assert after - before == entered - left, taken


def test_every_command_that_names_messages_has_a_rule() -> None:
    named = {
        command
        for command in get_args(cmd.Command)
        if command.named_by in ("ids", "leases") and command is not cmd.Find
    }
    assert {*BY_ID, *BY_LEASE} == {*named, cmd.BuryCommand, cmd.Cancel, cmd.Purge}


@pytest.mark.parametrize("command", [command for command, _ in named_commands()], ids=repr)
def test_a_message_that_is_not_there_is_not_changed(command: Any) -> None:
    name = command.ids[0] if getattr(command, "ids", None) else command.leases[0]
    decision = decide(None, command, name, 0, Facts(NOW))
    assert (decision.changes, bool(decision.outcome)) == ([], False)


def test_an_old_token_changes_nothing() -> None:
    record = leased(Record.of(Item("a", b"1"), NOW, 1, NOW), "w1", TOKEN, NOW, NOW + LATER)
    old = cmd.Lease("a", TOKEN - 1)
    commands: list[Any] = [
        cmd.Ack("q", [old]),
        cmd.Renew("q", [old], [None]),
        cmd.RetryCommand("q", [old]),
        cmd.BuryCommand("q", [old]),
        cmd.Extend("q", [old], lease=LATER),
    ]
    assert {type(command) for command in commands} == {*BY_LEASE}
    for command in commands:
        decision = decide(record, command, old, 0, Facts(NOW))
        assert (decision.changes, bool(decision.outcome)) == ([], False)
