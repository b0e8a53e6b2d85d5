"""A run that dies at any point loses nothing, and nothing is delivered by both."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bide
from bide.clock import SystemClock
from bide.importing.foreign_redis import ForeignRedis
from bide.importing.source import SourceEntry
from bide.importing.takeover import Library
from bide.importing.transit import Transit
from bide.lane.lane import Lane
from bide.lane.steps import find_all
from bide.model.commands import Origin, Put
from bide.model.limits import MAX_BYTES
from bide.model.message import Item
from bide.model.replies import Outcomes, expect
from bide.testing.hooks import execute
from tests.system.contrib.celery.conftest import Broker

IDS = [f"job-{number}" for number in range(5)]


class Dead(BaseException):
    """The process is gone."""


class Death:
    """Ends a run before or after its nth call of the source or the store."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at = at
        self.after = after
        self.calls = 0
        self.over = False

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.over or (self.calls == self.at and not self.after):
                self.over = True
                raise Dead
            reply = real(*args, **kwargs)
            if self.calls == self.at:
                self.over = True
                raise Dead
            return reply

        return call


def fill_rq(broker: Broker) -> None:
    import rq

    queue = rq.Queue("default", connection=broker.client, serializer="json")
    for id in IDS:
        queue.enqueue("shop.expire", 1, job_id=id)


def fill_celery(broker: Broker) -> None:
    from celery import Celery

    app = Celery("shop", broker=broker.url, set_as_current=False)
    for id in IDS:
        app.send_task("shop.expire", (1,), task_id=id)
    app.close()


def fill_arq(broker: Broker) -> None:
    from arq.jobs import serialize_job

    for id in IDS:
        job = serialize_job("shop.expire", (1,), {}, None, 1, serializer=None)
        broker.client.set(f"arq:job:{id}", job)
        broker.client.zadd("arq:queue", {id: 1})


FILLS: dict[Library, Callable[[Broker], None]] = {
    "rq": fill_rq,
    "celery": fill_celery,
    "arq": fill_arq,
}


def work(orders: bide.Queue, done: Counter[str]) -> None:
    while deliveries := orders.claim(100):
        done.update(delivery.id for delivery in deliveries)
        orders.ack(deliveries)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("library", FILLS)
