"""Commands that name more messages than are counted at once."""

from bide.engines.postgres import PostgresEngine
from bide.engines.postgres.constants import MOVES_AT_ONCE
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Flow, Outcomes, Sizes
from tests.contract.engines.postgres.claims import claim, counts, leases

IDS = [f"m{number:04}" for number in range(2 * MOVES_AT_ONCE + MOVES_AT_ONCE // 4)]
MANY = len(IDS)
HOUR = 3_600_000


def carry_out(engine: PostgresEngine, command: cmd.Command) -> None:
    (reply,) = engine.execute([command])
    assert isinstance(reply, Outcomes)
    assert {outcome.id for outcome in reply.outcomes if outcome.done} == set(IDS)


def put(engine: PostgresEngine, *, delay: int = 0, on_conflict: cmd.OnConflict = "keep") -> None:
    items = [Item(id, b"1", delay=delay) for id in IDS]
    carry_out(engine, cmd.Put("q", items, on_conflict))


def test_a_put_that_replaces_many_messages_counts_each(engine: PostgresEngine) -> None:
    put(engine, delay=HOUR)
    put(engine, on_conflict="replace")
    assert counts(engine).sizes == Sizes(ready=MANY)
    put(engine, delay=HOUR, on_conflict="replace")
    assert counts(engine).sizes == Sizes(delayed=MANY)
    assert counts(engine).flow == Flow(put=MANY)


def test_a_put_that_stores_some_messages_counts_those(engine: PostgresEngine) -> None:
    engine.execute([cmd.Put("q", [Item(IDS[0], b"1"), Item(IDS[-1], b"1", delay=HOUR)])])
    items = [Item(id, b"1", delay=HOUR) for id in IDS]
    engine.execute([cmd.Put("q", items)])
    assert counts(engine).sizes == Sizes(delayed=MANY - 1, ready=1)
    assert counts(engine).flow == Flow(put=MANY)


def test_a_cancel_of_many_messages_counts_each(engine: PostgresEngine) -> None:
    put(engine, delay=HOUR)
    carry_out(engine, cmd.Cancel("q", IDS))
    assert counts(engine).sizes == Sizes()
    assert counts(engine).flow == Flow(put=MANY, cancelled=MANY)


def test_an_ack_of_many_messages_whose_ends_are_remembered_counts_each(
    engine: PostgresEngine,
) -> None:
    engine.execute([cmd.Configure("q", history=HOUR)])
    put(engine)
    claimed = claim(engine, MANY)
    assert len(claimed.messages) == MANY
    carry_out(engine, cmd.Ack("q", leases(claimed)))
    assert counts(engine).sizes == Sizes()
    assert counts(engine).flow == Flow(put=MANY, acked=MANY)
