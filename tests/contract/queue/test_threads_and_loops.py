"""Threads, greenlets and event loops, closed queues, other processes."""

import asyncio
import inspect
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest
import trio

import bide
from bide import Closed, StoreBusy, WrongContext
from bide.engines.memory import MemoryEngine
from bide.lane.lane import Lane
from bide.model.commands import Configure
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import inbox_of, lane_of
from tests.start import START
from tests.unit.lane.commands import PATIENCE, spawn, waiting
from tests.waiting import until

CALLS: list[Callable[[Any], Any]] = [
    lambda q: q.put(1),
    lambda q: q.put_many([1]),
    lambda q: q.put_many([]),
    lambda q: q.cancel("a"),
    lambda q: q.cancel(group="a"),
    lambda q: q.reschedule("a", delay=1),
    lambda q: q.get("a"),
    lambda q: q.peek(),
    lambda q: list(q.scan()),
    lambda q: q.claim(),
    lambda q: q.take(wait=1).__enter__(),
    lambda q: q.ack([]),
    lambda q: q.counts(),
    lambda q: q.audit(),
    lambda q: q.forecast(),
    lambda q: q.past(),
    lambda q: list(q.dead()),
    lambda q: q.revive(["a"]),
    lambda q: q.pause(),
    lambda q: q.purge(state="dead"),
    lambda q: list(q.export()),
    lambda q: q.load(['{"id": "a", "due": 1, "body": 1}']),
]


@pytest.mark.parametrize("call", CALLS, ids=map(str, range(len(CALLS))))
def test_a_closed_queue_refuses_every_call(orders: Any, call: Callable[[Any], Any]) -> None:
    orders.put(1)
    orders.close()
    with pytest.raises(Closed, match="'orders' was closed; make a new one to go on"):
        call(orders)


@pytest.mark.parametrize("call", CALLS, ids=map(str, range(len(CALLS))))
def test_a_blocking_queue_on_an_event_loop_names_the_other_class(
    call: Callable[[Any], Any],
) -> None:
    async def main() -> None:
        with pytest.raises(WrongContext, match=r"use bide\.AsyncQueue here .* with await"):
            call(queue)

    with bide.Queue("orders", "memory://loop") as queue:
        if call is not CALLS[2]:  # nothing to put blocks nobody
            asyncio.run(main())
        assert queue.counts().flow.put == 0


def test_a_blocking_queue_works_in_a_thread_beside_a_loop() -> None:
    async def main() -> bool:
        return bool(await asyncio.to_thread(queue.put, 1))

    with bide.Queue("orders", "memory://beside") as queue:
        assert asyncio.run(main())


def test_one_async_queue_serves_several_loops() -> None:
    queue = bide.AsyncQueue("orders", "memory://loops")

    async def main(count: int) -> None:
        await asyncio.gather(*(queue.put(number) for number in range(count)))

    threads = [spawn(asyncio.run, main(50)) for _ in range(4)]
    for thread in threads:
        thread.result(PATIENCE)

    async def end() -> int:
        async with queue:
            return (await queue.counts()).sizes.ready

    assert asyncio.run(end()) == 200


def test_both_faces_share_a_store_and_its_wakeups() -> None:
    async def main() -> Any:
        async with bide.AsyncQueue("orders", "memory://both") as tasks:
            claim = asyncio.create_task(tasks.claim(wait=PATIENCE))
            await asyncio.to_thread(waiting, lane_of(tasks))
            await asyncio.to_thread(threads.put, "hello")
            return (await claim)[0].body

    with bide.Queue("orders", "memory://both") as threads:
        assert asyncio.run(main()) == "hello"


def test_closing_a_queue_ends_its_own_claims_and_no_others(make: Any) -> None:
    first, second = make("orders"), make("orders")
    going = spawn(first.claim, wait=60)
    waiting(lane_of(second) if isinstance(second, bide.Queue) else lane_of(second.target), 1)
    staying = spawn(second.claim, wait=60)
    waiting(lane_of(second) if isinstance(second, bide.Queue) else lane_of(second.target), 2)
    first.close()
    assert isinstance(going.exception(PATIENCE), Closed)
    second.put(1)
    assert len(staying.result(PATIENCE)) == 1


def test_closing_from_many_threads_closes_the_neighbour_on_the_lane_not_at_all(make: Any) -> None:
    first, second = make("orders"), make("mails")
    barrier = threading.Barrier(6)

    def close() -> None:
        barrier.wait()
        first.close()

    for closing in [spawn(close) for _ in range(6)]:
        closing.result(PATIENCE)
    assert second.put(1)


