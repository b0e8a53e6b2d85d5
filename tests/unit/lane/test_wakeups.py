"""Hints from this process and, through the notifier, from others. None is lost for long."""

import queue
import threading
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from bide.engines.memory import MemoryEngine
from bide.engines.port import Identities
from bide.lane.lane import Lane
from bide.lane.waiting_claims import LOOK_AGAIN, LOOK_AGAIN_CALM
from bide.model.commands import Claim, Command
from bide.model.errors import StoreError
from bide.model.replies import Claimed, Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import count_submitted, engine_of
from bide.threads import deaths
from tests.start import START
from tests.unit.lane.commands import PATIENCE, claim, claims, ids, put, spawn, waiting
from tests.waiting import until


class Bell:
    """A notifier that the test rings."""

    def __init__(self) -> None:
        self.hints: queue.Queue[list[tuple[str, int]]] = queue.Queue()
        self.is_listening = True

    def ring(self, name: str = "q", wake: int = START) -> None:
        self.hints.put([(name, wake)])

    def listen(self) -> list[tuple[str, int]]:
        return self.hints.get()

    def close(self) -> None:
        self.hints.put([])


class Shared(MemoryEngine):
    """A memory engine as if other processes could use it too."""

    def __init__(self) -> None:
        super().__init__()
        self.bell = Bell()
        self.events: list[str] = []

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        self.events += [type(command).__name__ for command in commands]
        return super().execute(commands, now, identities)

    def notifier(self) -> Bell:
        self.events.append("listen")
        return self.bell


@pytest.fixture
def store() -> Shared:
    return Shared()


@pytest.fixture
def engine(store: Shared) -> FlakyEngine:
    return FlakyEngine(store)


def put_elsewhere(store: Shared, *names: str, delay: int = 0) -> None:
    MemoryEngine.execute(store, [put(*names, delay=delay)], START)


def test_a_hint_from_another_process_wakes_who_waits(lane: Lane, store: Shared) -> None:
    future = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    put_elsewhere(store, "a")
    store.bell.ring()
    assert ids(future.result(PATIENCE)) == ["a"]


def test_a_hint_for_later_wakes_at_its_moment(lane: Lane, store: Shared, clock: FakeClock) -> None:
    future = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    put_elsewhere(store, "a", delay=300)
    store.bell.ring(wake=START + 300)
    until(lambda: lane._waiting.queues["q"].wake == clock.monotonic() + 0.3)
    clock.wait_for_waiters()
    clock.advance(0.3)
    assert ids(future.result(PATIENCE)) == ["a"]


def test_a_hint_for_nothing_costs_one_look(lane: Lane, store: Shared, engine: FlakyEngine) -> None:
    future = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    store.bell.ring()
    until(lambda: claims(engine) == 3)  # alone, before it was parked, and for the hint
    waiting(lane)
    assert not future.done()


def test_a_hint_for_another_queue_costs_nothing(
    lane: Lane, store: Shared, engine: FlakyEngine
) -> None:
    spawn(lane.call, claim(), wait=60)
    waiting(lane)
    before = claims(engine)
    store.bell.ring("other")
    store.bell.ring("another")  # when it is taken, the one before has been handled
    until(store.bell.hints.empty)
    assert claims(engine) == before


def test_closing_stops_to_listen(lane: Lane) -> None:
    spawn(lane.call, claim(), wait=60)
    waiting(lane)
    until(lambda: lane._hint_thread.is_alive)
    lane.close()
    until(lambda: not lane._hint_thread.is_alive)


def test_a_listener_may_close_the_lane(lane: Lane, store: Shared) -> None:
    closed = threading.Event()

    def close(queue: str, wake: int) -> None:
        lane.close()
        closed.set()

    lane.listen(close)
    store.bell.ring()
    assert closed.wait(PATIENCE)


def test_a_lane_closes_that_could_not_start_a_thread_to_listen(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "bide-notifier":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)
    spawn(lane.call, claim(), wait=60)
    waiting(lane)
    lane.close()
    assert engine_of(lane) is None


def test_after_a_notifier_has_ended_at_once_the_next_claim_listens_again(
    lane: Lane, store: Shared, clock: FakeClock
) -> None:
    store.bell.close()
    future = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    until(lambda: lane._hears is None)
    clock.wait_for_waiters()
    clock.advance(LOOK_AGAIN)
    until(lambda: store.events.count("listen") == 2)
    waiting(lane)
    put_elsewhere(store, "a")
    store.bell.ring()
    assert ids(future.result(PATIENCE)) == ["a"]


def test_a_lane_with_listeners_listens_again_without_a_claim(lane: Lane, store: Shared) -> None:
    heard: queue.Queue[str] = queue.Queue()
    lane.listen(lambda name, _: heard.put(name))
    store.bell.close()
    until(lambda: store.events.count("listen") == 2)
    store.bell.ring("other")
    assert heard.get(timeout=PATIENCE) == "other"


def test_a_claim_that_will_wait_listens_before_it_looks(lane: Lane, store: Shared) -> None:
    lane.call(put("far", delay=9_000))
    spawn(lane.call, claim(), wait=60)
    waiting(lane)
    assert store.events[-2:] == ["listen", "Claim"]


def test_nobody_listens_who_does_not_wait(lane: Lane, store: Shared) -> None:
    lane.call(put("a"))
    lane.call(claim())
    assert "listen" not in store.events


def nothing() -> None:
    """Nobody does anything."""


