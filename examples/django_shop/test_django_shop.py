"""The tests of the shop on both databases, and the shop with a real worker."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.postgres_server import PostgresServer, new_folder, until

PROJECT = Path(__file__).parent
BOUND = 300.0

Manage = Callable[..., str]


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    """Run `manage.py` with arguments; return what it printed."""

    def run(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *arguments],
            cwd=PROJECT,
            env={**os.environ, "SHOP_FOLDER": str(tmp_path), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BOUND,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_its_tests_pass_on_sqlite(manage: Manage) -> None:
    assert "Ran 4 tests" in manage("test", "--noinput")
    assert "No changes" in manage("makemigrations", "--check")


@pytest.mark.full
def test_it_works_on_postgresql_with_a_worker(manage: Manage, tmp_path: Path) -> None:
    with new_folder() as folder:
        server = PostgresServer(folder)
        try:
            play(server, manage, tmp_path)
        finally:
            server.stop()


def play(server: PostgresServer, manage: Manage, folder: Path) -> None:
    environment = {
        "POSTGRES_HOST": str(server.folder),
        "POSTGRES_DB": "postgres",
        "POSTGRES_USER": "bide",
        "SHOP_FOLDER": str(folder),
    }
    assert "Ran 4 tests" in manage("test", "--noinput", **environment)
    environment["PAY_SECONDS"] = "1"
    manage("migrate", "-v0", **environment)
    manage("shell", "-v0", "-c", PLAY, **environment)
    worker = subprocess.Popen(
        [sys.executable, "-W", "error", "manage.py", "bide", "worker", "--no-reload"],
        cwd=PROJECT,
        env={**os.environ, **environment},
    )
    try:
        with psycopg.connect(server.url, autocommit=True) as client:
            until(client, "SELECT count(*) FROM shop_order WHERE state = 'unpaid'", [(0,)])
            states = client.execute("SELECT state FROM shop_order ORDER BY id").fetchall()
            stock = client.execute("SELECT stock FROM shop_article").fetchone()
    finally:
        worker.terminate()
        assert worker.wait(BOUND) == 0
    assert states == [("cancelled",), ("paid",), ("cancelled",)]
    assert stock == (2,)


PLAY = """
from django.conf import settings
from django.test import Client
from shop.models import Article

settings.ALLOWED_HOSTS = ["testserver"]
Article.objects.create(name="teapot", stock=3)
client = Client()
for _ in range(3):
    response = client.post("/orders", {"article": "teapot"})
    assert response.status_code == 201, response.content
number = response.json()["order"] - 1
response = client.post(f"/orders/{number}/paid")
assert response.json() == {"state": "paid"}, response.content
"""
