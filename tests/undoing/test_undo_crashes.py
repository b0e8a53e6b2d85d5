"""A process that dies, or loses its store, while it changes many messages or takes that back."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bide.engines.memory import MemoryEngine
from bide.lane.steps import run_steps
from bide.model.commands import (
    Ack,
    Cancel,
    Claim,
    Command,
    Find,
    Lease,
    Purge,
    Put,
    Reschedule,
    Revive,
    Scan,
)
from bide.model.errors import OutcomeUnknown, StoreFull
from bide.model.identity import new_id
from bide.model.message import Failure, Item
from bide.model.replies import Claimed, Outcomes, Page
from bide.model.undoing import Bulk, Undo, Undone, Verb
from bide.undoing.steps import bulk_steps, undo_steps

NOW = 1_700_000_000_000
COUNT = 5

Ask = Callable[[Command], Any]


class Died(BaseException):
    """The process was killed."""


class Store:
    """A store with messages, or dead letters, that fails at a chosen step."""

    def __init__(self, verb: Verb) -> None:
        self.engine = MemoryEngine()
        self.verb: Verb = verb
        self.undo = new_id()
        died = NOW if verb in ("revive", "purge") else None
        failures = (Failure(1, NOW - 5, "w", "no", NOW - 9),) if died else ()
        items = [
            Item(f"m{n}", b"1", at=NOW + 5_000 + n, failures=failures, attempt=1, died=died)
            for n in range(COUNT)
        ]
        self.ask(Put("q", items))
        self.before = self.messages()

    def ask(self, command: Command) -> Any:
        return self.engine.execute([command], NOW)[0]

    def failing(self, at: int, error: BaseException, *, executes: bool) -> Ask:
        """Return what asks, and fails at a step, before or after that is executed."""
        steps = iter(range(1_000))

        def ask(command: Command) -> Any:
            if next(steps) != at:
                return self.ask(command)
            if executes:
                self.ask(command)
            raise error

        return ask

    def messages(self) -> dict[str, Any]:
        page = self.ask(Scan("q", limit=100))
        assert isinstance(page, Page)
        return {one.id: one for one in page.messages}

    def change(self, ask: Ask) -> None:
        by_id = [f"m{n}" for n in range(COUNT)]
        state: Any = "dead" if self.verb == "purge" else None
        bulk = Bulk(queue="q", undo=self.undo, verb=self.verb, ids=by_id, state=state, delay=60_000)
        run_steps(bulk_steps(bulk), ask)

    def has_record(self) -> bool:
        return self.ask(Find("bide:undo", [f"{self.undo}:0"])).messages[0] is not None

    def take_back(self, ask: Ask) -> Undone:
        return run_steps(undo_steps(Undo(queue="q", undo=self.undo)), ask)

    def steps(self, run: Callable[[Ask], object]) -> int:
        """Return how many steps something takes; it is done then."""
        count = 0

        def ask(command: Command) -> Any:
            nonlocal count
            count += 1
            return self.ask(command)

        run(ask)
        return count


BREAKS = [
    (Died(), False),
    (Died(), True),
    (StoreFull("full"), False),
    (OutcomeUnknown("lost"), False),
    (OutcomeUnknown("lost"), True),
]
"""How a step breaks off, and whether it is executed all the same."""

VERBS: list[Verb] = ["cancel", "reschedule", "purge", "revive"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("error", "executes"), BREAKS)
def test_a_change_that_breaks_off_restores_what_is_sure(
    verb: Verb, executes: bool, error: BaseException
) -> None:
    total = Store(verb).steps(Store(verb).change)
    told = set()
    for at in range(total):
        store = Store(verb)
        with pytest.raises(type(error)):
            store.change(store.failing(at, error, executes=executes))
        changed = store.messages() != store.before
        if store.has_record():
            undone = store.take_back(store.ask)
        else:
            assert not changed
            told.add("nothing")
            continue
        if undone.restored:
            assert store.messages() == store.before
            told.add("restored")
        elif changed:
            assert undone == Undone(unknown=COUNT, following=1)
            told.add("unknown")
    assert "nothing" in told
    assert "unknown" in told


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("error", "executes"), BREAKS)
def test_an_undo_that_breaks_off_restores_nothing_twice(
    verb: Verb, executes: bool, error: BaseException
) -> None:
    first = Store(verb)
    first.change(first.ask)
    total = first.steps(first.take_back)
    for at in range(total):
        store = Store(verb)
        store.change(store.ask)
        with pytest.raises(type(error)):
            store.take_back(store.failing(at, error, executes=executes))
        done = {one.id for one in store.messages().values() if one == store.before.get(one.id)}
        for id in done:  # a worker gets what is there, and handles it
            store.ask(Cancel("q", [id]))
            store.ask(Purge("q", "dead", ids=[id]))
        undone = store.take_back(store.ask)
        again = {one.id for one in store.messages().values() if one == store.before.get(one.id)}
        assert not again & done
        if isinstance(error, StoreFull) and at < total - 1 and not done:
            assert undone.restored == COUNT  # nothing had been restored: it can be tried again


def test_what_was_acked_meanwhile_is_never_put_again() -> None:
    store = Store("cancel")
    before = store.messages()["m0"]

    def ask(command: Command) -> Any:
        if isinstance(command, Cancel) and command.queue == "q":  # just before the change
            claimed = store.engine.execute([Claim("q", 1, 1_000, "w")], NOW + 5_000)[0]
            assert isinstance(claimed, Claimed)
            store.engine.execute(
                [Ack("q", [Lease(claimed.messages[0].id, claimed.token)])], NOW + 5_000
            )
        return store.ask(command)

    store.change(ask)
    assert store.take_back(store.ask).restored == COUNT - 1
    assert before.id not in store.messages()


def test_what_was_edited_between_reading_and_changing_stays() -> None:
    store = Store("cancel")

    def ask(command: Command) -> Any:
        reply = store.ask(command)
        if isinstance(command, Find) and command.queue == "q":
            store.ask(Put("q", [Item("m0", b"2", at=NOW + 9_000)], "replace"))
        return reply

    store.change(ask)
    assert {id: one.data for id, one in store.messages().items()} == {"m0": b"2"}
    assert store.take_back(store.ask).restored == COUNT - 1
    assert store.messages()["m0"].data == b"2"


@pytest.mark.parametrize("verb", ["reschedule", "revive"])
def test_each_shard_may_have_a_clock_of_its_own(verb: Verb) -> None:
    store = Store(verb)

    def ask(command: Command) -> Any:
        if not isinstance(command, (Reschedule, Revive)):
            return store.ask(command)
        outcomes = []
        for number, (id, version) in enumerate(zip(command.ids, command.versions, strict=True)):
            one = msgspec.structs.replace(command, ids=[id], versions=[version])
            reply = store.engine.execute([one], NOW + number)[0]
            assert isinstance(reply, Outcomes)
            outcomes += reply.outcomes
        return Outcomes(outcomes)

    store.change(ask)
    assert len({one.due for one in store.messages().values()}) == COUNT
    assert store.take_back(store.ask) == Undone(restored=COUNT, following=1)
    assert store.messages() == store.before
