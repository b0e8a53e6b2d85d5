"""What the suite asks of queues of several shards."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings

from bide.engines.port import Capabilities, Doorbell, Engine
from bide.model.commands import Cancel, Command, Where
from bide.model.message import FORGET
from bide.model.rank import PROMOTE
from bide.model.replies import Reply
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.desk import START, Desk, leases
from bide.testing.conformance.scripts import EXAMPLES, ScriptCases, searching
from bide.testing.conformance.vocabulary import scripts


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

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        asked: list[Command] = []
        wanted: list[int] = []
        for command in commands:
            if not command.only_reads:
                asked.append(Cancel(command.queue, where=Where(group="nobody")))
            wanted.append(len(asked))
            asked.append(command)
        replies = self.engine.execute(asked, now)
        return [replies[index] for index in wanted]

    def reader(self) -> Engine | None:
        return None

    def doorbell(self) -> Doorbell | None:
        return None

    def ring(self, queue: str, wake: int) -> None:
        pass

    def close(self) -> None:
        self.engine.close()


def fewer(test: Any) -> Any:
    """Return a test of random scripts with fewer of them: there are four times as many calls."""
    again = given(script=scripts())(test.hypothesis.inner_test)
    return settings(searching, max_examples=max(1, EXAMPLES // 5))(again)


class ShardedConformance(EngineConformance):
    """The whole suite; but what is done up to a number at a time is done so in each shard."""

    SHARDS = 4

    test_any_script_is_answered_as_the_memory_engine_answers = fewer(
        ScriptCases.test_any_script_is_answered_as_the_memory_engine_answers
    )
    test_a_batch_is_its_commands_one_after_the_other = fewer(
        ScriptCases.test_a_batch_is_its_commands_one_after_the_other
    )

    def test_one_claim_weighs_so_many_due_ones_and_no_more(self, bare: Desk) -> None:
        bare.put(*(f"m{number:04}" for number in range(PROMOTE)), at=START - 9)
        bare.put("far", at=START - 8, priority=255)
        assert bare.take(1) == ["far"]
        assert bare.take(1) == ["m0000"]
        assert bare.counts().sizes.ready == PROMOTE - 1

    def test_more_lapses_than_one_claim_collects_are_collected_by_the_next(
        self, bare: Desk
    ) -> None:
        ids = [f"m{number:04}" for number in range(PROMOTE + 10)]
        bare.put(*ids, attempts=1)
        bare.take(len(ids))
        bare.wait(1_000)
        assert bare.claim(5).next is None
        assert bare.counts().sizes.dead == PROMOTE + 10

    def test_a_crowd_is_forgotten_bit_by_bit(self, bare: Desk) -> None:
        bare.configure(keep=5)
        ids = [f"m{number:04}" for number in range(self.SHARDS * (FORGET + 100))]
        bare.put(*ids)
        bare.ack(*leases(bare.claim(len(ids))))
        bare.wait(5)
        while kept := bare.counts().kept:
            bare.claim(0)
            assert bare.counts().kept < kept

    def test_a_put_that_meets_a_crowd_to_be_forgotten(self, bare: Desk) -> None:
        bare.configure(keep=5)
        ids = [f"m{number:04}" for number in range(FORGET)]
        bare.put(*ids)
        bare.ack(*leases(bare.claim(len(ids))))
        bare.wait(5)
        assert all(bare.put(*ids))
