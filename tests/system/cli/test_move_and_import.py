"""bide move and bide import: other stores, and the pending messages of other libraries."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
import rq

import bide
from bide.server.access.tokens import KEY_ID, KEYS_QUEUE
from tests.servers import RedisServer
from tests.system.cli.conftest import BOUND, Bide, Terminal, environment
from tests.system.contrib.celery.conftest import Broker


def ids(url: str) -> list[str]:
    with bide.Queue("orders", url) as orders:
        return sorted(message.id for message in orders.scan())


def test_move_moves_all_queues(run: Bide, url: str, orders: bide.Queue, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/new.db"
    orders.put(1, id="a", delay=60)
    with bide.Queue("mails", url) as mails:
        mails.put(2, id="b")
    result = run("move", url, target, "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert [(line["queue"], line["moved"], line["left"]) for line in lines] == [
        ("mails", 1, 0),
        ("orders", 1, 0),
    ]
    assert (ids(url), ids(target)) == ([], ["a"])
    again = run("move", url, target, "--json")
    assert (again.exit_code, json.loads(again.output.splitlines()[0])["moved"]) == (0, 0)


def test_move_takes_along_what_sources_and_servers_keep(
    run: Bide, url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put(1, delay=60)
    theirs = "bide.server/tokens", "bide:source:orders:unpaid"
    of_processes = "bide.server/pushers", "bide:recovery", "bide:stops", "bide:workers"
    for name in theirs + of_processes:
        with bide.Queue(name, url) as queue:
            queue.put(1, delay=60)
    target = f"sqlite:///{tmp_path}/new.db"
    for _ in range(2):  # the first leaves its ledger in both stores
        lines = run("move", url, target, "--json").output.splitlines()
        assert [json.loads(line)["queue"] for line in lines] == [*theirs, "orders"]
    for store in (url, target):
        assert run("queues", "--url", store).output.split("\t")[0] == "orders"
        assert "bide:move" in run("queues", "--url", store, "--all").output


def test_each_store_keeps_the_key_of_its_own_leases(
    run: Bide, url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    """Servers on both stores may have made one already, and leases stay where they are."""
    orders.put(1, delay=60)
    target = f"sqlite:///{tmp_path}/new.db"
    for number, store in enumerate((url, target)):
        with bide.Queue(KEYS_QUEUE, store) as keys:
            keys.put(number, id=KEY_ID, delay="1d")
    result = run("move", url, target, "--json")
    assert [json.loads(line)["queue"] for line in result.output.splitlines()] == ["orders"]
    assert result.exit_code == 0


def test_what_stays_is_told_and_is_exit_code_1(
    terminal: Terminal, url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path}/new.db"
    orders.put(1, id="held")
    assert orders.claim(lease="1h")
    orders.put(2, id="twice", delay=60)
    orders.put(3, id="free", delay=60)
    with bide.Queue("orders", target) as new:
        new.put(9, id="twice")
    screen, code = terminal("move", url, target, "orders")
    assert code == 1
    assert "1 message moved" in screen
    assert "1 message not moved, held by a worker" in screen
    assert "1 message not moved, the target has the same id: twice" in screen


def test_messages_that_cannot_be_read_are_named_and_are_exit_code_1(
    terminal: Terminal, run: Bide, url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put_many([bide.NewMessage(body=n, id=f"order-{n}", delay=60) for n in range(6)])
    with closing(sqlite3.connect(tmp_path / "test.db")) as connection:
        connection.execute("UPDATE bide_message SET failures = '{}' WHERE id <> 'order-3'")
        connection.commit()
    target = f"sqlite:///{tmp_path}/new.db"
    result = run("move", url, target, "orders")
    assert result.exit_code == 1
    assert "moved\t1\n" in result.stdout
    assert "unreadable\t5\n" in result.stdout
    screen, _ = terminal("move", url, target, "orders", COLUMNS="200")
    assert (
        "5 messages not moved, the records cannot be read: order-0, order-1, order-2, ..." in screen
    )
    told = json.loads(run("move", url, target, "orders", "--json").stdout)
    assert told["unreadable_ids"] == [f"order-{n}" for n in (0, 1, 2, 4, 5)]
    assert ids(target) == ["order-3"]


def test_a_dry_run_makes_and_moves_nothing(
    run: Bide, url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put(1, id="a")
    target = tmp_path / "new.db"
    result = run("move", url, f"sqlite:///{target}", "--dry-run", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["moved"] == 1
    result = run("move", url, f"sqlite:///{target}", "--dry-run")
    assert result.output.startswith("queue\torders\nwould-move\t1\nwould-move-dead\t0\n")
    assert not target.exists()
    with bide.Queue("orders", f"sqlite:///{target}") as new:
        new.put(1, id="a")
    result = run("move", url, f"sqlite:///{target}", "--dry-run", "--json")
    told = json.loads(result.output)
    assert (result.exit_code, told["moved"], told["known_ids"]) == (1, 0, ["a"])
    assert ids(url) == ["a"]


def test_a_source_that_is_not_there(run: Bide, tmp_path: Path) -> None:
    result = run("move", f"sqlite:///{tmp_path}/no.db", f"sqlite:///{tmp_path}/new.db")
    assert result.exit_code == 3
    assert "there is no store at" in result.output
    assert not (tmp_path / "new.db").exists()


def test_memory_cannot_be_moved_from_a_shell(run: Bide, url: str, orders: bide.Queue) -> None:
    orders.put(1)
    result = run("move", url, "memory://")
    assert result.exit_code == 2
    assert "memory:// exists only while this command runs" in result.output
    assert "; call bide.move in the process that has the store" in result.output


def test_follow_and_dry_run_do_not_go_together(run: Bide, url: str) -> None:
    assert run("move", url, url + "2", "--follow", "--dry-run").exit_code == 2


def test_follow_moves_what_comes_until_it_is_interrupted(
    url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path}/new.db"
    orders.put(1, id="a")
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "move", url, target, "--follow", "--json"],
        env=environment(url),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        for id in ("b", "c"):
            deadline = time.monotonic() + BOUND
            while ids(url):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            orders.put(1, id=id)
        while ids(url):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=BOUND)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert json.loads(output)["moved"] == 3
    assert ids(target) == ["a", "b", "c"]


def test_a_move_that_is_told_to_end_says_so_by_its_exit_code(
    url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put_many(range(20_000))
    target = f"sqlite:///{tmp_path}/new.db"
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "move", url, target, "--batch", "1"],
        env=environment(url),
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + BOUND
    while orders.counts().sizes.total == 20_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    assert process.communicate(timeout=BOUND)[1] == b""
    assert process.returncode == 143


def test_to_follow_until_the_first_run_is_interrupted_tells_what_is_left(
    url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put_many(range(20_000))
    target = f"sqlite:///{tmp_path}/new.db"
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "move", url, target, "--follow", "--batch", "1", "--json"],
        env=environment(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + BOUND
        while orders.counts().sizes.total == 20_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        output, errors = process.communicate(timeout=BOUND)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, errors
    assert json.loads(output)["left"] == orders.counts().sizes.total > 0


def test_the_help_explains_every_word_of_the_output(
    run: Bide, url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put(1)
    told = run("move", url, f"sqlite:///{tmp_path}/new.db").output.splitlines()
    words = [line.partition("\t")[0] for line in told]
    explained = run("move", "--help").output
    assert words[0] == "queue"
    for word in words[1:]:
        assert f"\n    {word} " in explained
    assert '"purged"' in run("purge", "--help").output


@pytest.fixture
def broker(redis_url: Callable[[], str]) -> Broker:
    broker = Broker(redis_url())
    queue = rq.Queue("mails", connection=broker.client, serializer="json")
    for order in range(2):
        queue.enqueue("shop.tell", order, job_id=f"tell-{order}")
    rq.Queue("mails", connection=broker.client).enqueue("shop.tell", 3)
    broker.client.close()
    return broker


def test_messages_move_and_the_exit_code_tells_of_those_that_stay(
    run: Bide, broker: Broker, orders: bide.Queue
) -> None:
    command = ("import", "orders", broker.store_url, "--from", "rq", "--source-queue", "mails")
    dry = run(*command, "--dry-run")
    assert dry.exit_code == 1
    assert "would-store\t2\n" in dry.stdout
    assert orders.counts().sizes.total == 0

    done = run(*command)
    assert done.exit_code == 1
    assert done.stdout == (
        "stored\t2\nfinished\t0\nwaiting\t0\nexpired\t0\npickled\t1\nrefused\t0\nheld\t0\n"
    )
    assert "1 pickled message left; to move them, too: --allow-pickle" in done.stderr
    assert [one.id for one in orders.claim(9)] == ["tell-0", "tell-1"]

    rest = run(*command, "--allow-pickle", "--json")
    assert rest.exit_code == 0
    facts = json.loads(rest.stdout)
    assert (facts["stored"], facts["pickled"], facts["reasons"]) == (1, 0, {})

    last = run(*command)
    assert last.exit_code == 0
    assert "expired" not in last.stderr
    assert "nothing is pending in the queue 'mails' of rq; --source-queue names" in last.stderr


def test_messages_without_a_due_time_that_stay_are_shown(
    terminal: Terminal, broker: Broker, orders: bide.Queue
) -> None:
    screen, code = terminal(
        "import",
        "orders",
        broker.store_url,
        "--from",
        "rq",
        "--source-queue",
        "mails",
        "--allow-pickle",
        "--delayed-only",
    )
    assert "left in rq: 3 messages without a due time (--delayed-only)" in screen
    assert code == 0


def test_an_import_that_is_told_to_end_finishes_and_says_so_by_its_exit_code(
    run: Bide, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_to_end(*args: object, **options: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("bide.cli.queues.import_.take_over", told_to_end)
    assert run("import", "orders", "redis://cache", "--from", "rq").exit_code == 143


def test_expired_messages_are_told_and_leave_nothing_to_do(run: Bide, broker: Broker) -> None:
    for order in range(2):
        broker.client.expireat(f"rq:job:tell-{order}", 1)
    command = ("import", "orders", broker.store_url, "--from", "rq", "--source-queue", "mails")
    done = run(*command, "--allow-pickle")
    assert done.exit_code == 0
    assert "stored\t1\n" in done.stdout
    assert "expired\t2\n" in done.stdout
    assert "2 messages expired in rq and left; its workers would not run them" in done.stderr
    assert "nothing is pending" not in run(*command).stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("import", "q", "--from", "rq"), "--from needs the URL of its Redis in place of FILE"),
        (
            ("import", "q", "redis://x", "--from", "rq", "--redis-zset", "k"),
            "--from and --redis-zset cannot be used together",
        ),
        (("import", "q", "redis://x", "--from", "rq", "--remove"), "--remove needs --redis-zset"),
        (("import", "q", "redis://x", "--allow-pickle"), "--allow-pickle needs --from"),
        (("import", "q", "--dry-run"), "--dry-run needs --from or --redis-zset"),
        (("import", "q", "redis://x", "--from", "sidekiq"), "'sidekiq' is not one of"),
        (
            ("import", "q", "redis://x", "--from", "bullmq"),
            "bullmq has no default queue; name it with --source-queue",
        ),
    ],
)
def test_wrong_usage(run: Bide, arguments: tuple[str, ...], hint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split())


@pytest.fixture
def source(redis_url: Callable[[], str]) -> str:
    return redis_url()


@pytest.fixture
def theirs(redis_server: RedisServer, source: str) -> Iterator["redis.Redis"]:
    with redis_server.client(db=int(source.rpartition("=")[2])) as client:
        client.zadd("delayed", {"order-41": 1_900_000_000, '{"order": 42}': 1_900_000_000_500})
        yield client


def test_a_sorted_set_is_taken_over(
    run: Bide, source: str, theirs: "redis.Redis", orders: bide.Queue
) -> None:
    result = run("import", "orders", source, "--redis-zset", "delayed", "--remove", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == {
        "stored": 2,
        "kept": 0,
        "rescheduled": 0,
        "removed": 2,
        "refused": 0,
        "left": 0,
        "reasons": {},
        "dry_run": False,
    }
    found = {message.due: message.body for message in orders.scan()}
    assert found == {1_900_000_000_000: "order-41", 1_900_000_000_500: {"order": 42}}
    assert not theirs.exists("delayed")


def test_a_dry_run_makes_no_store_and_says_what_would_be(
    run: Bide, source: str, theirs: "redis.Redis", tmp_path: object
) -> None:
    theirs.zadd("delayed", {"bad": -7})
    result = run("import", "new", source, "--redis-zset", "delayed", "--dry-run", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["stored"], told["refused"], told["left"]) == (1, 2, 1, 3)
    line = "bad: its score -7 is not a time in Unix seconds"
    assert result.stderr.startswith(line)
    result = run("import", "new", source, "--redis-zset", "delayed", "--dry-run")
    assert result.stdout.startswith("would-store\t2\nkept\t0\nwould-reschedule\t0\n")
    assert "refused\t1\n" in result.stdout
    assert result.stderr.startswith(line)
    assert theirs.zcard("delayed") == 3
    assert "there is no store" in run("counts", "new").output


def test_what_stays_and_why_is_shown(
    terminal: Terminal, source: str, theirs: "redis.Redis", orders: bide.Queue
) -> None:
    theirs.zadd("delayed", {"bad": -7})
    screen, code = terminal("import", "orders", source, "--redis-zset", "delayed", "--remove")
    assert code == 1
    assert "2 new messages imported into orders" in screen
    assert "2 members removed from delayed" in screen
    assert "bad: its score -7 is not a time in Unix seconds" in screen
    screen, code = terminal("import", "orders", source, "--redis-zset", "dealyed")
    assert code == 1
    assert "is the key right?" in screen


def test_a_key_that_is_a_slip_of_the_pen_is_told_in_a_pipe(
    run: Bide, source: str, theirs: "redis.Redis"
) -> None:
    result = run("import", "orders", source, "--redis-zset", "dealyed")
    assert result.exit_code == 1
    assert result.stderr == ("there is no member, or no set dealyed at all: is the key right?\n")
    assert theirs.zcard("delayed") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--redis-zset", "delayed"), "needs the URL of its Redis in place of FILE"),
        (("redis://h:1/0",), "name it with --redis-zset KEY"),
        (("--remove",), "--remove needs --redis-zset"),
        (("no-such-file",), "No such file"),
        (
            ("sqlite:///x.db", "--redis-zset", "delayed"),
            "'sqlite:///x.db' is no Redis: redis://",
        ),
        (("dump.rdb", "--redis-zset", "delayed"), "'dump.rdb' is no Redis: redis://"),
        (
            ("http://me:s3@h/", "--redis-zset", "delayed"),
            "'http://me:***@h/' is no Redis",
        ),
    ],
)
def test_what_is_wrong_is_told(run: Bide, arguments: tuple[str, ...], says: str) -> None:
    result = run("import", "orders", *arguments)
    assert result.exit_code == 2
    assert says in result.output
