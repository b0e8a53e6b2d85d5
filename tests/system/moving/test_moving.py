"""What comes over, what stays, also what cannot be read, and what a move says of it."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
import redis

import bide
from bide import NewMessage
from bide.engines.postgres.settings import read_url
from bide.exports import to_line
from bide.model.commands import Command, Configure, History, Purge, Put
from bide.model.message import KEPT_FAILURES, MAX_ATTEMPTS, UNREADABLE, Failure, Item
from bide.model.replies import Ends, Reply
from bide.moving import Mover
from bide.moving.steps import MOVING
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing.clock import FakeClock
from bide.testing.hooks import execute, lane_of
from tests.start import START
from tests.system.moving.two_stores import Killed, Stores
from tests.system.server.conftest import running

FIELDS = (
    "id",
    "data",
    "json",
    "due",
    "priority",
    "attempt",
    "attempts",
    "state",
    "expires",
    "group",
    "headers",
    "failures",
    "ended",
)


def seen(queue: bide.Queue) -> dict[str, dict[str, Any]]:
    return {m.id: {name: getattr(m, name) for name in FIELDS} for m in queue.scan()}


def balanced(*queues: bide.Queue) -> bool:
    return all(queue.audit() for queue in queues)


@pytest.fixture
def full(old: bide.Queue, clock: FakeClock) -> bide.Queue:
    """A queue with messages of every kind."""
    old.put({"a": [1, "Grüße"]}, id="json", delay=60, priority=7, group="g")
    old.put(b"\x00\xff", id="bytes", expires="1h", headers={"h": "v"}, attempts=1)
    old.put("late", id="late", expires="1ms", delay=1)
    old.put("dead", id="dead", attempts=5)
    old.put("tried", id="tried", attempts=5)
    by_id = {delivery.id: delivery for delivery in old.claim(4)}
    by_id["dead"].bury("broken")
    by_id["tried"].retry("10s", "no luck")
    by_id["bytes"].release()
    return old


def test_everything_comes_over_as_it_was(full: bide.Queue, new: bide.Queue) -> None:
    before = seen(full)
    moved = bide.move(full, new)
    assert seen(new) == before
    assert list(full.scan()) == []
    assert (moved.moved, moved.dead, moved.left, bool(moved)) == (4, 1, 0, True)
    assert balanced(full, new)


def test_the_counters_say_what_happened(full: bide.Queue, new: bide.Queue) -> None:
    bide.move(full, new)
    there, here = full.counts().flow, new.counts().flow
    assert (there.put, there.moved, there.purged, there.cancelled) == (5, 5, 0, 0)
    assert (here.put, here.moved) == (5, 0)
    assert (there.died, here.died) == (1, 0)  # that a message is set aside is no failure
    assert new.counts().sizes.total == 5


def test_who_waits_for_a_result_hears_of_no_death(
    stores: Stores, old: bide.Queue, new: bide.Queue
) -> None:
    for queue in (old, new):
        queue.configure(history="1d", result_ttl="1d")
    old.put(1, id="a", delay=60)
    told: list[Reply] = []
    for store in ("old", "new"):
        stores.engines[store].after = lambda commands, store=store: told.append(  # type: ignore[misc]
            stores.ask(store, History("orders", "a"))
        )
    bide.move(old, new)
    assert {reply.state for reply in told if isinstance(reply, Ends)} == {"delayed", None}
    with pytest.raises(bide.NotAcked, match="a was moved"):
        old.result("a")
    assert ([end.how for end in old.history("a")], new.history("a")) == (["moved"], [])


def test_a_due_message_is_claimable_in_the_target(old: bide.Queue, new: bide.Queue) -> None:
    old.put(1, id="a")
    bide.move(old, new)
    (delivery,) = new.claim()
    assert (delivery.id, delivery.attempt) == ("a", 1)
    delivery.ack()
    assert balanced(old, new)


def test_an_empty_queue_is_moved_at_once(old: bide.Queue, new: bide.Queue) -> None:
    moved = bide.move(old, new)
    assert (moved.moved, bool(moved)) == (0, True)


def test_many_batches_and_another_name(stores: Stores, old: bide.Queue) -> None:
    old.put_many([NewMessage(body=n, id=f"m{n:04}", delay=n % 7) for n in range(230)])
    target = stores.queue("new", "invoices")
    assert bide.move(old, target, batch=50).moved == 230
    assert sorted(m.body for m in target.scan()) == list(range(230))


def test_what_somebody_holds_stays(old: bide.Queue, new: bide.Queue) -> None:
    old.put(1, id="held")
    (delivery,) = old.claim(lease="1h")
    old.put(2, id="free")
    moved = bide.move(old, new)
    assert (moved.moved, moved.held, moved.left, bool(moved)) == (1, 1, 1, False)
    delivery.retry(0, "later")
    assert bide.move(old, new)
    held = new.get("held")
    assert held is not None
    assert (held.attempt, held.error) == (1, "later")


def test_what_a_worker_was_asked_to_stop_stays_until_it_has_ended(
    old: bide.Queue, new: bide.Queue
) -> None:
    old.put(1, id="held")
    (delivery,) = old.claim(lease="1h")
    delivery.report(1)
    assert old.cancel("held", running=True).state == "stopping"
    moved = bide.move(old, new)
    assert (moved.moved, moved.held, moved.left, bool(moved)) == (0, 1, 1, False)
    delivery.release()
    assert bide.move(old, new)
    assert new.get("held") is None
    assert balanced(old, new)


def test_a_lapsed_lease_comes_over_with_its_failure(
    old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    old.put(1, id="a")
    old.claim(lease=1)
    clock.advance(2)
    old.claim()[0].release()
    assert bide.move(old, new)
    found = new.get("a")
    assert found is not None
    assert found.attempt == 1
    assert "lapsed" in (found.error or "")


@pytest.mark.parametrize("state", ["delayed", "ready", "leased", "dead", "acked"])
def test_an_id_that_the_target_has_is_left_alone(
    old: bide.Queue, new: bide.Queue, state: str
) -> None:
    execute(new, Configure(new.name, keep=3_600_000))
    new.put("theirs", id="a", delay=60 if state == "delayed" else 0)
    if state in ("leased", "dead", "acked"):
        (delivery,) = new.claim(lease="1h")
        if state != "leased":
            delivery.bury("no") if state == "dead" else delivery.ack()
    before = seen(new)
    old.put("mine", id="a")
    old.put("mine", id="b")
    moved = bide.move(old, new)
    assert (moved.moved, moved.known, moved.known_ids, moved.left) == (1, 1, ["a"], 1)
    assert {id: message for id, message in seen(new).items() if id != "b"} == before
    mine = old.get("a")
    assert mine is not None
    assert (mine.state, mine.body) == ("ready", "mine")
    assert bide.move(old, new).known == 1
    assert balanced(old, new)


def test_dead_letters_of_the_same_id(old: bide.Queue, new: bide.Queue) -> None:
    letter = Item("a", b"1", at=5, died=START - 9, failures=(Failure(1, 2, "w", "no"),))
    other = Item("b", b"1", at=5, died=START - 9)
    execute(old, Put(old.name, [letter, other]))
    execute(new, Put(new.name, [letter, Item("b", b"2", at=5, died=START - 9)]))
    moved = bide.move(old, new)
    assert (moved.dead, moved.known_ids) == (1, ["b"])
    assert [m.id for m in old.scan()] == ["b"]
    assert balanced(old, new)


def test_the_last_failures_come_over(old: bide.Queue, new: bide.Queue) -> None:
    failures = tuple(Failure(n + 1, n, "w", f"no {n}") for n in range(KEPT_FAILURES))
    execute(old, Put(old.name, [Item("a", b"1", failures=failures, attempt=20, attempts=50)]))
    bide.move(old, new)
    found = new.get("a")
    assert found is not None
    assert found.failures == failures[1:]  # the mark of the move takes the place of one


def test_a_paused_queue_is_moved_and_a_new_target_is_paused(
    old: bide.Queue, new: bide.Queue
) -> None:
    old.put(1, id="a")
    old.pause()
    assert bide.move(old, new)
    assert new.counts().paused
    assert new.claim() == []


def test_a_pause_that_ends_by_itself_does_so_in_the_target(
    old: bide.Queue, new: bide.Queue
) -> None:
    old.put(1, id="a")
    until = old.pause(lasting="1h").paused_until
    assert bide.move(old, new)
    assert new.counts().paused_until == until


def test_a_target_in_use_is_not_paused(old: bide.Queue, new: bide.Queue) -> None:
    new.put(0, delay=5)
    old.put(1, id="a")
    old.pause()
    assert bide.move(old, new)
    assert not new.counts().paused


def test_how_long_acked_ids_are_kept_comes_over(
    stores: Stores, old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    keeping = bide.Queue("orders", stores.url("old"), clock=clock, keep="1d")
    keeping.put(1, id="done")
    keeping.claim()[0].ack()
    keeping.put(2, id="a")
    moved = bide.move(keeping, new)
    assert (moved.moved, moved.remembered, bool(moved)) == (1, 1, True)
    assert new.counts().keep == 86_400_000


def test_limits_come_over_unless_the_target_has_its_own(
    stores: Stores, old: bide.Queue, new: bide.Queue
) -> None:
    old.configure(limit=3, group_rate="5/s")
    old.put_many([1, 2, 3, 4], group="a")
    bide.move(old, new)
    assert (new.counts().limit, new.counts().group_rate) == (3, 200_000)
    assert len(new.claim(4)) == 1
    assert new.audit()
    new.configure(limit=9, group_rate=0)
    old.put(5)
    bide.move(old, new)
    assert (new.counts().limit, new.counts().group_rate) == (9, 0)


def test_a_waiting_claim_on_the_target_is_woken(stores: Stores, old: bide.Queue) -> None:
    old.put(1, id="a")
    replies: list[int] = []
    lane = lane_of(stores.queue("new"))
    lane.listen(lambda queue, wake: replies.append(wake))
    bide.move(old, stores.queue("new"))
    assert START in replies


def test_looking_moves_nothing(full: bide.Queue, new: bide.Queue) -> None:
    new.put(1, id="json")
    before = seen(full), seen(new)
    plan = Mover(full, new).plan()
    assert (plan.moved, plan.dead, plan.known, plan.left) == (3, 1, 1, 1)
    assert (seen(full), seen(new)) == before
    assert new.counts().flow.put == 1


def test_looking_counts_a_lease_that_is_over_as_a_run_moves_it(
    old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    old.put_many(range(6))
    old.claim(2, lease=1)
    clock.advance(1)
    old.claim(1, lease="1h")
    old.claim(2, lease=1)
    clock.advance(1)
    plan = Mover(old, new).plan()
    assert (plan.moved, plan.held, plan.left, plan.known) == (5, 1, 1, 0)
    moved = bide.move(old, new)
    assert (moved.moved, moved.held, moved.left) == (5, 1, 1)


def test_looking_counts_what_the_end_of_a_lease_makes_of_a_message(
    old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    new.put(1, id="known")
    old.put(1, id="known")
    old.put(1, id="stopped")
    old.put(1, id="worn out", attempts=1)
    old.put(1, id="day by day", attempts=1, repeat=bide.Every("1d"))
    clock.advance("1d")
    assert len(old.claim(9, lease=1)) == 4
    assert old.cancel("stopped", running=True).state == "stopping"
    clock.advance(1)
    plan = Mover(old, new).plan()
    moved = bide.move(old, new)
    for each in (plan, moved):  # one that repeats does not die
        assert (each.moved, each.dead, each.known, each.held, each.left) == (1, 1, 1, 0, 1)


def test_what_was_put_off_expires_when_it_would_have(
    stores: Stores, old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    def die(commands: Sequence[Command]) -> None:
        """Die when the target has a copy."""
        if any(isinstance(command, Purge) for command in commands):
            raise Killed

    old.put(1, id="a", expires="1h")
    old.retry(old.claim(), delay="30m")
    stores.engines["old"].before = die
    with pytest.raises(Killed):
        bide.move(old, new)
    stores.engines["old"].before = lambda commands: None
    copy = new.get("a")
    assert copy is not None
    line = msgspec.json.decode(to_line(copy))
    clock.advance(16)
    assert bide.move(old, new).finished == 1
    message = new.get("a")
    assert message is not None
    assert message.expires == line["expires"] == 30 * 60 * 1000


def test_looking_knows_what_an_earlier_run_left_in_transit(
    old: bide.Queue, new: bide.Queue
) -> None:
    for queue in (old, new):  # its copy waits there already
        queue.put("x", id="x")
        queue.claim(1)[0].bury(f"{MOVING}token")
    plan = Mover(old, new).plan()
    assert (plan.moved, plan.finished, plan.dead, plan.known, plan.left) == (1, 1, 0, 0, 0)


def test_what_is_put_while_a_run_ends_is_not_taken_for_what_stays(
    old: bide.Queue, new: bide.Queue
) -> None:
    old.put(1, id="a")

    def put(count: int) -> None:
        if old.get("b") is None and new.get("b") is None:
            old.put(2, id="b")

    mover = Mover(old, new, progress=put)
    while mover.has_work():
        mover.run()
    assert [message.id for message in new.scan()] == ["a", "b"]
    assert not mover.has_work()


def test_there_is_work_again_after_a_put(old: bide.Queue, new: bide.Queue) -> None:
    mover = Mover(old, new)
    mover.run()
    assert not mover.has_work()
    old.put(1)
    assert mover.has_work()
    assert mover.run().moved == 1
    assert not mover.has_work()


def test_progress_is_told(old: bide.Queue, new: bide.Queue) -> None:
    old.put_many([NewMessage(body=n, id=f"m{n}") for n in range(25)])
    told: list[int] = []
    Mover(old, new, batch=10, progress=told.append).run()
    assert told == [10, 10, 5]


def test_the_ledgers_are_empty_at_the_end(stores: Stores, old: bide.Queue, new: bide.Queue) -> None:
    old.put(1)
    bide.move(old, new)
    for store in ("old", "new"):
        assert list(stores.queue(store, "bide:move").scan()) == []


def test_a_queue_is_not_moved_onto_itself(stores: Stores, old: bide.Queue) -> None:
    with pytest.raises(bide.InvalidArgument, match="is the source and the target"):
        bide.move(old, stores.queue("old"))


@pytest.mark.parametrize("other", ["path", "server"])
def test_a_queue_is_not_moved_onto_itself_by_another_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    app = ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db"))
    with running(app) as port, bide.Queue("orders", "sqlite:///bide.db") as orders:
        url = f"sqlite:///{tmp_path}/bide.db" if other == "path" else f"http://127.0.0.1:{port}"
        orders.put(1, id="alive", delay="1h")
        orders.put(2, id="dead")
        orders.bury(orders.claim(), "no such customer")
        before = list(orders.scan())
        with bide.Queue("orders", url) as same, pytest.raises(bide.InvalidArgument) as caught:
            bide.move(orders, same)
        assert "orders at sqlite:///bide.db is the source and the target" in str(caught.value)
        assert list(orders.scan()) == before
        with bide.Queue("others", url) as others:  # another queue of the same store is no problem
            assert bide.move(orders, others).dead == 1
        with bide.Queue("bide:move", url) as ledger:
            assert list(ledger.scan()) == []


@pytest.mark.parametrize("batch", [0, -1, 10_001, 1.5, True])
def test_a_batch_has_a_size(old: bide.Queue, new: bide.Queue, batch: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match="batch="):
        bide.move(old, new, batch=batch)


def test_two_movers_at_a_time_are_one_too_many(
    stores: Stores, old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    clock.autojump = True
    ledgers = stores.queue("old", "bide:move")
    ledgers.put({"token": "t", "queue": "x", "into": "x", "to": "u"}, id="ledger")
    old.put(1, id="a")
    claimed = ledgers.claim(lease="1h", count=1)
    assert claimed
    with pytest.raises(bide.AlreadyMoving, match="another process moves messages out of"):
        bide.move(old, new)
    assert [m.id for m in old.scan()] == ["a"]


def test_a_killed_move_is_finished_before_one_to_another_store(
    stores: Stores, old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    def die(commands: Sequence[Command]) -> None:
        """Die when the source has deleted the message, and the target does not deliver it yet."""
        if any(
            isinstance(command, Put) and command.on_conflict == "revive" for command in commands
        ):
            raise Killed

    old.put(1, id="a")
    stores.engines["new"].before = die
    with pytest.raises(Killed):
        bide.move(old, new)
    assert (old.get("a"), where(new)) == (None, {"a": "dead"})
    stores.engines["new"].before = lambda commands: None
    clock.advance(16)
    renamed = stores.queue("old", "jobs2")  # whose store has the ledger
    with bide.Queue("orders", f"memory://third-{id(stores)}", clock=clock) as third:
        for source, target in ((old, third), (stores.queue("old", "jobs"), renamed)):
            with pytest.raises(bide.AlreadyMoving, match="finish it first, by the same move again"):
                bide.move(source, target)
        assert bide.move(old, new).finished == 1
        assert where(new) == {"a": "ready"}
        old.put(2, id="b")
        assert bide.move(old, third).moved == 1


def test_a_killed_move_of_a_version_without_notes_is_finished_first(
    stores: Stores, old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    token = "0" * 26
    route = {"token": token, "queue": "orders", "into": "orders", "to": new.url}
    stores.queue("old", "bide:move").put(route, id="ledger", attempts=MAX_ATTEMPTS)
    stores.queue("new", "bide:move").put({"queue": "orders"}, id=token, delay="9000d")
    old.put(1, id="a")
    old.bury(old.claim(), f"in transit by bide move {token}")
    with (
        bide.Queue("orders", f"memory://third-{id(stores)}", clock=clock) as third,
        pytest.raises(bide.AlreadyMoving, match="finish it first, by the same move again"),
    ):
        bide.move(old, third)
    assert bide.move(old, new).finished == 1
    assert where(new) == {"a": "ready"}
    for store in ("old", "new"):
        assert list(stores.queue(store, "bide:move").scan()) == []


def test_a_move_to_a_lost_store_is_given_up(
    stores: Stores, old: bide.Queue, new: bide.Queue, clock: FakeClock
) -> None:
    def die(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Put) and command.queue == "orders" for command in commands):
            raise Killed

    old.put(1, id="a")
    stores.engines["new"].before = die
    with pytest.raises(Killed):
        bide.move(old, new)
    clock.advance(16)
    with bide.Queue("orders", f"memory://third-{id(stores)}", clock=clock) as third:
        with pytest.raises(bide.AlreadyMoving, match="bide cancel bide:move ledger"):
            bide.move(old, third)
        ledgers = stores.queue("old", "bide:move")
        assert ledgers.cancel("ledger")
        assert all(old.revive(ids=["a"]))
        assert bide.move(old, third).moved == 1
        assert list(ledgers.scan()) == []


DAMAGED = ["ready-0", "ready-4", "ready-8", "delayed-5", "dead-1"]


def damage_file(url: str, ids: list[str]) -> None:
    with closing(sqlite3.connect(urlsplit(url).path.removeprefix("/"))) as connection:
        for id in ids:
            connection.execute("UPDATE bide_message SET failures = '{}' WHERE id = ?", (id,))
        connection.commit()


def damage_redis(url: str, ids: list[str]) -> None:
    with closing(redis.Redis.from_url(url)) as client:
        client.hset("bide:{orders#0}:records", mapping=dict.fromkeys(ids, b"something else"))


def damage_postgres(url: str, ids: list[str]) -> None:
    settings = read_url(urlsplit(url))
    with psycopg.connect(settings.url) as connection:
        text = f"UPDATE \"{settings.schema}\".message SET headers = '[1]' WHERE id = ANY(%s)"
        connection.execute(text.encode(), (ids,))


def where(queue: bide.Queue) -> dict[str, str]:
    return {message.id: message.state for message in queue.scan()}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"sqlite:///{tmp_path / 'new.db'}") as queue:
        yield queue


def fill(queue: bide.Queue) -> None:
    for name, delay in (("ready", 0), ("delayed", 3600)):
        queue.put_many([bide.NewMessage(body=n, id=f"{name}-{n}", delay=delay) for n in range(9)])
    for number in range(3):
        queue.put(number, id=f"dead-{number}", priority=9)
        (delivery,) = queue.claim(1)
        delivery.bury("no")


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_what_the_source_cannot_change_stays_and_is_named(
    kind: str, redis_url: Callable[[], str], tmp_path: Path, target: bide.Queue
) -> None:
    url = redis_url() if kind == "redis" else f"sqlite:///{tmp_path / 'old.db'}"
    with bide.Queue("orders", url) as old:
        fill(old)
        all_of_them = where(old)
        (damage_redis if kind == "redis" else damage_file)(url, DAMAGED)
        for _ in range(2):  # the second finds the same, and leaves no copy in the target
            moved = bide.move(old, target, batch=7)
            stay = set(moved.unreadable_ids)
            assert stay >= {id for id in DAMAGED if id != "dead-1"}
            assert (moved.unreadable, moved.left, bool(moved)) == (len(stay), len(stay), False)
            assert set(where(old)) == stay
            come = {id: state for id, state in where(target).items() if id not in DAMAGED}
            assert come == {id: all_of_them[id] for id in all_of_them if id not in DAMAGED}
            assert not stay & set(where(target))
        assert moved.moved + moved.dead == 0
        dead = target.get("dead-1")
        assert (dead is None) == ("dead-1" in stay)
        assert dead is None or dead.error == UNREADABLE


def test_what_postgres_cannot_read_comes_as_a_dead_letter(
    postgres_url: Callable[[], str], target: bide.Queue
) -> None:
    url = postgres_url()
    with bide.Queue("orders", url) as old:
        fill(old)
        all_of_them = where(old)
        damage_postgres(url, DAMAGED)
        moved = bide.move(old, target)
        assert (moved.unreadable, moved.left, bool(moved)) == (0, 0, True)
        assert where(old) == {}
        assert where(target) == all_of_them | dict.fromkeys(DAMAGED, "dead")
        for id in DAMAGED:
            letter = target.get(id)
            assert letter is not None
            assert letter.error == UNREADABLE
            assert b"[1]" in letter.data


def test_closed_groups_are_closed_in_the_target_and_cancel_what_comes_there() -> None:
    with bide.Queue("q", "memory://closed1") as old, bide.Queue("q", "memory://closed2") as new:
        old.put(1, id="a", delay="1h", group="g")
        old.put(1, id="b", delay="1h")
        closed = old.close_group("h", keep="1d")
        new.close_group("g", keep="1d")
        new.put(1, id="c", delay="1h", group="h")
        moved = bide.move(old, new)
        assert (moved.moved, moved.left) == (2, 0)
        assert [message.id for message in new.scan()] == ["b"]
        assert new.counts().flow.cancelled == 2
        groups = {group.group: group.until_at for group in new.closed_groups()}
        assert groups.keys() == {"g", "h"}
        assert abs((groups["h"] - closed.until).total_seconds()) < 60
        assert old.audit()
        assert new.audit()