def test_a_run_that_dies_anywhere_is_continued(
    library: Library,
    after: bool,
    broker: Broker,
    orders: bide.Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> bide.TakenOver:
        return bide.take_over(orders, library, broker.store_url, allow_pickle=True, batch=2)

    at, died = 0, True
    while died:
        at += 1
        done: Counter[str] = Counter()
        FILLS[library](broker)
        death = Death(at, after=after)
        with monkeypatch.context() as patch:
            patch.setattr(ForeignRedis, "ask_all", death.around(ForeignRedis.ask_all))
            patch.setattr(bide.Queue, "_execute", death.around(bide.Queue._execute))
            try:
                run()
            except Dead:
                pass
        died = death.over
        work(orders, done)  # workers of bide go on meanwhile
        broker.client.delete(*broker.client.keys("bide:import:*:run") or ["none"])  # it lapses
        assert run()
        work(orders, done)
        assert done == dict.fromkeys(IDS, 1), at
        assert broker.client.keys("bide:*") == []
        assert orders.counts().sizes.total == 0
        assert orders.audit()
        broker.client.flushdb()
    assert at > 10


def test_a_second_run_at_the_same_time_is_refused(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_rq(broker)
    broker.client.set("bide:import:rq:default:run", "another")
    monkeypatch.setattr("bide.importing.transit.PATIENCE", 0)
    with pytest.raises(bide.AlreadyMoving, match="another import takes messages out of"):
        bide.take_over(orders, "rq", broker.store_url)
    assert orders.counts().sizes.total == 0


def test_a_run_whose_right_lapsed_stops(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_rq(broker)
    take = Transit.take

    def slow(self: Transit, ready: Any) -> Any:
        broker.client.set("bide:import:rq:default:run", "another")
        return take(self, ready)

    monkeypatch.setattr(Transit, "take", slow)
    with pytest.raises(bide.AlreadyMoving, match="made no progress for too long"):
        bide.take_over(orders, "rq", broker.store_url)
    assert broker.client.llen("rq:queue:default") == len(IDS)
    assert broker.client.get("bide:import:rq:default:run") == b"another"


def test_a_run_that_stalls_puts_nothing_that_another_run_has_put(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_rq(broker)
    done = Counter[str]()
    carry = Transit.carry

    def stalls(self: Transit, taken: Any) -> Any:
        monkeypatch.setattr(Transit, "carry", carry)
        broker.client.delete("bide:import:rq:default:run")  # it lapses
        assert bide.take_over(orders, "rq", broker.store_url, batch=2)
        work(orders, done)
        return carry(self, taken)

    monkeypatch.setattr(Transit, "carry", stalls)
    with pytest.raises(bide.AlreadyMoving, match="made no progress for too long"):
        bide.take_over(orders, "rq", broker.store_url, batch=2)
    work(orders, done)
    assert done == Counter(IDS)


def test_an_id_that_the_queue_has_stays_in_the_source(broker: Broker, orders: bide.Queue) -> None:
    fill_rq(broker)
    orders.put("mine", id=IDS[1])
    for dry_run in (True, False):
        done = bide.take_over(orders, "rq", broker.store_url, dry_run=dry_run)
        assert (done.stored, done.reasons) == (
            4,
            {IDS[1]: f"orders has a message of the id {IDS[1]!r}"},
        )
    assert broker.client.lrange("rq:queue:default", 0, -1) == [IDS[1].encode()]


@pytest.mark.parametrize("batch", [2, 1_000])
def test_a_second_message_of_an_id_stays_in_the_source(
    batch: int, broker: Broker, orders: bide.Queue
) -> None:
    for _ in range(2):
        fill_celery(broker)
    for dry_run in (True, False):
        done = bide.take_over(orders, "celery", broker.store_url, dry_run=dry_run, batch=batch)
        assert (done.stored, done.refused, sorted(done.reasons)) == (5, 5, IDS)
    assert broker.client.llen("celery") == len(IDS)


def test_a_dry_run_counts_what_is_in_transit_as_a_run_does(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_arq(broker)  # pickled

    def run(*, allow_pickle: bool, dry_run: bool = False) -> bide.TakenOver:
        return bide.take_over(
            orders, "arq", broker.store_url, allow_pickle=allow_pickle, dry_run=dry_run
        )

    die_in(monkeypatch, "carry", lambda: run(allow_pickle=True))
    for allow_pickle in (False, True):
        assert run(allow_pickle=allow_pickle, dry_run=True) == run(allow_pickle=allow_pickle)


@pytest.mark.parametrize("library", FILLS)
def test_an_id_that_is_put_in_between_goes_back_to_the_source(
    library: Library, broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILLS[library](broker)
    before = {key: broker.client.dump(key) for key in broker.client.scan_iter()}
    take = Transit.take

    def then_put(self: Transit, ready: Any) -> Any:
        taken = take(self, ready)
        for id in IDS:
            orders.put("mine", id=id)
        return taken

    monkeypatch.setattr(Transit, "take", then_put)
    done = bide.take_over(orders, library, broker.store_url, allow_pickle=True)
    assert (done.stored, done.refused) == (0, 5)
    assert {key: broker.client.dump(key) for key in broker.client.scan_iter()} == before


def test_what_a_dead_run_has_taken_and_the_next_one_cannot_read_is_counted(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILLS["arq"](broker)  # pickled

    def die(self: Transit, taken: Any) -> Any:
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(Transit, "carry", die)
        with pytest.raises(Dead):
            bide.take_over(orders, "arq", broker.store_url, allow_pickle=True)
    for _ in range(2):
        stuck = bide.take_over(orders, "arq", broker.store_url)
        assert not stuck
        assert (stuck.stored, stuck.finished, stuck.pickled) == (0, 0, 5)
    orders.put("mine", id=IDS[0])
    done = bide.take_over(orders, "arq", broker.store_url, allow_pickle=True)
    # The one whose id is used has gone back to the source, and counts there alone.
    assert (done.stored, done.finished, done.pickled, done.refused) == (4, 4, 0, 1)
    assert list(done.reasons) == IDS[:1]


def test_an_id_that_the_queue_had_until_just_now(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the message, and the one that it has ends before this one is back."""
    from bide.importing import takeover

    fill_rq(broker)
    back = Transit.put_back
    once = [True]

    def put_now(queue: str, ids: Any) -> Any:
        messages = yield from find_all(queue, ids)
        if once:
            orders.put("another", id=IDS[0])
        return messages

    def end_now(transit: Transit, entry: SourceEntry) -> None:
        once.clear()
        orders.cancel(IDS[0])
        back(transit, entry)

    monkeypatch.setattr(takeover, "find_all", put_now)
    monkeypatch.setattr(Transit, "put_back", end_now)
    bide.take_over(orders, "rq", broker.store_url)
    assert not once
    done = Counter[str]()
    work(orders, done)
    assert done == Counter(IDS)


def test_large_messages_go_in_several_commands(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rq

    source = rq.Queue("default", connection=broker.client, serializer="json")
    for id in IDS:
        source.enqueue("shop.expire", "x" * 3_000_000, job_id=id)
    sizes: list[int] = []
    do = Lane.call

    def note(self: Any, command: Any, *more: Any, **options: Any) -> Any:
        if type(command) is Put and command.items:
            sizes.append(sum(len(item.data) for item in command.items))
        return do(self, command, *more, **options)

    monkeypatch.setattr(Lane, "call", note)
    with bide.Queue("orders", orders.url, max_body=4_000_000) as large:
        assert bide.take_over(large, "rq", broker.store_url).stored == len(IDS)
    assert max(sizes) == 2 * min(sizes) < MAX_BYTES


@pytest.fixture
def other_broker(redis_url: Callable[[], str]) -> Iterator[Broker]:
    broker = Broker(redis_url())
    yield broker
    broker.client.close()


def die_in(monkeypatch: pytest.MonkeyPatch, step: str, run: Callable[[], object]) -> None:
    """Let a run die in a step of the transit, every time that it comes to it."""

    def die(*args: Any) -> Any:
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(Transit, step, die)
        with pytest.raises(Dead):
            run()


class TwoHoursLater(SystemClock):
    """The clock of the machine, two hours later."""

    def now(self) -> int:
        return super().now() + 2 * 3600 * 1000

    def until(self, moment: int) -> float:
        return super().until(moment) - 2 * 3600


@pytest.fixture
def orders_later(orders: bide.Queue) -> Iterator[bide.Queue]:
    """The queue, two hours later: the store forgets which messages it has forwarded."""
    with bide.Queue("orders", orders.url, clock=TwoHoursLater()) as later:
        yield later


@pytest.mark.parametrize("step", ["carry", "drop"])
@pytest.mark.parametrize("place", ["queue", "store"])
def test_what_is_in_transit_goes_to_no_other_queue(
    place: str,
    step: str,
    broker: Broker,
    orders: bide.Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill_rq(broker)
    die_in(monkeypatch, step, lambda: bide.take_over(orders, "rq", broker.store_url, batch=2))
    name = "mails" if place == "queue" else "orders"
    url = f"sqlite:///{tmp_path / 'other.db'}" if place == "store" else orders.url
    with bide.Queue(name, url) as other:
        for dry_run in (True, False):
            says = f"an import into orders at {orders.url} was interrupted, .* the same import"
            with pytest.raises(bide.AlreadyMoving, match=says):
                bide.take_over(other, "rq", broker.store_url, dry_run=dry_run)
        assert other.counts().sizes.total == 0
        assert bide.take_over(orders, "rq", broker.store_url).finished == 2
        fill_rq(broker)
        assert bide.take_over(other, "rq", broker.store_url).stored == len(IDS)
    assert sorted(message.id for message in orders.scan()) == IDS


def test_an_import_from_another_server_makes_nothing_forgotten(
    broker: Broker,
    other_broker: Broker,
    orders: bide.Queue,
    orders_later: bide.Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = Counter[str]()
    fill_rq(broker)
    die_in(monkeypatch, "drop", lambda: bide.take_over(orders, "rq", broker.store_url))
    work(orders, done)
    fill_rq(other_broker)
    assert bide.take_over(orders_later, "rq", other_broker.store_url).stored == len(IDS)
    work(orders_later, done)
    assert bide.take_over(orders_later, "rq", broker.store_url).finished == len(IDS)
    work(orders_later, done)
    assert done == dict.fromkeys(IDS, 2)


def test_a_run_that_leaves_what_is_in_transit_makes_nothing_forgotten(
    broker: Broker, orders: bide.Queue, orders_later: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(queue: bide.Queue, *, allow_pickle: bool) -> bide.TakenOver:
        return bide.take_over(queue, "rq", broker.store_url, allow_pickle=allow_pickle)

    import rq

    done = Counter[str]()
    rq.Queue("default", connection=broker.client).enqueue("shop.expire", job_id="pickled")
    die_in(monkeypatch, "drop", lambda: run(orders, allow_pickle=True))
    work(orders, done)
    fill_rq(broker)
    rest = run(orders_later, allow_pickle=False)
    assert (rest.stored, rest.pickled) == (len(IDS), 1)
    assert run(orders_later, allow_pickle=True).finished == 1
    work(orders_later, done)
    assert done == Counter([*IDS, "pickled"])


def test_a_run_leaves_no_rows_in_the_store(
    broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[SourceEntry] = []
    take = Transit.take

    def note(self: Transit, ready: Any) -> Any:
        taken = take(self, ready)
        entries.extend(message.entry for message in taken)
        return taken

    monkeypatch.setattr(Transit, "take", note)
    fill_rq(broker)
    assert bide.take_over(orders, "rq", broker.store_url, batch=2)
    work(orders, Counter())
    assert len(entries) == len(IDS)
    for entry in entries:
        put = Put(
            "orders", [Item("again", b"1")], "replace", origin=Origin(entry.outbox, [entry.row])
        )
        assert expect(Outcomes, execute(orders, put)).outcomes[0]


@pytest.mark.parametrize("step", ["carry", "drop"])
def test_what_an_earlier_version_has_left_in_transit_is_finished(
    step: str, broker: Broker, orders: bide.Queue
) -> None:
    """Its entries name no outbox, which is that of the library and the queue, and no target."""
    fill_rq(broker)
    for number, id in enumerate(IDS):
        broker.client.lrem("rq:queue:default", 1, id)
        row = f"1780000000000.{number}"
        entry = ((b"rq:queue:default", "list", False), id.encode(), 0.0, row)
        broker.client.hset("bide:import:rq:default", row, msgspec.msgpack.encode(entry))
    done = Counter[str]()
    if step == "drop":
        rows = [f"1780000000000.{number}" for number in range(len(IDS))]
        outbox = "import.5315f7916d84f20664cbfdac34c8abdc92c5327e"
        items = [Item(id, b"1") for id in IDS]
        execute(orders, Put("orders", items, origin=Origin(outbox, rows)))
        work(orders, done)
    assert bide.take_over(orders, "rq", broker.store_url, batch=2).finished == len(IDS)
    work(orders, done)
    assert done == Counter(IDS)
    assert broker.client.keys("bide:*") == []


@pytest.mark.parametrize("step", ["take", "carry", "drop"])
@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_is_interrupted_finishes_its_batch(
    after: bool, step: str, broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_rq(broker)
    real = getattr(Transit, step)
    interrupts = iter([False, True])

    def interrupted(self: Transit, *args: Any) -> Any:
        interrupt = next(interrupts, False)
        if interrupt and not after:
            raise KeyboardInterrupt
        reply = real(self, *args)
        if interrupt:
            raise KeyboardInterrupt
        return reply

    monkeypatch.setattr(Transit, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bide.take_over(orders, "rq", broker.store_url, batch=2)
    assert broker.client.keys("bide:*") == []
    taken = IDS[:2] if (step, after) == ("take", False) else IDS[:4]
    assert [message.id for message in orders.claim(9)] == taken
    pending = [id.encode() for id in IDS[len(taken) :]]
    assert broker.client.lrange("rq:queue:default", 0, -1) == pending