def test_a_with_block_closes(make: Any) -> None:
    queue = make()
    with queue:
        queue.put(1)
    with pytest.raises(Closed):
        queue.put(2)
    queue.close()


@pytest.mark.parametrize("face", [bide.Queue, bide.AsyncQueue])
def test_a_queue_cannot_be_sent_to_another_process(face: Any) -> None:
    queue = face("orders", "memory://pickle")
    with pytest.raises(TypeError, match="make one there, with the same name and URL"):
        pickle.dumps(queue)
    queue._close()


def use(queue: bide.Queue | bide.AsyncQueue, engine: FlakyEngine) -> Lane:
    """Let a queue use an engine; return its lane."""
    lane = Lane(lambda: engine, FakeClock(START))
    queue._use(lane)
    return lane


def test_what_the_constructor_was_told_is_not_lost_when_the_store_was_busy(
    clock: FakeClock,
) -> None:
    engine = FlakyEngine(MemoryEngine())
    queue = bide.Queue("orders", "memory://busy", keep="1h", clock=clock)
    use(queue, engine)
    queue.counts()
    assert engine.batches != [[Configure("orders", keep=3_600_000)]]
    engine.fail(StoreBusy("locked"), when=lambda command: isinstance(command, Configure))
    with pytest.raises(StoreBusy):
        queue.put(1)
    queue.put(1)
    assert queue.counts().keep == 3_600_000
    queue.put(2)
    told = [c for batch in engine.batches for c in batch if isinstance(c, Configure)]
    assert len(told) == 2
    queue.close()
    lane_of(queue).close()


def settings_sent(engine: FlakyEngine) -> int:
    """Return how often the settings of the constructor were sent."""
    sent = [command for batch in engine.batches for command in batch]
    return sum(isinstance(one, Configure) and one.keep == 3_600_000 for one in sent)


def test_of_threads_that_begin_together_one_sends_what_the_constructor_was_told(
    clock: FakeClock,
) -> None:
    engine = FlakyEngine(MemoryEngine())
    queue = bide.Queue("orders", "memory://together", keep="1h", clock=clock)
    lane = use(queue, engine)
    with engine.held():
        first = spawn(queue.configure, keep=0)
        engine.wait_until_held()
        second = spawn(queue.put, 1)  # it waits for its turn in the lane, and for nothing else
        inbox = inbox_of(lane)
        until(lambda: inbox.requests or inbox.batch)
    assert first.result(PATIENCE).keep == 0
    assert second.result(PATIENCE)
    assert settings_sent(engine) == 1
    assert queue.counts().keep == 0
    queue.close()
    lane.close()


def test_of_tasks_that_begin_together_one_sends_what_the_constructor_was_told(
    clock: FakeClock,
) -> None:
    engine = FlakyEngine(MemoryEngine())
    queue = bide.AsyncQueue("orders", "memory://together", keep="1h", clock=clock)
    lane = use(queue, engine)

    async def main() -> int:
        async with queue:
            await asyncio.gather(queue.configure(keep=0), queue.put(1), queue.put(2))
            return (await queue.counts()).keep

    assert asyncio.run(main()) == 0
    assert settings_sent(engine) == 1
    lane.close()


def test_settings_that_could_not_be_sent_are_sent_with_the_next_command(clock: FakeClock) -> None:
    engine = FlakyEngine(MemoryEngine())
    queue = bide.Queue("orders", "memory://next", keep="1h", clock=clock)
    lane = use(queue, engine)
    engine.fail(StoreBusy("busy"))
    with pytest.raises(StoreBusy):
        queue.put(1)
    queue.put(2)
    queue.put(3)
    assert settings_sent(engine) == 2  # in vain, and then once
    assert queue.counts().keep == 3_600_000
    queue.close()
    lane.close()


def test_who_only_looks_changes_no_setting(make: Any) -> None:
    make().put(1)
    curious = make(keep="1h")
    assert curious.counts().keep == 0
    assert curious.peek()
    assert curious.counts().keep == 0


def test_the_holder_is_known_to_others(make: Any) -> None:
    make(holder="mailer-3").put(1, id="a")
    make(holder="mailer-3").claim()
    assert make().get("a").holder == "mailer-3"


def test_the_holder_is_host_and_process_by_default(orders: Any) -> None:
    orders.put(1, id="a")
    orders.claim()
    assert orders.get("a").holder == f"{socket.gethostname()}:{os.getpid()}"


