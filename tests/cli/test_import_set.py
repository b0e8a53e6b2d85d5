import json
from collections.abc import Callable, Iterator

import pytest
import redis

import bide
from tests.cli.conftest import Bide, Terminal
from tests.servers import RedisServer


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
    line = "bad: its score -7 is no time in Unix seconds"
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
    assert "bad: its score -7 is no time in Unix seconds" in screen
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
