"""Bulk changes that are taken back, on every kind of store, and after a process that died."""

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bide
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
from bide.model.undoing import PART, UNDO_FOR, Bulk, Undo, Undone, Verb
from bide.testing.clock import FakeClock
from bide.undoing.steps import bulk_steps, undo_steps
from tests.contract.queue.conftest import Make

HOUR = 3_600


@pytest.fixture(
    params=[
        ("sync", "sqlite"),
        ("async", "redis"),
        ("sync", "redis-shards"),
        ("sync", "postgres"),
        ("sync", "http"),
        pytest.param(("async", "http"), marks=pytest.mark.full),
        pytest.param(("async", "postgres"), marks=pytest.mark.full),
        pytest.param(("async", "memory"), marks=pytest.mark.full),
        ("sync", "memory"),
    ],
    ids="-".join,
)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def url(
    request: pytest.FixtureRequest, pair: tuple[str, str], tmp_path: Path, clock: FakeClock
) -> Iterator[str]:
    kind = pair[1]
    if kind in ("redis", "redis-shards", "postgres"):
        kind, _, shards = kind.partition("-")
        fresh: Callable[[], str] = request.getfixturevalue(f"{kind}_url")
        yield fresh() + ("&shards=4" if shards else "")
    elif kind == "memory":
        yield f"memory://undo-{tmp_path.name}"
    elif kind == "sqlite":
        yield f"sqlite:///{tmp_path}/bide.db?durability=normal"
    else:
        from bide.server.app import ServerApp
        from bide.server.settings import Settings
        from tests.system.server.conftest import running

        app = ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db?durability=normal"), clock)
        with running(app) as port:
            yield f"http://127.0.0.1:{port}"


def fill(orders: Any, clock: FakeClock) -> None:
    """Put ten messages of a group: of each kind one, of which two have failed once."""
    for number in range(8):
        orders.put(
            {"n": number} if number % 2 else f"b{number}".encode(),
            id=f"m{number}",
            group="g",
            delay=HOUR + number,
            priority=number,
            expires="1h",
            headers={"h": str(number)},
            attempts=3,
        )
    orders.put(8, id="m8", group="g", attempts=3, expires="1h")
    orders.put(9, id="m9", group="g", attempts=3)
    clock.advance(1)
    orders.retry(orders.claim(2), delay=30, reason="no luck")


def state(orders: Any) -> dict[str, Any]:
    """Return all messages of a queue, but for when a retry had planned them."""
    found = {}
    for message in orders.scan():
        found[message.id] = msgspec.structs.replace(message, planned=None)
    return found


def test_a_cancelled_group_is_put_again_as_it_was(make: Make, clock: FakeClock) -> None:
    orders = make()
    fill(orders, clock)
    orders.put(1, id="other", delay=HOUR)
    before = state(orders)
    cancelled = orders.cancel(group="g", undo=True)
    assert cancelled == 10
    assert list(state(orders)) == ["other"]
    put = orders.counts().flow.put
    undone = orders.undo(cancelled.undo)
    assert undone == bide.Undone(restored=10)
    assert state(orders) == before
    assert orders.counts().flow.put == put + 10
    assert orders.undo(cancelled.undo) == bide.Undone(again=10)
    assert orders.audit()


def test_a_moved_group_is_due_as_before(make: Make, clock: FakeClock) -> None:
    orders = make()
    fill(orders, clock)
    before = {one.id: one.due for one in orders.scan()}
    moved = orders.reschedule(group="g", delay="2h", undo=True)
    assert moved == 10
    later = {one.due for one in orders.scan()}
    assert later == {clock.now() + 2 * HOUR * 1_000}
    clock.advance(60)
    assert orders.undo(moved.undo).restored == 10
    assert {one.id: one.due for one in orders.scan()} == before
    assert orders.undo(moved.undo) == bide.Undone(again=10)


def bury_all(orders: Any, count: int = 3) -> dict[str, Any]:
    for number in range(count):
        orders.put({"n": number}, id=f"d{number}", attempts=2, headers={"h": "1"})
    orders.retry(orders.claim(count), reason="first")
    orders.retry(orders.claim(count), reason="second")
    letters = state(orders)
    assert {one.state for one in letters.values()} == {"dead"}
    return letters


