"""What the source cannot read stays there, or comes as a dead letter; the others are moved."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

import bide
from bide.engines.postgres.settings import read_url
from bide.model.message import UNREADABLE

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
def new(tmp_path: Path) -> Iterator[bide.Queue]:
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
    kind: str, redis_url: Callable[[], str], tmp_path: Path, new: bide.Queue
) -> None:
    url = redis_url() if kind == "redis" else f"sqlite:///{tmp_path / 'old.db'}"
    with bide.Queue("orders", url) as old:
        fill(old)
        all_of_them = where(old)
        (damage_redis if kind == "redis" else damage_file)(url, DAMAGED)
        for _ in range(2):  # the second finds the same, and leaves no copy in the target
            moved = bide.move(old, new, batch=7)
            stay = set(moved.unreadable_ids)
            assert stay >= {id for id in DAMAGED if id != "dead-1"}
            assert (moved.unreadable, moved.left, bool(moved)) == (len(stay), len(stay), False)
            assert set(where(old)) == stay
            come = {id: state for id, state in where(new).items() if id not in DAMAGED}
            assert come == {id: all_of_them[id] for id in all_of_them if id not in DAMAGED}
            assert not stay & set(where(new))
        assert moved.moved + moved.dead == 0
        dead = new.get("dead-1")
        assert (dead is None) == ("dead-1" in stay)
        assert dead is None or dead.error == UNREADABLE


def test_what_postgres_cannot_read_comes_as_a_dead_letter(
    postgres_url: Callable[[], str], new: bide.Queue
) -> None:
    url = postgres_url()
    with bide.Queue("orders", url) as old:
        fill(old)
        all_of_them = where(old)
        damage_postgres(url, DAMAGED)
        moved = bide.move(old, new)
        assert (moved.unreadable, moved.left, bool(moved)) == (0, 0, True)
        assert where(old) == {}
        assert where(new) == all_of_them | dict.fromkeys(DAMAGED, "dead")
        for id in DAMAGED:
            letter = new.get(id)
            assert letter is not None
            assert letter.error == UNREADABLE
            assert b"[1]" in letter.data
