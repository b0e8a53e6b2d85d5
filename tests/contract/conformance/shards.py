"""What the suite asks of queues of several shards."""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from bide.engines.ended_pages import LOOKED_AT
from bide.engines.port import (
    Capabilities,
    Engine,
    Identities,
    Identity,
    Notifier,
    PartlyDone,
    replies_of,
)
from bide.engines.registry import opener
from bide.model.commands import MAX_BYTES, Cancel, Claim, Command, History, Where
from bide.model.errors import BideError
from bide.model.message import FORGET
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Found, Names, Page, Reply
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.batches import BatchCases
from bide.testing.conformance.claiming import ClaimCases
from bide.testing.conformance.drawing import Script, scripts
from bide.testing.conformance.driver import START, Driver, ids_of, leases
from bide.testing.conformance.ending import EndCases
from bide.testing.conformance.explaining import LimitReportCases
from bide.testing.conformance.limiting import LimitCases
from bide.testing.conformance.listing import EndListCases
from bide.testing.conformance.repeating import RepetitionCases
from bide.testing.conformance.scanning import ScanCases
from bide.testing.conformance.scripts import EXAMPLES, ScriptCases, search
from bide.testing.conformance.sharing import SharingCases
from tests.effort import effort


class Forgetting:
    """An engine of which every change reaches all shards.

    What is remembered too long is forgotten by the changes of its own shard, so that it can be seen
    for longer than in a queue of one. Here a change that finds nothing goes to all shards first.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def capabilities(self) -> Capabilities:
        return self.engine.capabilities

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        asked: list[Command] = []
        named: list[Identity | None] = []
        wanted: list[int] = []
        for command, identity in zip(commands, identities or [None] * len(commands), strict=True):
            if not (command.only_reads or isinstance(command, History)):  # to watch forgets nothing
                asked.append(Cancel(command.queue, where=Where(group="nobody")))
                named.append(None)
            wanted.append(len(asked))
            asked.append(command)
            named.append(identity)
        outcomes: Sequence[Reply | BideError]
        try:
            outcomes = self.engine.execute(asked, now, named if identities else None)
        except PartlyDone as partly:
            outcomes = partly.outcomes
        return replies_of([outcomes[index] for index in wanted])

    def reader(self) -> Engine | None:
        return None

    def notifier(self) -> Notifier | None:
        return None

    def close(self) -> None:
        self.engine.close()


class Apart(Forgetting):
    """An engine whose queues have a prefix, so that many stores share a cluster, which is one."""

    def __init__(self, engine: Engine, prefix: str) -> None:
        super().__init__(engine)
        self._prefix = prefix

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        mine = [replace(command, queue=self._prefix + command.queue) for command in commands]
        return [self._plain(reply) for reply in super().execute(mine, now, identities)]

    def _plain(self, reply: Reply) -> Reply:
        if isinstance(reply, Names):
            return Names([name.removeprefix(self._prefix) for name in reply.names])
        if isinstance(reply, (Claimed, Found, Page)):
            messages: list[Any] = [
                message and replace(message, queue=message.queue.removeprefix(self._prefix))
                for message in reply.messages
            ]
            return replace(reply, messages=messages)
        return reply


def conforms(url: str) -> None:
    """See that a store, whatever it went through, answers a few random scripts as it should."""
    numbers = itertools.count()

    def make() -> Engine:
        return Apart(opener(url)(), f"conforms{next(numbers)}/")

    search(make, unbounded, EXAMPLES // 20)


def unbounded(chance: Random) -> Script:
    """Draw a script whose claims have no budget.

    A full reply has the first message; which others it has depends on their shards.
    """
    return [
        (step, [replace(op, max_bytes=MAX_BYTES) if isinstance(op, Claim) else op for op in ops])
        for step, ops in scripts(chance)
    ]


class ShardedCases(
    ScriptCases, BatchCases, RepetitionCases, ScanCases, EndListCases, EndCases, ClaimCases
):
    """What several shards do together, and whatever random scripts do.

    What is done up to a number at a time is done so in each shard.
    """

    driver, bare = EngineConformance.driver, EngineConformance.bare

    SHARDS = 4
    forgotten_at_once = SHARDS * FORGET
    ends_looked_at_once = SHARDS * LOOKED_AT

    examples = EXAMPLES // effort(10, 5)

    def script(self, chance: Random) -> Script:
        return unbounded(chance)

    test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers = None  # type: ignore[assignment]

    def test_a_claim_keeps_to_its_budget_but_for_one_of_each_shard(self, driver: Driver) -> None:
        driver.put(*(f"m{number}" for number in range(40)), data=b"x" * 1024, json=False)
        assert ids_of(driver.claim(40, max_bytes=0)) == ["m0"]  # the first one of all shards
        claimed = driver.claim(40, max_bytes=8_192)
        assert 1 <= len(claimed.messages) <= 8 + self.SHARDS
        assert driver.counts().sizes.leased == 1 + len(claimed.messages)

    def test_one_claim_ranks_a_limited_number(self, bare: Driver) -> None:
        bare.put(*(f"m{number:04}" for number in range(PROMOTE)), at=START - 9)
        bare.put("far", at=START - 8, priority=255)
        assert bare.take(1) == ["far"]
        assert bare.take(1) == ["m0000"]
        assert bare.counts().sizes.ready == PROMOTE - 1

    def test_one_claim_collects_a_limited_number_of_lapses(self, bare: Driver) -> None:
        ids = [f"m{number:04}" for number in range(PROMOTE + 10)]
        bare.put(*ids, attempts=1)
        bare.take(len(ids))
        bare.wait(1_000)
        assert bare.claim(5).next is None
        assert bare.counts().sizes.dead == PROMOTE + 10

    def test_one_command_forgets_a_limited_number(self, bare: Driver) -> None:
        bare.configure(keep=5)
        ids = [f"m{number:04}" for number in range(self.SHARDS * (FORGET + 100))]
        bare.put(*ids)
        bare.ack(*leases(bare.claim(len(ids))))
        bare.wait(5)
        while kept := bare.counts().kept:
            bare.claim(0)
            assert bare.counts().kept < kept

    def test_a_put_forgets_a_limited_number_before_it_stores(self, bare: Driver) -> None:
        bare.configure(keep=5)
        ids = [f"m{number:04}" for number in range(FORGET)]
        bare.put(*ids)
        bare.ack(*leases(bare.claim(len(ids))))
        bare.wait(5)
        assert all(bare.put(*ids))


class ShardedConformance(ShardedCases, EngineConformance):
    """The whole suite."""

    # Each shard remembers as many as a queue of one.
    test_how_many_rows_are_remembered = None  # type: ignore[assignment]


# A queue of several shards has no limits: the cases of its store refuse them.
for _cases in (LimitCases, LimitReportCases, SharingCases):
    for _name in vars(_cases):
        if _name.startswith("test_"):
            setattr(ShardedConformance, _name, None)
