# ruff: noqa: D102  (the name of each case says what it checks)
"""Every command that names messages, against a message in every state."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from bide.model import commands as cmd
from bide.model.commands import Lease
from bide.model.message import STATES, Item, State
from bide.model.replies import Outcome, Outcomes
from bide.testing.conformance.driver import START, Driver

__all__ = ["StateCases"]


class Verb(NamedTuple):
    """A command that names messages."""

    command: Callable[[str, list[Any]], cmd.Command]
    """Makes it for a queue and leases."""
    states: Sequence[State]
    """It changes messages in these states, and no others."""
    repeats: bool = False
    """Whether it also changes a message that it names for the second time."""
    stores: bool = False
    """Whether it stores a message with an unknown id."""

    def on(self, driver: Driver, *held: Lease) -> list[Outcome]:
        """Execute it for messages, by lease or by the id of the lease."""
        return driver.ask(self.command(driver.queue, list(held)), Outcomes).outcomes


def _ids(held: list[Lease]) -> list[str]:
    return [lease.id for lease in held]


def _put(queue: str, held: list[Lease], on_conflict: Any = "keep") -> cmd.Put:
    return cmd.Put(queue, [Item(id, b"2") for id in _ids(held)], on_conflict)


WAITING: list[State] = ["delayed", "ready"]

BY_LEASE = {
    "ack": Verb(cmd.Ack, ["leased"]),
    "extend": Verb(lambda queue, held: cmd.Extend(queue, held, 2_000), ["leased"], repeats=True),
    "retry": Verb(cmd.Retry, ["leased"]),
    "return": Verb(lambda queue, held: cmd.Retry(queue, held, release=True), ["leased"]),
    "bury": Verb(cmd.Bury, ["leased"]),
}
BY_ID = {
    "bury by id": Verb(lambda queue, held: cmd.Bury(queue, ids=_ids(held)), WAITING),
    "cancel": Verb(lambda queue, held: cmd.Cancel(queue, _ids(held)), WAITING),
    "edit": Verb(
        lambda queue, held: cmd.Edit(queue, _ids(held), data=b"3"), [*WAITING, "dead"],
        repeats=True,
    ),
    "edit with a due time": Verb(
        lambda queue, held: cmd.Edit(queue, _ids(held), delay=5), WAITING, repeats=True
    ),
    "purge by id": Verb(lambda queue, held: cmd.Purge(queue, "dead", ids=_ids(held)), ["dead"]),
    "put": Verb(_put, [], stores=True),
    "put that replaces": Verb(
        lambda queue, held: _put(queue, held, "replace"), [*WAITING, "dead"], repeats=True,
        stores=True,
    ),
    "put that revives": Verb(lambda queue, held: _put(queue, held, "revive"), ["dead"]),
    "release": Verb(lambda queue, held: cmd.Release(queue, _ids(held), "no"), ["leased"]),
    "reschedule": Verb(
        lambda queue, held: cmd.Reschedule(queue, _ids(held), delay=5), WAITING, repeats=True
    ),
    "revive": Verb(lambda queue, held: cmd.Revive(queue, _ids(held)), ["dead"]),
}  # fmt: skip
every_verb = pytest.mark.parametrize("verb", (BY_LEASE | BY_ID).values(), ids=[*BY_LEASE, *BY_ID])


class StateCases:
    """Which command changes a message in which state."""

    @every_verb
    def test_a_command_changes_messages_in_its_states_only(
        self, driver: Driver, verb: Verb
    ) -> None:
        for state, is_ranked in [*((state, False) for state in STATES), ("ready", True)]:
            one = driver.apart(f"{state}-{is_ranked}")
            lease = one.bring("a", state)
            if is_ranked:  # a claim that takes another message has given it its rank
                one.put("heavy", priority=1)
                assert one.take(1) == ["heavy"]
            before = one.get("a")
            outcomes = verb.on(one, lease, Lease("unknown", 1))
            assert outcomes[1].done == verb.stores
            if state in verb.states:
                assert outcomes[0].done
                assert one.find("a") != [before]
            else:
                assert outcomes[0] == one.refusal("a")
                assert one.get("a") == before

    @every_verb
    def test_a_lapsed_lease_is_over_for_every_command(self, driver: Driver, verb: Verb) -> None:
        after: tuple[State, State] = "dead", "ready"
        for attempts, state in enumerate(after, 1):
            one = driver.apart(state)
            lease = one.lease("a", attempts=attempts)
            one.wait(1_000)
            (outcome,) = verb.on(one, lease)
            assert one.counts().flow.lapsed == 1
            assert outcome.done == (state in verb.states)
            if not outcome.done:
                assert outcome == one.refusal("a")
                assert one.state("a") == state

    @every_verb
    def test_a_message_named_twice_is_changed_as_one_after_the_other(
        self, driver: Driver, verb: Verb
    ) -> None:
        lease = driver.bring("a", verb.states[0]) if verb.states else Lease("a", 0)
        again = verb.on(driver, lease, lease)
        assert [outcome.done for outcome in again] == [True, verb.repeats]
        if not verb.repeats and driver.find("a") != [None]:
            assert again[1] == driver.refusal("a")
        driver.counts()

    @every_verb
    def test_a_command_without_messages_or_queue_changes_nothing(
        self, driver: Driver, verb: Verb
    ) -> None:
        if not isinstance(verb.command("q", []), cmd.Put):
            assert verb.on(driver, Lease("a", 1)) == [Outcome("a", False)]
            assert driver.queues() == []
        driver.put("b")
        assert verb.on(driver) == []
        assert driver.counts().sizes.ready == 1

    @pytest.mark.parametrize("verb", BY_LEASE.values(), ids=BY_LEASE)
    def test_only_the_token_of_its_lease_settles_a_message(
        self, driver: Driver, verb: Verb
    ) -> None:
        old = driver.lease("a")
        driver.wait(1_000)
        new = driver.hold(holder="w2")[0]
        assert verb.on(driver, old) == [Outcome("a", False, "leased", START, START + 2_000, "w2")]
        other = driver.lease("b")
        assert verb.on(driver, Lease("a", other.token)) == [driver.refusal("a")]
        mixed = verb.on(driver, Lease("b", other.token - 1), new, Lease("unknown", 1))
        assert [(o.id, o.done) for o in mixed] == [("b", False), ("a", True), ("unknown", False)]
        good_first = verb.on(driver, other, Lease("b", other.token - 1))
        assert [outcome.done for outcome in good_first] == [True, False]
        assert good_first[1].state == driver.state("b")