def test_revived_letters_are_buried_again_with_their_failures(make: Make, clock: FakeClock) -> None:
    orders = make()
    letters = bury_all(orders)
    clock.advance(5)
    revived = orders.revive(delay="1m", undo=True)
    assert (revived, orders.counts().sizes.delayed) == (3, 3)
    assert orders.undo(revived.undo).restored == 3
    assert state(orders) == letters
    assert orders.revive([], undo=True) == 0
    chosen = orders.revive(["d1", "d1", "none"], undo=True)
    assert (chosen, orders.counts().sizes.ready) == (1, 1)
    assert orders.undo(chosen.undo).restored == 1
    assert state(orders) == letters


@pytest.mark.parametrize("kind", ["dead", "delayed", "ready"])
def test_what_was_purged_comes_back(make: Make, clock: FakeClock, kind: str) -> None:
    orders = make()
    if kind == "dead":
        bury_all(orders)
    else:
        for number in range(3):
            orders.put(number, id=f"m{number}", delay=HOUR if kind == "delayed" else 0)
    before = state(orders)
    clock.advance(1)
    limit = (clock.now() + 2 * HOUR * 1_000) / 1_000
    purged = orders.purge(state=kind, before=limit, undo=True)
    assert (purged, state(orders)) == (3, {})
    assert orders.undo(purged.undo).restored == 3
    assert state(orders) == before
    nothing = orders.purge(state=kind, before=1_000_000_000, undo=True)
    assert nothing == 0
    with pytest.raises(bide.NothingToUndo, match="the change changed nothing"):
        orders.undo(nothing.undo)


def test_a_dry_run_counts_what_a_purge_deletes_then(make: Make, clock: FakeClock) -> None:
    orders = make(keep=HOUR)
    bury_all(orders)
    clock.advance(10)
    later = clock.now() / 1_000
    orders.put("died later", id="d3", attempts=1)
    orders.put("acked", id="a0")
    died, acked = sorted(orders.claim(2), key=lambda delivery: delivery.id, reverse=True)
    orders.bury([died], "no")
    orders.ack([acked])
    orders.put_many([bide.NewMessage(n, id=f"m{n}", delay=HOUR + n) for n in range(4)])
    orders.put_many([bide.NewMessage(n, id=f"r{n}") for n in range(2)])
    assert orders.revive(dry_run=True) == 4
    assert orders.revive(["d0", "d0", "m1", "none"], dry_run=True) == 1
    assert orders.revive(["d1", *(f"x{n}" for n in range(2 * PART)), "d2"], dry_run=True) == 2
    assert orders.revive([], dry_run=True) == 0
    for kind, before, count in (
        ("dead", later, 3),
        ("dead", None, 1),
        ("delayed", later + HOUR + 2, 2),
        ("delayed", None, 2),
        ("ready", later, 0),
        ("ready", None, 2),
        ("acked", later, 0),
        ("acked", None, 1),
        ("expired", None, 0),
    ):
        there = state(orders)
        assert orders.purge(state=kind, before=before, dry_run=True) == count, (kind, before)
        assert state(orders) == there
        assert orders.purge(state=kind, before=before) == count, (kind, before)
    assert make("none").purge(state="dead", dry_run=True) == 0


def test_what_has_happened_since_is_told_and_left_as_it_is(make: Make, clock: FakeClock) -> None:
    orders = make()
    for number in range(3):
        orders.put(number, id=f"m{number}", group="g", delay=HOUR)
    cancelled = orders.cancel(group="g", undo=True)
    orders.put("new", id="m1")
    assert orders.undo(cancelled.undo) == bide.Undone(restored=2, taken=1)
    assert orders.get("m1").body == "new"

    orders.purge(state="ready")
    for number in range(5):
        orders.put(number, id=f"r{number}", group="h", delay=HOUR)
    moved = orders.reschedule(group="h", delay=0, undo=True)
    held, tried, acked = orders.claim(3)
    tried.retry(delay=5)
    acked.ack()
    orders.edit("r4", body="edited")
    assert orders.undo(moved.undo) == bide.Undone(restored=1, taken=1, claimed=3)
    assert orders.get(held.id).state == "leased"
    assert orders.get("r4").body == "edited"

    letters = bury_all(make("letters"), 4)
    letters = make("letters")
    revived = letters.revive(undo=True)
    held, tried = letters.claim(2)
    tried.retry()
    letters.reschedule("d2", delay=9)
    assert letters.undo(revived.undo) == bide.Undone(restored=1, taken=1, claimed=2)
    assert letters.get("d3").state == "dead"
    assert letters.audit()


