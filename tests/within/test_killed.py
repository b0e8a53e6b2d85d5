"""A process that is killed leaves an order and its message, or neither of them."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import bide
from tests.within.libraries import file_of, libpq

KILLS = 4

PSYCOPG = """
import os, signal, sys
import bide, psycopg
url, place, point = sys.argv[1:4]
orders = bide.Queue("orders", url)
shop = psycopg.connect(place)
def die(where):
    if where == point:
        os.kill(os.getpid(), signal.SIGKILL)
for number in range(3):
    id = f"order-{os.getpid()}-{number}"
    shop.execute("INSERT INTO bill VALUES (%s)", (id,))
    assert orders.put(number, id=id, delay=60, within=shop)
    if number == 2:
        die("before the commit")
        shop.pgconn.send_query(b"COMMIT")
        while shop.pgconn.flush():
            pass
        die("before the answer")
    shop.commit()
"""

SQLITE = """
import sys
import bide, sqlite3
orders = bide.Queue("orders", sys.argv[1])
shop = sqlite3.connect(sys.argv[2])
number = 0
while True:
    number += 1
    id = f"order-{sys.argv[3]}-{number}"
    shop.execute("INSERT INTO bill VALUES (?)", (id,))
    assert orders.put(number, id=id, delay=60, within=shop)
    shop.commit()
    print(id, flush=True)
"""


def messages(orders: bide.Queue) -> set[str]:
    return {message.id for message in orders.scan()}


@pytest.mark.process
@pytest.mark.parametrize("point", ["before the commit", "before the answer"])
def test_killed_on_postgresql(postgres_url: Callable[[], str], point: str) -> None:
    url = postgres_url()
    with bide.Queue("orders", url) as orders, psycopg.connect(libpq(url)) as shop:
        assert orders.counts().flow.put == 0
        shop.execute("CREATE TABLE bill (id text)")
        shop.commit()
        done = subprocess.run(
            [sys.executable, "-c", PSYCOPG, url, libpq(url), point],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        # The server notices that its client is gone, and commits what it had been told to.
        shop.execute("LOCK TABLE bill")
        bills = {id for (id,) in shop.execute("SELECT id FROM bill")}
        assert bills == messages(orders)
        assert len(bills) >= 2
        shop.execute("DROP TABLE bill")
        shop.commit()
        assert orders.audit()


@pytest.mark.process
def test_killed_on_sqlite(tmp_path: Path, url_of: Callable[[str], str]) -> None:
    url = url_of("sqlite")
    confirmed: set[str] = set()
    with bide.Queue("orders", url) as orders:
        assert orders.counts().flow.put == 0

        shop = sqlite3.connect(file_of(url))
        shop.execute("CREATE TABLE bill (id text)")
        for number in range(KILLS):
            process = subprocess.Popen(
                [sys.executable, "-c", SQLITE, url, file_of(url), str(number)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            for _ in range(random.randrange(1, 30)):
                confirmed.add(process.stdout.readline().strip())
            os.kill(process.pid, signal.SIGKILL)
            confirmed |= {line.strip() for line in process.stdout if line.endswith("\n")}
            process.wait()
            process.stdout.close()
        bills = {id for (id,) in shop.execute("SELECT id FROM bill")}
        shop.close()
        assert confirmed <= bills
        assert bills == messages(orders)
        assert orders.audit()