PAIRS = [(bide.Queue, bide.AsyncQueue), (bide.Delivery, bide.AsyncDelivery)]


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("plain", "other"), PAIRS)
def test_both_faces_have_the_same_names(plain: type, other: type) -> None:
    assert public(plain).keys() == public(other).keys()


@pytest.mark.parametrize(("plain", "other"), PAIRS)
def test_both_faces_have_the_same_signatures_and_defaults(plain: type, other: type) -> None:
    for name, method in {**public(plain), "__class__": plain}.items():
        twin = other if method is plain else getattr(other, name)
        if not callable(method):
            assert type(method) is type(twin), name
            continue
        ours = inspect.signature(method).parameters.values()
        theirs = inspect.signature(twin).parameters.values()
        assert [(p.name, p.kind, p.default) for p in ours] == [
            (p.name, p.kind, p.default) for p in theirs
        ], name


def test_whatever_blocks_in_a_queue_is_awaited_in_the_other() -> None:
    at_once = {"take", "scan", "dead", "ended", "export"}  # their results are entered, or iterated
    for name, method in public(bide.Queue).items():
        twin = getattr(bide.AsyncQueue, name)
        if inspect.isfunction(method):
            awaited = inspect.iscoroutinefunction(twin)
            assert awaited is (name not in at_once), name
            first = (twin.__doc__ or "").splitlines()[0]
            assert first.startswith(f"Async form of `Queue.{name}`"), name
            returned = get_origin(inspect.signature(method).return_annotation)
            twins = get_origin(inspect.signature(twin).return_annotation)
            assert returned is not Iterator or twins is AsyncIterator, name


PROGRAM = """
from gevent import monkey

monkey.patch_all()

import sys

import gevent

import bide


def handle():
    with queue.take() as delivery:
        return delivery.body


queue = bide.Queue("q", sys.argv[1])
waiting = gevent.spawn(handle)
puts = [gevent.spawn(queue.put, n, delay="1h") for n in range(20)]
gevent.joinall(puts, raise_error=True)
print("puts", queue.counts().sizes.delayed, flush=True)
print("took", waiting.get(), flush=True)
queue.close()
"""


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_greenlets_share_a_queue(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/bide.db"
    else:
        made: Callable[[], str] = request.getfixturevalue(f"{kind}_url")
        url = made()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "puts 20\n"
        with bide.Queue("q", url) as queue:
            queue.put("from outside")
            try:
                told, errors = child.communicate(timeout=60)
            finally:
                child.kill()
            assert (told, child.returncode) == ("took from outside\n", 0)
            assert "Traceback" not in errors
            assert queue.audit()


AFTER_THE_MAIN_THREAD = """
import asyncio, sys, threading

import bide


async def main():
    async with bide.AsyncQueue("orders", "sqlite:///" + sys.argv[1], keep="1h") as orders:
        await orders.put(1, id="a")
        print(await orders.counts())
        print(await orders.purge(state="ready", undo=True))
        print(await bide.aqueues("sqlite:///" + sys.argv[1]))


def run():
    threading.main_thread().join()
    asyncio.run(main())


threading.Thread(target=run).start()
"""


def test_a_loop_that_outlives_the_main_thread_uses_a_queue(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", AFTER_THE_MAIN_THREAD, tmp_path / "bide.db"],
        capture_output=True,
        text=True,
        check=False,
    )
    if sys.version_info[:2] == (3, 12):  # it starts no thread then
        assert "bide.model.errors.WrongContext: a queue needs a thread of its own" in child.stderr
        return
    assert child.stderr == ""
    counts, purged, queues = child.stdout.splitlines()
    assert "ready=1" in counts
    assert purged.startswith("1")
    assert "orders" in queues


async def use_a_queue() -> None:
    async with bide.AsyncQueue("orders", "memory://") as orders:
        await orders.put(1)


async def call_once() -> None:
    await bide.AsyncQueue("orders", "memory://").get("a")


async def run_an_app() -> None:
    app = bide.App("memory://")
    app.handler("orders")(lambda body: None)
    async with app.running():
        pass


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (use_a_queue, "bide.AsyncQueue"),
        (call_once, "bide.AsyncQueue"),
        (run_an_app, r"app\.running\(\)"),
    ],
)
def test_trio_is_told_to_use_a_thread(work: Callable[[], Awaitable[None]], what: str) -> None:
    with pytest.raises(
        bide.WrongContext, match=rf"{what} needs a running event loop of asyncio.*bide\.Queue.*trio"
    ):
        trio.run(work)
