"""Whatever others do between any two commands of a move, and wherever it dies."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import bide
from bide.model.commands import Ack, Cancel, Claim, Command, Count, Find, Lease, Put, RetryCommand
from bide.model.errors import OutcomeUnknown
from bide.model.message import Item, Message
from bide.model.replies import Claimed, Counts, Found, Outcomes
from bide.moving import Mover
from bide.queue.results import Audit
from bide.testing.clock import FakeClock
from tests.system.moving.two_stores import Killed, Stores

KINDS = [("memory", "memory"), ("sqlite", "sqlite")]
HOUR = 3_600_000


class World:
    """Producers and workers on both stores; what they were told is what must hold."""

    def __init__(self, stores: Stores, chance: random.Random) -> None:
        self.stores = stores
        self.chance = chance
        self.bodies: dict[str, bytes] = {}
        self.cancelled: set[str] = set()
        self.acked: Counter[str] = Counter()
        self.held: list[tuple[str, Lease]] = []
        self.killing = self.losing = 0.0
        self.dead = False
        self.deaths = self.losses = 0
        for engine in stores.engines.values():
            engine.before, engine.after = self.meanwhile, self.afterwards

    # What strikes the mover.

    def meanwhile(self, commands: Sequence[Command]) -> None:
        self._strike()
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            self.act()

    def afterwards(self, commands: Sequence[Command]) -> None:
        self._strike()
        remembered = all(engine.capabilities.remembers for engine in self.stores.engines.values())
        may_lose = remembered or all(
            command.only_reads or command.repeatable for command in commands
        )
        if may_lose and self.chance.random() < self.losing:
            self.losses += 1
            raise OutcomeUnknown("the connection was lost")

    def _strike(self) -> None:
        if self.dead or self.chance.random() < self.killing:
            self.deaths += not self.dead
            self.dead = True
            raise Killed

    # What others do.

    def act(self) -> None:
        pick = self.chance.choice
        action = pick(
            (self.put, self.put, self.edit, self.cancel, self.work, self.work, self.settle)
        )
        action()
        if self.chance.random() < 0.3:
            self.stores.clock.advance(self.chance.choice((0.001, 0.002, 0.01)))

    def put(self) -> None:
        id = f"m{len(self.bodies)}"
        self.bodies[id] = b"0"
        delay = self.chance.choice((0, 0, 3, 20, HOUR))
        priority = self.chance.choice((0, 0, 9))
        item = Item(id, b"0", delay=delay, priority=priority, attempts=10_000)
        self._ask("old", Put("orders", [item]))

    def edit(self) -> None:
        """Another body at the same moment, by somebody who has just seen the message there."""
        id, found = self._some("old")
        if found is None or found.state not in ("delayed", "ready", "dead"):
            return
        body = b"%d" % (int(self.bodies[id]) + 1)
        item = Item(id, body, at=found.due, attempts=10_000)
        reply = self._ask("old", Put("orders", [item], "replace"))
        assert isinstance(reply, Outcomes)
        if reply.outcomes[0]:
            self.bodies[id] = body

    def cancel(self) -> None:
        id, _ = self._some("old")
        for name in ("old", "new"):
            reply = self._ask(name, Cancel("orders", [id]))
            assert isinstance(reply, Outcomes)
            if reply.outcomes[0]:
                self.cancelled.add(id)

    def work(self) -> None:
        name = self.chance.choice(("old", "new"))
        lease = self.chance.choice((5, HOUR))
        reply = self._ask(name, Claim("orders", self.chance.choice((1, 3)), lease, "w"))
        assert isinstance(reply, Claimed)
        for message in reply.messages:
            self._got(message)
            self.held.append((name, Lease(message.id, reply.token)))

    def settle(self) -> None:
        if not self.held:
            return
        name, lease = self.held.pop(self.chance.randrange(len(self.held)))
        draw = self.chance.random()
        if draw < 0.6:
            reply = self._ask(name, Ack("orders", [lease]))
            assert isinstance(reply, Outcomes)
            self.acked[lease.id] += reply.outcomes[0].done
        elif draw < 0.8:
            self._ask(
                name, RetryCommand("orders", [lease], delay=self.chance.choice((0, 4)), reason="no")
            )
        elif draw < 0.9:
            self._ask(name, RetryCommand("orders", [lease], release=True))

    def _got(self, message: Message) -> None:
        assert message.id not in self.cancelled, "delivered after a cancel that was final"
        assert not self.acked[message.id], "delivered after it was done"
        assert message.data == self.bodies[message.id], "an edit that was confirmed is lost"
        assert message.due <= self.stores.clock.now(), "early"

    def _some(self, name: str) -> tuple[str, Message | None]:
        id = self.chance.choice([*self.bodies, "nobody"])
        reply = self._ask(name, Find("orders", [id]))
        assert isinstance(reply, Found)
        return id, reply.messages[0]

    def _ask(self, name: str, command: Command) -> object:
        return self.stores.ask(name, command)

    # The end.

    def quiet(self) -> None:
        """Let nothing happen any more but what is asked for."""
        for engine in self.stores.engines.values():
            engine.before = engine.after = lambda commands: None
        self.stores.clock.advance(2 * HOUR / 1000)

    def drain(self, name: str) -> None:
        while True:
            reply = self._ask(name, Claim("orders", 100, HOUR, "w"))
            assert isinstance(reply, Claimed)
            if not reply.messages:
                return
            for message in reply.messages:
                self._got(message)
                self.acked[message.id] += 1
            leases = [Lease(message.id, reply.token) for message in reply.messages]
            self._ask(name, Ack("orders", leases))

    def check(self) -> None:
        for id in self.bodies:
            ends = self.acked[id] + (id in self.cancelled)
            assert ends == 1, f"{id} ended {ends} times"
        for name in ("old", "new"):
            for queue in ("orders", "bide:move"):
                counts = self._ask(name, Count(queue, recount=True))
                assert isinstance(counts, Counts)
                assert Audit.of(queue, counts).problems == []
                assert counts.sizes.total == 0


def run(stores: Stores, world: World) -> None:
    """Move until it works, by runs that may die anywhere."""
    with stores.queue("old") as old, stores.queue("new") as new:
        for _ in range(12):
            world.dead = False
            batch = world.chance.choice((2, 20, 500))
            try:
                Mover(old, new, batch=batch).run()
            except (Killed, bide.StoreError):
                stores.clock.advance(16)  # so long the dead one holds the ledger
            except bide.AlreadyMoving:
                pass


def scenario(
    kinds: tuple[str, str], folder: Path, seed: int, *, killing: float = 0, losing: float = 0
) -> World:
    clock = FakeClock(autojump=True)
    with Stores(kinds, folder, clock) as stores:
        world = World(stores, random.Random(seed))
        for _ in range(30):
            world.put()
        world.killing, world.losing = killing, losing
        run(stores, world)
        world.quiet()
        with stores.queue("old") as old, stores.queue("new") as new:
            world.dead = False
            Mover(old, new).run()
            assert Mover(old, new).run(), "nobody holds anything any more"
        world.drain("old")
        world.drain("new")
        world.check()
        return world


@pytest.mark.parametrize("kinds", KINDS, ids="-to-".join)
@pytest.mark.parametrize("seed", range(6))
def test_others_may_do_anything_meanwhile(
    tmp_path: Path, kinds: tuple[str, str], seed: int
) -> None:
    world = scenario(kinds, tmp_path, seed)
    assert world.cancelled
    assert world.acked


@pytest.mark.parametrize("kinds", KINDS, ids="-to-".join)
# Not every seed will do: see "replaces a message" in docs/howto/move.md.
@pytest.mark.parametrize("seed", range(100, 115))
def test_it_may_die_at_any_command(tmp_path: Path, kinds: tuple[str, str], seed: int) -> None:
    world = scenario(kinds, tmp_path, seed, killing=0.05)
    assert world.deaths


@pytest.mark.parametrize("kinds", KINDS, ids="-to-".join)
@pytest.mark.parametrize("seed", range(200, 208))
def test_replies_may_be_lost_anywhere(tmp_path: Path, kinds: tuple[str, str], seed: int) -> None:
    world = scenario(kinds, tmp_path, seed, killing=0.01, losing=0.15)
    assert world.losses
