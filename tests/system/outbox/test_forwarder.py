"""The forwarder: once each, in the order of the commits, whatever dies."""

import itertools
import select
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from redis import Redis

import bide
from bide.lane.lane import Lane
from bide.model.commands import Command
from bide.model.limits import MAX_BYTES
from bide.model.replies import Reply
from bide.outbox.forwarder import Forwarder, table_of
from bide.outbox.rows import Table
from bide.outbox.sqlite import SqliteTable
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing.hooks import lane_of
from tests.descriptors import low_ones_taken
from tests.effort import one_in
from tests.system.outbox.shop import connected, forward, rows
from tests.system.server.conftest import running

BOUND = 60.0
"""Seconds that a test waits for what is sure to come."""


def test_what_happens_to_one_message_happens_in_its_order(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    for number in range(5):
        assert orders.put(number, id="a", delay=60, within=shop).state == "pending"
        assert orders.cancel("a", within=shop).state == "pending"
    assert orders.put("last", id="a", delay=60, within=shop).state == "pending"
    shop.commit()
    forward(orders, url)
    (message,) = orders.scan()
    assert message.body == "last"
    assert orders.counts().flow.cancelled == 5
    assert rows(shop, "bide_outbox_dead") == []


def test_a_spread_is_a_time_of_the_id(orders: bide.Queue, url: str, shop: Any) -> None:
    pending = orders.put(1, id="user-1", at=4_000_000_000, spread="15m", within=shop)
    shop.commit()
    forward(orders, url)
    (message,) = orders.scan()
    assert message.due == pending.due == 4_000_000_698_765


def test_what_the_store_refuses_is_set_aside_and_blocks_nothing(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    orders.put(0, id="there", delay=60)
    assert orders.put(1, id="there", within=shop).state == "pending"
    assert orders.cancel("nowhere", within=shop).state == "pending"
    assert orders.put(2, id="new", within=shop).state == "pending"
    shop.commit()
    forward(orders, url)
    assert {message.id: message.body for message in orders.scan()} == {"there": 0, "new": 2}
    dead = rows(shop, "bide_outbox_dead", "queue, id, reason")
    assert [(queue, id) for queue, id, _ in dead] == [("orders", "there"), ("orders", "nowhere")]
    assert dead[0][2].startswith("there was not stored: it is delayed, due")
    assert dead[1][2] == "nowhere was not cancelled: it is not in the queue"
    assert rows(shop) == []


def test_a_put_into_a_closed_group_is_done_with(orders: bide.Queue, url: str, shop: Any) -> None:
    assert orders.put(1, id="a", group="order:42", within=shop).state == "pending"
    with pytest.raises(bide.InvalidArgument, match="the store is in the same database"):
        orders.close_group("order:42", within=shop)
    shop.commit()
    orders.close_group("order:42")
    forward(orders, url)
    assert orders.get("a") is None
    assert rows(shop) == []
    assert rows(shop, "bide_outbox_dead") == []


def test_what_is_refused_begins_no_transaction(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", "http://127.0.0.1:9") as orders,
        closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
    ):
        with pytest.raises(bide.InvalidArgument, match="cancelled by its id"):
            orders.cancel(group="order:42", within=shop)
        assert not shop.in_transaction


def test_a_cancel_of_what_runs_reaches_its_worker(url: str, shop: Any, tmp_path: Path) -> None:
    server = ServerApp(Settings(store=f"sqlite:///{tmp_path}/store.db"))
    with running(server) as port, bide.Queue("orders", f"http://127.0.0.1:{port}") as orders:
        orders.put(1, id="a")
        [delivery] = orders.claim()
        assert orders.cancel("a", running=True, within=shop).state == "pending"
        shop.commit()
        forward(orders, url)
        assert rows(shop, "bide_outbox_dead") == []
        with pytest.raises(bide.StopRequested):
            delivery.extend()
        delivery.release()
        assert orders.counts().flow.cancelled == 1
        with pytest.raises(bide.InvalidArgument, match="cancelled by its id"):
            orders.cancel(group="g", running=True, within=shop)


def test_a_batch_is_bounded_in_bytes_too(orders: bide.Queue, url: str, shop: Any) -> None:
    for size in (3, 4, 9, 1):  # MB; a row has its body in base64
        big = bide.Queue("orders", orders.url, max_body=10_000_000)
        assert big.put("x" * (size * 700_000), id=str(size), within=shop).state == "pending"
        big.close()
    shop.commit()
    with closing(table_of(url)) as table:
        forwarder = Forwarder(lambda: table_of(url), lane_of(orders))
        assert [forwarder.forward(table) for _ in range(3)] == [3, 1, 0]
    assert rows(shop, "bide_outbox_dead") == []
    assert orders.counts().flow.put == 4


def test_a_row_that_says_nothing_is_set_aside(orders: bide.Queue, url: str, shop: Any) -> None:
    for id in ("a", "b", "c"):
        orders.put(1, id=id, within=shop)
    shop.execute("UPDATE bide_outbox SET command = 'garbage' WHERE id = 'b'")
    shop.commit()
    forward(orders, url)
    assert sorted(message.id for message in orders.scan()) == ["a", "c"]
    ((reason,),) = rows(shop, "bide_outbox_dead", "reason")
    assert reason.startswith("this is not a command that bide knows")


def test_a_store_that_is_away_is_waited_for(url: str, shop: Any, orders: bide.Queue) -> None:
    with bide.Queue("orders", "redis://localhost:1?timeout=0.1s") as away:
        assert away.put(1, id="a", within=shop).state == "pending"
        shop.commit()
        with pytest.raises(bide.StoreUnavailable):
            Forwarder(lambda: table_of(url), lane_of(away)).run_once()
    assert rows(shop) == [("a",)]
    forward(orders, url)
    assert [message.id for message in orders.scan()] == ["a"]


def test_one_forwards_and_when_it_stops_another_goes_on(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    first = Forwarder(lambda: table_of(url), lane_of(orders))
    with closing(table_of(url)) as table, table.lead() as leads:
        assert leads
        assert first.run_once() is False
    running = threading.Thread(target=first.run)
    running.start()
    assert orders.put(1, within=shop).state == "pending"
    shop.commit()
    (delivery,) = orders.claim(wait=BOUND)
    delivery.ack()
    first.stop()
    running.join(BOUND)
    assert not running.is_alive()
    assert orders.put(2, within=shop).state == "pending"
    shop.commit()
    forward(orders, url)
    assert [message.body for message in orders.scan()] == [2]


def test_a_running_forwarder_hears_of_a_commit(
    orders: bide.Queue, url: str, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bide.outbox import forwarder as module

    monkeypatch.setattr(module, "POLL", 10 * BOUND)  # it does not look by itself
    forwarder = Forwarder(lambda: table_of(url), lane_of(orders))
    running = threading.Thread(target=forwarder.run)
    running.start()
    try:
        for number in range(30):
            assert orders.put(number, within=shop).state == "pending"
            shop.commit()
            (delivery,) = orders.claim(wait=BOUND)
            assert delivery.body == number
            delivery.ack()
    finally:
        forwarder.stop()
        running.join(BOUND)


def test_two_transactions_of_one_message_have_an_order(orders: bide.Queue, database: str) -> None:
    """The second waits for the commit of the first, so that numbers are in commit order."""
    table_of(database).close()
    with connected(database) as first, connected(database) as second:
        assert orders.put(1, id="a", delay=60, within=first).state == "pending"

        def later() -> None:
            assert orders.cancel("a", within=second).state == "pending"
            second.commit()

        cancelling = threading.Thread(target=later)
        cancelling.start()
        assert (
            orders.put(2, id="other", delay=60, within=first).state == "pending"
        )  # nobody else waits
        cancelling.join(0.05)
        assert cancelling.is_alive()
        first.commit()
        cancelling.join(BOUND)
        forward(orders, database)
    assert [message.id for message in orders.scan()] == ["other"]


def test_transactions_of_a_queue_with_settings_do_not_wait(database: str) -> None:
    table_of(database).close()
    with (
        bide.Queue("kept", "redis://localhost:1", keep="1d") as kept,
        connected(database) as first,
        connected(database) as second,
    ):
        second.execute("SET lock_timeout = '10s'")
        assert kept.put(1, within=first).state == "pending"
        assert kept.put(2, within=second).state == "pending"
        second.commit()
        assert rows(second, columns="command::json ->> 'command'") == [("configure",), ("put",)]


def test_no_outbox_in_the_database(orders: bide.Queue, database: str) -> None:
    with connected(database) as shop:
        with pytest.raises(bide.WrongConnection, match="bide forward creates it"):
            orders.put(1, within=shop)


def test_a_user_without_rights(orders: bide.Queue, database: str) -> None:
    table_of(database).close()
    with connected(database) as owner:
        owner.execute("CREATE ROLE app LOGIN")
        owner.commit()
        try:
            with connected(database.replace("bide@", "app@")) as app:
                with pytest.raises(bide.AccessDenied, match="GRANT INSERT ON bide_outbox"):
                    orders.put(1, within=app)
                app.rollback()
                owner.execute("GRANT INSERT ON bide_outbox TO app")
                owner.commit()
                assert orders.put(1, within=app).state == "pending"
                app.commit()
        finally:
            owner.execute("DROP OWNED BY app; DROP ROLE app")
            owner.commit()
    forward(orders, database)
    assert orders.counts().flow.put == 1


def test_what_the_queue_keeps_goes_along(redis_url: Any, url: str, shop: Any) -> None:
    with bide.Queue("kept", redis_url(), keep="1d") as kept:
        for number in range(3):
            assert kept.put(number, within=shop).state == "pending"
        shop.commit()
        with closing(table_of(url)) as table:
            forwarder = Forwarder(lambda: table_of(url), lane_of(kept))
            assert forwarder.forward(table) == 6  # in one batch
        assert kept.counts().keep == 86_400_000
        assert kept.counts().flow.put == 3


def test_what_cannot_wait(orders: bide.Queue, url: str, shop: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match="latest= does not go through an outbox"):
        orders.put(1, id="a", on_conflict="replace", delay=5, latest=9, within=shop)
    with pytest.raises(bide.InvalidArgument, match="cancelled by its id"):
        orders.cancel(group="g", within=shop)


def test_the_database_goes_away_and_comes_back(
    orders: bide.Queue, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    forwarder = Forwarder(lambda: table_of(database), lane_of(orders))
    running = threading.Thread(target=forwarder.run)
    table_of(database).close()
    running.start()
    try:
        with connected(database) as shop:
            for number in range(2):
                assert orders.put(number, within=shop).state == "pending"
                shop.commit()
                (delivery,) = orders.claim(wait=BOUND)
                delivery.ack()
                shop.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'bide forward'"
                )
                shop.commit()
    finally:
        forwarder.stop()
        running.join(BOUND)
        assert not running.is_alive()


def test_a_wait_in_a_process_with_many_open_files_ends(url: str) -> None:
    with low_ones_taken(), closing(table_of(url)) as table:
        table.wake()
        table.wait(BOUND)


def test_a_wake_after_the_end_writes_to_no_other_file(database: str) -> None:
    table = table_of(database)
    table.close()
    with ExitStack() as stack:
        sockets = [  # which have the numbers that the table had
            stack.enter_context(end) for _ in range(10) for end in socket.socketpair()
        ]
        table.wake()
        assert select.select(sockets, [], [], 0)[0] == []


def test_a_database_that_cannot_be_opened_is_named(database: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database of any kind")
    nowhere = urlsplit(database)._replace(path="/nowhere").geturl()
    for url in (nowhere, f"sqlite:///{tmp_path}/no/shop.db", f"sqlite:///{tmp_path}/text"):
        with pytest.raises(bide.StoreUnavailable, match="as the database of an outbox"):
            table_of(url)


def test_a_database_that_refuses_is_left(database: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database of any kind")
    read_only = "options=-c%20default_transaction_read_only%3Don"
    refused = []
    for url in (f"sqlite:///{text}", f"{database}{'&' if '?' in database else '?'}{read_only}"):
        open_before = _open_files()
        with pytest.raises(bide.StoreUnavailable) as error:
            table_of(url)
        refused.append(error)  # its traceback keeps what was not closed
        assert _open_files() <= open_before


def _open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    return {str(file.readlink()) for file in folder.iterdir() if file.is_symlink()}


def test_a_new_file_is_told(file: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        table_of(file).close()
    [warning] = caplog.messages
    assert "shop.db is a new and empty database" in warning


def test_a_batch_of_large_rows_reads_no_row_behind_it(file: str) -> None:
    table = table_of(file)
    assert isinstance(table, SqliteTable)
    with closing(table):
        for size in (MAX_BYTES, *[1] * 400):
            table.run(
                "INSERT INTO bide_outbox (queue, id, command) VALUES ('q', 'a', ?)", ("x" * size,)
            )
        steps: list[None] = []
        table.connection.set_progress_handler(lambda: steps.append(None), 100)
        assert len(table.read(500)) == 1
        assert len(steps) < 10  # of 100 instructions


class Killed(BaseException):
    """Stands for the end of the process, at this step."""


class Mortal:
    """The outbox and the store of a forwarder that dies at its n-th step."""

    def __init__(self, table: Table, lane: Lane, steps: int) -> None:
        self.table = table
        self.lane = lane
        self.left = steps

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def call(self, command: Command) -> Reply:
        self._step()
        reply = self.lane.call(command)
        self._step()
        return reply

    async def acall(self, command: Command) -> Reply:
        self._step()
        reply = await self.lane.acall(command)
        self._step()
        return reply

    def delete(self, numbers: Sequence[int]) -> None:
        self._step()
        self.table.delete(numbers)
        self._step()

    def bury(self, number: int, reason: str) -> None:
        self._step()
        self.table.bury(number, reason)
        self._step()


def forward_and_die(orders: bide.Queue, url: str, steps: int) -> bool:
    """Forward a batch, and die after so many steps; tell whether it was done before."""
    with closing(table_of(url)) as table:
        mortal: Any = Mortal(table, lane_of(orders), steps)
        try:
            Forwarder(lambda: table, mortal).forward(mortal)
        except Killed:
            return False
        return True


@pytest.fixture(params=["redis", "http"])
def store(
    request: pytest.FixtureRequest, redis_url: Callable[[], str], tmp_path: Path
) -> Iterator[str]:
    if request.param == "redis":
        yield redis_url()
    else:
        with running(ServerApp(Settings(store=f"sqlite:///{tmp_path}/store.db"))) as port:
            yield f"http://127.0.0.1:{port}"


def acked(orders: bide.Queue) -> None:
    for delivery in orders.claim(10):
        delivery.ack()


def cancelled(orders: bide.Queue) -> None:
    orders.cancel("m1")
    orders.cancel("m2")


def cancelled_and_put_again(orders: bide.Queue) -> None:
    if orders.cancel("m1"):
        orders.put("again", id="m1", delay=60)


def rescheduled(orders: bide.Queue) -> None:
    orders.reschedule("m0", delay=60)


def replaced(orders: bide.Queue) -> None:
    if orders.get("m0") is not None:
        orders.put("new", id="m0", on_conflict="replace", delay=60)


def moved(orders: bide.Queue) -> None:
    with bide.Queue(f"{orders.name}-moved", orders.url) as other:
        bide.move(orders, other)


MEANWHILE = {
    "acked-keep": acked,
    "acked-replace": acked,
    "cancelled-replace": cancelled,
    "cancelled_and_put_again-keep": cancelled_and_put_again,
    "rescheduled-replace": rescheduled,
    "replaced-replace": replaced,
    "moved-keep": moved,
}


@pytest.mark.parametrize("meanwhile", one_in(2, MEANWHILE))
def test_a_forwarder_that_dies_at_any_step_neither_loses_nor_doubles(
    store: str, url: str, shop: Any, meanwhile: str
) -> None:
    change = MEANWHILE[meanwhile]
    conflict: Any = meanwhile.rpartition("-")[2]
    for steps in itertools.count():
        with bide.Queue(f"q{steps}", store) as orders:
            for number in range(3):
                assert (
                    orders.put(number, id=f"m{number}", on_conflict=conflict, within=shop).state
                    == "pending"
                )
            shop.commit()
            done = forward_and_die(orders, url, steps)
            put = orders.counts().flow.put
            assert put in (0, 3)
            change(orders)
            before = orders.counts().flow, sorted(orders.scan(), key=attrgetter("id"))
            forward(orders, url)
            after = orders.counts().flow, sorted(orders.scan(), key=attrgetter("id"))
            assert rows(shop) == rows(shop, "bide_outbox_dead") == []
            if put:
                assert after == before
            else:
                assert [message.body for message in after[1]] == [0, 1, 2]
            assert orders.audit()
        if done:
            break
    assert steps == 4  # before and after the put and the deletion


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_row_that_was_executed_leaves_a_later_message_alone(
    store: str, url: str, shop: Any, verb: str
) -> None:
    for steps in itertools.count():
        with bide.Queue(f"q{steps}", store) as orders:
            orders.put("first", id="a", delay=60)
            if verb == "cancel":
                assert orders.cancel("a", within=shop).state == "pending"
            else:
                assert orders.reschedule("a", delay=120, within=shop).state == "pending"
            shop.commit()
            done = forward_and_die(orders, url, steps)
            if steps in (0, 1):  # the store has not heard of it, or has, but nobody knows
                assert len(rows(shop)) == 1
            orders.cancel("a")
            orders.put("second", id="a", delay=60)
            before = orders.get("a")
            forward(orders, url)
            if steps:
                assert orders.get("a") == before
            elif verb == "cancel":
                assert orders.get("a") is None
            else:
                assert orders.get("a") != before
            assert rows(shop) == rows(shop, "bide_outbox_dead") == []
        if done:
            break
    assert steps == 4


def test_several_queues_and_commands_in_a_batch(store: str, url: str, shop: Any) -> None:
    for steps in itertools.count():
        with (
            bide.Queue(f"q{steps}", store) as orders,
            bide.Queue(f"mails{steps}", store) as mails,
        ):
            orders.put(0, id="old", delay=60)
            for number in range(2):
                assert orders.put(number, id=f"m{number}", within=shop).state == "pending"
                assert (
                    mails.put(number, id=f"m{number}", on_conflict="replace", within=shop).state
                    == "pending"
                )
            assert orders.cancel("old", within=shop).state == "pending"
            assert orders.cancel("nowhere", within=shop).state == "pending"
            shop.commit()
            done = forward_and_die(orders, url, steps)
            acked(orders)
            acked(mails)
            forward(orders, url)
            acked(orders)
            acked(mails)
            for queue, put in ((orders, 3), (mails, 2)):
                assert queue.counts().flow.put == put
                assert queue.counts().flow.acked == 2
            assert orders.counts().flow.cancelled == 1
            assert rows(shop, "bide_outbox_dead") == [("nowhere",)] * (steps + 1)
        if done:
            break
    assert steps > 8


def test_a_row_is_forwarded_whose_number_was_used_before(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    """As after the database was restored from a backup."""
    orders.put("first", id="a", within=shop)
    shop.commit()
    assert not forward_and_die(orders, url, 2)
    shop.execute("UPDATE bide_outbox SET id = 'b', command = replace(command, '\"a\"', '\"b\"')")
    shop.commit()
    forward(orders, url)
    assert sorted(message.id for message in orders.scan()) == ["a", "b"]


def test_the_store_forgets_rows_that_were_deleted(orders: bide.Queue, url: str, shop: Any) -> None:
    client = Redis(
        unix_socket_path=urlsplit(orders.url).path,
        db=int(parse_qs(urlsplit(orders.url).query)["db"][0]),
    )
    with closing(client):
        for number in range(3):
            assert orders.put_many([number] * 4, within=shop)
            shop.commit()
            forward(orders, url)
            assert client.zcard("bide:{orders#0}:forwarded") == 4


def test_a_small_number_that_is_committed_late(orders: bide.Queue, database: str) -> None:
    table_of(database).close()
    with connected(database) as late, connected(database) as shop:
        orders.put("late", id="late", within=late)
        for number in range(3):
            orders.put(number, id=f"m{number}", within=shop)
            shop.commit()
            assert not forward_and_die(orders, database, 2)  # the row is still there
        late.commit()
        acked(orders)
        assert not forward_and_die(orders, database, 2)
        acked(orders)
        forward(orders, database)
        assert orders.counts().flow.put == 4
