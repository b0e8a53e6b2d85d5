# ruff: noqa: D102  (the name of each case says what it checks)
"""Random scripts: any order of commands gets the replies of the memory engine."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from random import Random
from typing import Any, ClassVar

from msgspec import to_builtins
from msgspec.structs import replace

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.message import EXPIRED_KEEP, STATES, Message
from bide.model.replies import Claimed, Explained, Page, Reply, Sizes
from bide.model.times import LIMITS
from bide.testing.conformance import drawing
from bide.testing.conformance.drawing import IDS, LARGE, QUEUES, SORTED, Draw, Script
from bide.testing.conformance.driver import HOUR, START, Driver, leases
from bide.testing.conformance.watch import StoreWatch, audit, dump

EXAMPLES = int(os.environ.get("BIDE_EXAMPLES", "100"))
FIRST = Random().getrandbits(32) if "BIDE_EXAMPLES" in os.environ else 0
"""The seed of the first script; the others follow."""
NONE = "f" * 16
"""A version that no message has."""


class Player:
    """Plays the steps of a script on an engine.

    It remembers the leases that the engine gave, for scripts that use right and wrong ones.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.watch = StoreWatch(engine)
        self._given = {queue: [cmd.Lease("a", 0)] for queue in QUEUES}

    def batch(self, ops: Sequence[cmd.Command], now: int) -> list[Reply]:
        """Execute a step as one batch."""
        commands = [self._resolve(op, now) for op in ops]
        return self._plain(commands, self._engine.execute(commands, now))

    def singly(self, ops: Sequence[cmd.Command], now: int, *, watched: bool = False) -> list[Reply]:
        """Execute a step command by command, each checked against the lifecycle if watched."""
        commands = [self._resolve(op, now) for op in ops]
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

    def _resolve(self, op: Any, now: int) -> Any:
        """Return the command that a step of a script means for this engine."""
        known: dict[str, Any] = {}
        if held := getattr(op, "leases", ()):
            named = [self._lease(op.queue, lease.token, lease.id) for lease in held]
            last = {lease.id: lease for lease in named}
            # Not by the tokens: those of one engine may be equal where another's are not.
            twice = len(held) == 2 and held[0] == held[1]
            known["leases"] = named if twice else list(last.values())
            for name in ("results", "progress"):
                if values := getattr(op, name, ()):
                    known[name] = values[: len(known["leases"])]
        wanted = {name: getattr(op, name, None) for name in ("if_due", "if_version", "versions")}
        if any(wanted.values()):
            messages = at(self._engine, op.queue, now).find(*drawing.names_of(op))
            seen = [message.version if message else NONE for message in messages]
            if wanted["if_due"] == drawing.SEEN_DUE:
                known["if_due"] = next((message.due for message in messages if message), START)
            if wanted["if_version"] == drawing.SEEN:
                known["if_version"] = next(iter(seen), NONE)
            if versions := wanted["versions"]:
                both = zip(versions, seen, strict=True)
                known["versions"] = [
                    now if version == drawing.SEEN else version for version, now in both
                ]
        return replace(op, **known)

    def _lease(self, queue: str, before: int, which: str) -> cmd.Lease:
        given = self._given[queue]
        lease = given[max(0, len(given) - 1 - before)]
        if which == "stale":
            return cmd.Lease(lease.id, lease.token - 1)
        return cmd.Lease(lease.id, given[-1].token) if which == "another's" else lease


def plain(command: cmd.Command, reply: Reply) -> Reply:
    """Return a reply without what may differ: tokens, cursors, the order of some scans."""
    if isinstance(reply, Claimed):
        died = sorted(reply.died, key=lambda message: message.id)  # shard by shard on Redis
        return replace(reply, token=min(reply.token, 1), died=died)
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
    driver = at(engine, queue, now)
    seen: dict[str, Any] = {}
    for state in (*STATES, "next", None):
        messages = driver.messages(state, limit=3, max_bytes=drawing.BUDGETS[0])
        seen[str(state)] = messages if state in SORTED else by_id(messages)
    for group in drawing.GROUPS:
        seen[f"group {group}"] = by_id(driver.messages(where=cmd.Where(group=group), limit=2))
    seen["later"] = by_id(driver.messages(where=cmd.Where(after=now - 5), limit=2))
    assert by_id(dump(engine, queue, now).values()) == seen["None"]
    reads: list[cmd.Command]
    reads = [
        cmd.ForecastCommand(queue, HOUR, 4),
        cmd.Queues(""),
        *(cmd.History(queue, id) for id in IDS),
    ]
    seen["reads"] = driver.batch(*reads)
    return seen


def by_id(messages: Iterable[Message]) -> list[Message]:
    """Return messages in the order of their ids."""
    return sorted(messages, key=lambda message: message.id)


def clear(engine: Engine, queue: str, now: int) -> None:
    """Remove everything from a queue; nothing may be left."""
    driver = at(engine, queue, now + 2 * EXPIRED_KEEP)  # no lease of a script is that long
    driver.configure(paused=False, keep=0, history=0, result_ttl=0, **dict.fromkeys(LIMITS, 0))
    driver.claim(0)
    for affected in (driver.cancel_where(after=0), driver.purge("dead"), driver.purge("expired")):
        assert not affected.more
    counts = driver.counts()
    assert (counts.sizes, counts.kept, counts.oldest) == (Sizes(), 0, None)
    assert dump(engine, queue, driver.now) == {}


def compare(engine: Engine, script: Script) -> None:
    """Play a script on a new engine and on the memory engine; the replies must be the same."""
    oracle = MemoryEngine()
    subject, example = Player(engine), Player(oracle)
    now = START
    for number, (step, ops) in enumerate(script):
        now += step
        # A batch is its commands one after the other, so every other step goes singly.
        play = subject.singly if number % 2 else subject.batch
        wanted = example.singly(ops, now, watched=True)
        for op, reply, right in zip(ops, play(ops, now), wanted, strict=True):
            assert reply == right, f"step {number} has another reply to {op}"
        for queue in QUEUES:
            assert audit(engine, queue, now) == audit(oracle, queue, now)
    for queue in QUEUES:
        assert dumped(engine, queue, now) == dumped(oracle, queue, now)
    for queue in QUEUES:
        clear(engine, queue, now)


def shortened(script: Script, fails: Callable[[Script], bool]) -> Script:
    """Return a script without the steps and commands without which it still fails."""
    for number, (step, ops) in enumerate(script):
        for removed in (ops, *([op] for op in ops)):
            fewer = [
                command for command in script[number][1] if all(command is not op for op in removed)
            ]
            shorter = [*script[:number], (step, fewer), *script[number + 1 :]]
            if fewer != script[number][1] and fails(shorter):
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
            shown = [step for step in to_builtins(script, builtin_types=(bytes,)) if step[1]]
            print(f"The script of seed {seed}, shortened: {shown}".replace(str(LARGE), "LARGE"))  # noqa: T201
            raise play(script) or error


class ScriptCases:
    """What holds for any script."""

    examples: ClassVar[int] = EXAMPLES
    """How many scripts are played; half as many of limited queues."""

    def script(self, chance: Random) -> Script:
        """Draw a script of queues without limits."""
        return drawing.scripts(chance)

    def test_any_script_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine]
    ) -> None:
        search(make_engine, self.script, self.examples)

    def test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine]
    ) -> None:
        search(make_engine, drawing.limited_scripts, self.examples // 2)