class Racing(Shared):
    """Does something right after the next claim has found nothing, before its caller knows."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = nothing

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        replies = super().execute(commands, now, identities)
        if any(isinstance(command, Claim) for command in commands):
            meanwhile, self.meanwhile = self.meanwhile, nothing
            meanwhile()
        return replies


@pytest.mark.parametrize("delay", [0, 250])
@pytest.mark.parametrize("far", [False, True])
def test_a_hint_between_looking_and_parking_is_not_lost(
    clock: FakeClock, delay: int, far: bool
) -> None:
    store = Racing()
    lane = Lane(lambda: store, clock)
    if far:
        lane.call(put("far", delay=600))

    def meanwhile() -> None:
        put_elsewhere(store, "a", delay=delay)
        lane.hint("q", START + delay)

    store.meanwhile = lambda: setattr(store, "meanwhile", meanwhile)  # not the look of one's own
    future = spawn(lane.call, claim(), wait=60)
    if delay:
        waiting(lane)
        clock.wait_for_waiters()
        clock.advance(delay / 1000)
    assert ids(future.result(PATIENCE)) == ["a"]
    lane.close()


def test_a_put_between_looking_and_parking_is_not_lost(clock: FakeClock) -> None:
    store = Racing()
    lane = Lane(lambda: store, clock)
    putting = []

    def meanwhile() -> None:  # it is on its way, and must wait until the claim has been executed
        putting.append(spawn(lane.call, put("a")))
        until(lambda: count_submitted(lane) == 1)

    lane.call(put("far", delay=9_000))
    store.meanwhile = lambda: setattr(store, "meanwhile", meanwhile)  # not the look of one's own
    future = spawn(lane.call, claim(), wait=60)
    assert ids(future.result(PATIENCE)) == ["a"]
    putting[0].result(PATIENCE)
    lane.close()


def test_a_lost_hint_is_healed_within_a_second(lane: Lane, store: Shared, clock: FakeClock) -> None:
    future = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    put_elsewhere(store, "a")
    clock.wait_for_waiters()
    clock.advance(LOOK_AGAIN)
    assert ids(future.result(PATIENCE)) == ["a"]
    assert LOOK_AGAIN <= 1


def test_a_calm_store_is_looked_at_less_often(
    lane: Lane,
    engine: FlakyEngine,
    store: Shared,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calmly(
        commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        replies = MemoryEngine.execute(store, commands, now, identities)
        return [replace(r, calm=True) if isinstance(r, Claimed) else r for r in replies]

    monkeypatch.setattr(store, "execute", calmly)
    future = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    before = claims(engine)
    clock.wait_for_waiters()
    clock.advance(LOOK_AGAIN)
    clock.wait_for_waiters()
    assert claims(engine) == before
    put_elsewhere(store, "a")
    clock.advance(LOOK_AGAIN_CALM - LOOK_AGAIN)
    assert ids(future.result(PATIENCE)) == ["a"]


def test_whoever_waits_looks_again_only_once_a_second(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    for number in range(1, 51):
        spawn(lane.call, claim(), wait=600)
        waiting(lane, number)
    before = claims(engine)
    for _ in range(20):
        clock.wait_for_waiters()
        clock.advance(0.5)
    clock.wait_for_waiters()
    assert claims(engine) == before + 10


def test_a_bell_that_cannot_be_heard_fails_no_claim(
    lane: Lane, store: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Bell:
        raise StoreError("no sockets here")

    monkeypatch.setattr(store, "notifier", broken)
    future = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    lane.call(put("a"))
    assert ids(future.result(PATIENCE)) == ["a"]


def test_a_bell_that_cannot_be_had_is_logged_once(
    lane: Lane, store: Shared, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Bell:
        raise StoreError("no sockets here")

    monkeypatch.setattr(store, "notifier", broken)
    for id in ("a", "b"):
        lane.call(put(id))
        assert ids(lane.call(claim(), wait=60)) == [id]
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert [r.name for r in warnings] == ["bide.lane"]
    assert "cannot listen for changes by other processes (no sockets here)" in caplog.text


def test_a_notifier_that_raises_is_counted_and_listens_on(
    lane: Lane, store: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: queue.Queue[str] = queue.Queue()
    died = deaths["bide-notifier"]
    store.bell.hints.put([("q", "no time")])  # type: ignore[list-item]
    lane.listen(lambda name, wake: heard.put(name[: wake // wake]))
    store.bell.ring("r")
    assert heard.get(timeout=PATIENCE) == "r"
    assert deaths["bide-notifier"] == died + 1


def test_a_lane_knows_whether_other_processes_can_wake_it(lane: Lane, store: Shared) -> None:
    assert not lane.notifications_lost, "no claim waits"
    spawn(lane.call, claim(), wait=60)
    waiting(lane)
    assert not lane.notifications_lost
    store.bell.is_listening = False
    assert lane.notifications_lost
    store.bell.is_listening = True
    assert not lane.notifications_lost


def test_notifications_are_lost_until_a_lane_can_listen(
    lane: Lane, store: Shared, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Bell:
        raise StoreError("no sockets here")

    with monkeypatch.context() as patched:
        patched.setattr(store, "notifier", broken)
        spawn(lane.call, claim(), wait=60)
        waiting(lane)
        clock.wait_for_waiters()
        assert lane.notifications_lost
    clock.advance(LOOK_AGAIN)
    until(lambda: not lane.notifications_lost)
