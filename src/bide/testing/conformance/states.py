# ruff: noqa: D102  (the name of each case says what it checks)
"""Every command that names messages, against a message in every state."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from bide.model import commands as cmd
from bide.model.commands import Lease
from bide.model.message import STATES, Item, State
from bide.model.replies import Outcome
from bide.testing.conformance.driver import START, Driver, done


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
        return driver.outcomes(self.command(driver.queue, list(held)))


def by_id(verb: Callable[..., cmd.Command], *more: Any, **fields: Any) -> Callable[..., Any]:
    """Return what makes a command that names messages by the ids of their leases."""
    return lambda queue, held: verb(queue, *more, ids=[lease.id for lease in held], **fields)


def put(on_conflict: Any) -> Callable[[str, list[Lease]], cmd.Put]:
    """Return what makes a put of messages with the ids of some leases."""
    return lambda queue, held: cmd.Put(queue, [Item(one.id, b"2") for one in held], on_conflict)


WAITING: list[State] = ["delayed", "ready"]

BY_LEASE = {
    "ack": Verb(cmd.Ack, ["leased"]),
    "extend": Verb(lambda queue, held: cmd.Extend(queue, held, 2_000), ["leased"], repeats=True),
    "retry": Verb(cmd.Retry, ["leased"]),
    "return": Verb(lambda queue, held: cmd.Retry(queue, held, release=True), ["leased"]),
    "bury": Verb(cmd.Bury, ["leased"]),
}
BY_ID = {
    "bury by id": Verb(by_id(cmd.Bury), WAITING),
    "cancel": Verb(by_id(cmd.Cancel), WAITING),
    "edit": Verb(by_id(cmd.Edit, data=b"3"), [*WAITING, "dead"], repeats=True),
    "edit with a due time": Verb(by_id(cmd.Edit, delay=5), WAITING, repeats=True),
    "purge by id": Verb(by_id(cmd.Purge, "dead"), ["dead"]),
    "put": Verb(put("keep"), [], stores=True),
    "put that replaces": Verb(put("replace"), [*WAITING, "dead"], repeats=True, stores=True),
    "put that revives": Verb(put("revive"), ["dead"]),
    "release": Verb(by_id(cmd.Release, reason="no"), ["leased"]),
    "reschedule": Verb(by_id(cmd.Reschedule, delay=5), WAITING, repeats=True),
    "revive": Verb(by_id(cmd.Revive), ["dead"]),
}
every_verb = pytest.mark.parametrize("verb", (BY_LEASE | BY_ID).values(), ids=[*BY_LEASE, *BY_ID])


class StateCases:
    """Which command changes a message in which state."""

    @every_verb
    def test_a_command_changes_only_its_states(self, driver: Driver, verb: Verb) -> None:
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
            (outcome,) = verb.on(one.wait(1_000), lease)
            assert one.counts().flow.lapsed == 1
            assert outcome.done == (state in verb.states)
            if not outcome.done:
                assert outcome == one.refusal("a")
                assert one.state("a") == state

    @every_verb
    def test_a_message_named_twice_is_changed_twice(self, driver: Driver, verb: Verb) -> None:
        lease = driver.bring("a", verb.states[0]) if verb.states else Lease("a", 0)
        again = verb.on(driver, lease, lease)
        assert done(again) == [True, verb.repeats]
        if not verb.repeats and driver.find("a") != [None]:
            assert again[1] == driver.refusal("a")
        driver.counts()

    @every_verb
    def test_a_command_without_messages_changes_nothing(self, driver: Driver, verb: Verb) -> None:
        if not isinstance(verb.command("q", []), cmd.Put):
            assert verb.on(driver, Lease("a", 1)) == [Outcome("a", False)]
            assert driver.queues() == []
        driver.put("b")
        assert verb.on(driver) == []
        assert driver.counts().sizes.ready == 1

    @pytest.mark.parametrize("verb", BY_LEASE.values(), ids=BY_LEASE)
    def test_only_its_own_token_settles_a_message(self, driver: Driver, verb: Verb) -> None:
        old = driver.lease("a")
        (new,) = driver.wait(1_000).hold(holder="w2")
        assert verb.on(driver, old) == [Outcome("a", False, "leased", START, START + 2_000, "w2")]
        other = driver.lease("b")
        assert verb.on(driver, Lease("a", other.token)) == [driver.refusal("a")]
        mixed = verb.on(driver, Lease("b", other.token - 1), new, Lease("unknown", 1))
        assert [(o.id, o.done) for o in mixed] == [("b", False), ("a", True), ("unknown", False)]
        good_first = verb.on(driver, other, Lease("b", other.token - 1))
        assert done(good_first) == [True, False]
        assert good_first[1].state == driver.state("b")
