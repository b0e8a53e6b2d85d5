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
from bide.model.ended import STOPPED_KEEP
from bide.model.message import EXPIRED_KEEP, STATES, Message
from bide.model.replies import Affected, Claimed, Explained, Page, Reply, Sizes
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
        self._leases = {queue: [cmd.Lease("a", 0)] for queue in QUEUES}
        """All leases that were given, by queue, oldest first; before them one that is no lease."""

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
                given_leases = self._leases[command.queue]
                assert reply.token > given_leases[-1].token, "a token did not grow"
                given_leases += leases(reply)
        return [plain(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _resolve(self, op: Any, now: int) -> Any:
        """Return the command that a step of a script means for this engine.

        A script names leases, versions and due times by what they are; see `drawing`.
        """
        fields: dict[str, Any] = {}
        if drawn_leases := getattr(op, "leases", ()):
            leases_of_step = [
                self._lease(op.queue, lease.token, lease.id) for lease in drawn_leases
            ]
            last_by_id = {lease.id: lease for lease in leases_of_step}
            # Not by the tokens: those of one engine may be equal where another's are not.
            is_twice = len(drawn_leases) == 2 and drawn_leases[0] == drawn_leases[1]
            fields["leases"] = leases_of_step if is_twice else list(last_by_id.values())
            for name in ("results", "progress", "next"):  # one for each lease
                if values := getattr(op, name, ()):
                    fields[name] = values[: len(fields["leases"])]
        conditions = ("if_due", "if_version", "versions", "if_dues")
        wanted = {name: getattr(op, name, None) for name in conditions}
        if any(wanted.values()):
            messages = at(self._engine, op.queue, now).find(*drawing.names_of(op))
            current = [message.version if message else NONE for message in messages]
            if wanted["if_due"] == drawing.SEEN_DUE:
                fields["if_due"] = next((message.due for message in messages if message), START)
            if wanted["if_version"] == drawing.SEEN:
                fields["if_version"] = next(iter(current), NONE)
            if versions := wanted["versions"]:
                fields["versions"] = [
                    current_version if version == drawing.SEEN else version
                    for version, current_version in zip(versions, current, strict=True)
                ]
            if if_dues := wanted["if_dues"]:
                current_dues = [message.due if message else START for message in messages]
                fields["if_dues"] = [
                    current_due if due == drawing.SEEN_DUE else due
                    for due, current_due in zip(if_dues, current_dues, strict=True)
                ]
        return replace(op, **fields)

    def _lease(self, queue: str, age: int, kind: str) -> cmd.Lease:
        """Return a lease that a script names.

        Args:
            queue: the queue.
            age: how many were given after it.
            kind: "right"; "stale": with an older token; "another's": with the newest token.
        """
        given_leases = self._leases[queue]
        lease = given_leases[max(0, len(given_leases) - 1 - age)]
        match kind:
            case "stale":
                return cmd.Lease(lease.id, lease.token - 1)
            case "another's":
                return cmd.Lease(lease.id, given_leases[-1].token)
        return lease


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


def all_reads(engine: Engine, queue: str, now: int) -> dict[str, Any]:
    """Return all that commands can read of a queue, by a name of what was read.

    Of two engines that agree it is the same. A scan in small pages has what one in one piece has.
    """
    driver = at(engine, queue, now)
    contents: dict[str, Any] = {}
    for state in (*STATES, "next", None):
        # Small pages, so that scans go on from cursors.
        messages = driver.messages(state, limit=3, max_bytes=drawing.BUDGETS[0])
        contents[str(state)] = messages if state in SORTED else by_id(messages)
    for group in drawing.GROUPS:
        contents[f"group {group}"] = by_id(driver.messages(where=cmd.Where(group=group), limit=2))
    contents["later"] = by_id(driver.messages(where=cmd.Where(after=now - 5), limit=2))
    assert by_id(dump(engine, queue, now).values()) == contents["None"]
    reads: list[cmd.Command]
    reads = [
        cmd.ForecastCommand(queue, HOUR, 4),
        cmd.Queues(""),
        *(cmd.History(queue, id) for id in IDS),
    ]
    contents["ended"] = driver.ended(limit=3, max_bytes=drawing.BUDGETS[0])
    contents["reads"] = driver.batch(*reads)
    return contents


def by_id(messages: Iterable[Message]) -> list[Message]:
    """Return messages in the order of their ids."""
    return sorted(messages, key=lambda message: message.id)


def clear(engine: Engine, queue: str, now: int) -> None:
    """Remove everything from a queue; nothing may be left."""
    driver = at(engine, queue, now + 2 * EXPIRED_KEEP)  # no lease of a script is that long
    driver.configure(paused=False, keep=0, history=0, result_ttl=0, **dict.fromkeys(LIMITS, 0))
    driver.claim(0)
    driver.wait(STOPPED_KEEP)  # for so long it is told how messages ended that were to stop
    for affected in (driver.cancel_where(after=0), driver.purge("dead"), driver.purge("expired")):
        assert not affected.more
    counts = driver.counts()
    assert (counts.sizes, counts.kept, counts.oldest) == (Sizes(), 0, None)
    assert dump(engine, queue, driver.now) == {}


def _ordered(reply: Any) -> Any:
    """Return a reply with the ids of messages that are to stop in order: a store has its own."""
    if not isinstance(reply, Affected):
        return reply
    return replace(reply, stopping=sorted(reply.stopping))


def compare(engine: Engine, script: Script) -> None:
    """Play a script on a new engine and on the memory engine; the replies must be the same.

    Raises:
        AssertionError: a reply differs, or what can be read of a queue.
        Exception: what an engine raises.
    """
    memory = MemoryEngine()
    player, memory_player = Player(engine), Player(memory)
    now = START
    for number, (elapsed, ops) in enumerate(script):
        now += elapsed
        # A batch is its commands one after the other, so every other step goes singly.
        play = player.singly if number % 2 else player.batch
        expected_replies = memory_player.singly(ops, now, watched=True)
        for op, reply, expected in zip(ops, play(ops, now), expected_replies, strict=True):
            is_same = _ordered(reply) == _ordered(expected)
            assert is_same, f"step {number} has another reply to {op}: {reply}, not {expected}"
        for queue in QUEUES:
            assert audit(engine, queue, now) == audit(memory, queue, now)
    for queue in QUEUES:
        assert all_reads(engine, queue, now) == all_reads(memory, queue, now)
    for queue in QUEUES:
        clear(engine, queue, now)


def shortened(script: Script, fails: Callable[[Script], bool]) -> Script:
    """Return a script without the steps and commands without which it still fails.

    Args:
        script: one that fails.
        fails: tells whether another one does.
    """
    for number, (elapsed, ops) in enumerate(script):
        for removed in (ops, *([op] for op in ops)):  # all of the step; then each alone
            _, current_ops = script[number]  # those that were not removed yet
            # By identity: a step may have two equal commands.
            fewer = [op for op in current_ops if all(op is not other for other in removed)]
            # The step stays, without commands: time moves on in it.
            shorter = [*script[:number], (elapsed, fewer), *script[number + 1 :]]
            if fewer != current_ops and fails(shorter):
                script = shorter
    return script


def search(make_engine: Callable[[], Engine], draw: Draw[Script], examples: int) -> None:
    """Compare engines with the memory engine by random scripts; show a short one that fails.

    Args:
        make_engine: opens a new, empty store.
        draw: draws a script.
        examples: how many scripts.

    Raises:
        Exception: what a script fails with.
    """

    def failure_of(script: Script) -> Exception | None:
        with closing(make_engine()) as engine:
            try:
                compare(engine, script)
            except Exception as error:  # noqa: BLE001  (it is raised below)
                return error
        return None

    for seed in range(FIRST, FIRST + examples):
        script = draw(Random(seed))
        error = failure_of(script)
        if error is not None:
            script = shortened(script, lambda shorter: failure_of(shorter) is not None)
            steps_with_commands = [
                (elapsed, ops)
                for elapsed, ops in to_builtins(script, builtin_types=(bytes,))
                if ops
            ]
            text = f"The script of seed {seed}, shortened: {steps_with_commands}"
            print(text.replace(str(LARGE), "LARGE"))  # noqa: T201
            raise failure_of(script) or error


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