def test_a_cancelled_message_that_is_due_meanwhile_is_delivered_when_it_comes_back(
    make: Make, clock: FakeClock
) -> None:
    orders = make()
    orders.put(1, id="a", group="g", delay=5)
    cancelled = orders.cancel(group="g", undo=True)
    clock.advance(60)
    orders.undo(cancelled.undo)
    assert [one.id for one in orders.claim(5)] == ["a"]


def test_it_is_final_after_ten_minutes_and_forgotten(
    make: Make, clock: FakeClock, pair: tuple[str, str], tmp_path: Path
) -> None:
    orders = make()
    orders.put(1, id="a", group="g", delay=HOUR)
    orders.put(2, id="b", group="h", delay=HOUR)
    cancelled = orders.cancel(group="g", undo=True)
    # No caller of a server may look there, so that is asked of its store.
    store = {"url": f"sqlite:///{tmp_path}/bide.db"} if pair[1] == "http" else {}
    records = make("bide:undo", **store)
    assert sum(1 for _ in records.scan()) == 2
    clock.advance(UNDO_FOR / 1_000)
    with pytest.raises(bide.NothingToUndo, match="more than 10 minutes"):
        orders.undo(cancelled.undo)
    assert orders.get("a") is None
    orders.cancel(group="h", undo=True)
    assert sum(1 for _ in records.scan()) == 2
    for wrong in ("", "x", "a" * 26, "0" * 26):
        with pytest.raises(bide.NothingToUndo):
            orders.undo(wrong)
    with pytest.raises(bide.NothingToUndo):
        make("others").undo(cancelled.undo)


def test_a_large_change_goes_in_parts(make: Make, clock: FakeClock) -> None:
    orders = make()
    count = 2 * PART + 7
    orders.put_many(
        [
            bide.NewMessage("x" * (300_000 if number < 4 else 10), id=f"m{number:04}", group="g")
            for number in range(count)
        ],
    )
    before = orders.counts().sizes
    cancelled = orders.cancel(group="g", undo=True)
    assert (cancelled, orders.counts().sizes.total) == (count, 0)
    assert orders.undo(cancelled.undo).restored == count
    assert orders.counts().sizes == before
    assert orders.get("m0001").body == "x" * 300_000


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"id": "a"}, "undo= is for changes of many"),
        ({"group": "g", "dry_run": True}, "undo= and dry_run="),
    ],
)
def test_where_undo_has_no_meaning(given: dict[str, Any], why: str) -> None:
    orders: Any = bide.Queue("orders", "memory://undo-refused")
    with pytest.raises(bide.InvalidArgument, match=why):
        orders.cancel(**given, undo=True)
    with pytest.raises(bide.InvalidArgument, match=why):
        orders.reschedule(**given, delay=1, undo=True)
    with pytest.raises(bide.InvalidArgument, match="undo= is not for acked"):
        orders.purge(state="acked", undo=True)
    with pytest.raises(bide.InvalidArgument, match=r"undo=None is not a token.*with undo=True"):
        orders.undo(None)
    with pytest.raises(bide.InvalidArgument, match="undo= and dry_run="):
        orders.purge(state="dead", undo=True, dry_run=True)
    with pytest.raises(bide.InvalidArgument, match="undo= and dry_run="):
        orders.revive(undo=True, dry_run=True)
    with pytest.raises(bide.InvalidArgument, match="leased messages cannot be purged"):
        orders.purge(state="leased", dry_run=True)


def test_how_to_take_it_back_goes_to_another_process() -> None:
    with bide.Queue("orders", "memory://undo-pickled") as orders:
        orders.put(1, group="g", delay="1h")
        count = orders.cancel(group="g", undo=True)
        for other in (pickle.loads(pickle.dumps(count)), copy.deepcopy(count)):
            assert (other, other.undo, type(other)) == (1, count.undo, bide.Undoable)
        assert orders.undo(count.undo).restored == 1


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
