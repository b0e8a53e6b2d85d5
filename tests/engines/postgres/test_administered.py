"""What administrators do to a server under a running process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines import losses
from bide.engines.postgres import from_url
from bide.model import commands as cmd
from bide.model.errors import StoreUnavailable
from bide.model.message import Item
from tests.postgres_server import PostgresServer, new_folder


@pytest.fixture
def dropped(
    postgres: PostgresServer,
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Provide the URL of a store, and what drops its schema."""
    with postgres.client() as client:

        def drop() -> None:
            client.execute("DROP SCHEMA IF EXISTS dropped CASCADE")

        drop()
        yield f"{postgres.url}&schema=dropped", drop
        drop()


@pytest.mark.parametrize(
    "action",
    [
        lambda queue: queue.put(2, id="b"),
        lambda queue: queue.put_many([bide.NewMessage(2, id="b"), bide.NewMessage(3)]),
        lambda queue: queue.claim(),
        lambda queue: queue.cancel("a"),
        lambda queue: queue.get("a"),
    ],
)
def test_a_process_goes_on_after_its_schema_was_dropped(
    dropped: tuple[str, Callable[[], None]], action: Callable[[bide.Queue], Any]
) -> None:
    url, drop = dropped
    with bide.Queue("gone", url) as queue:
        for _ in range(2):
            queue.put(1, id="a", delay=60)
            action(queue)
        drop()
        action(queue)
        assert queue.put(4, id="after").done
        assert queue.audit()


def test_a_schema_that_was_dropped_is_a_loss(
    dropped: tuple[str, Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    url, drop = dropped
    heard: list[bool] = []
    with bide.Queue("dropped", url) as queue, losses.listening(lambda: heard.append(True)):
        queue.put(1, id="a")
        drop()
        with bide.Queue("other", url) as other:  # makes the schema anew, and has lost nothing
            other.put(1)
        queue.put(2, id="b")
        queue.put(3, id="c")
    assert heard == [True]
    assert losses.counted()["dropped"] == 1
    assert "other" not in losses.counted()
    assert "queue dropped: the store has lost at least 1" in caplog.text


@pytest.fixture
def guarded() -> Iterator[PostgresServer]:
    """Provide a server with few connections, where the user app has a password."""
    with new_folder() as folder:
        server = PostgresServer(folder, max_connections="12")
        with server.client() as client:
            client.execute("CREATE ROLE app LOGIN PASSWORD 'old'")
            client.execute("GRANT CREATE ON DATABASE postgres TO app")
        rules = server.data / "pg_hba.conf"
        rules.write_text("local all app scram-sha-256\n" + rules.read_text())
        server.stop("fast")
        server.start()
        yield server
        server.stop()


def test_a_password_that_was_changed_is_not_tried_again_and_again(guarded: PostgresServer) -> None:
    url = guarded.url.replace("bide@", "app:old@") + "&reconnect=60s"
    engine = from_url(urlsplit(url))()
    with closing(engine), guarded.client() as client:
        client.execute("ALTER ROLE app PASSWORD 'new'")
        client.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'app'"
        )
        with pytest.raises(StoreUnavailable, match="refused the password"):
            engine.execute([cmd.Put("q", [Item("a", b"1")])])
        log = (guarded.folder / "log").read_text()
        assert log.count("password authentication failed") == 1
        client.execute("ALTER ROLE app PASSWORD 'old'")
        engine.execute([cmd.Put("q", [Item("a", b"1")])])


def test_a_server_without_a_connection_for_this_user_says_so(guarded: PostgresServer) -> None:
    url = guarded.url.replace("bide@", "app:old@")
    with ExitStack() as taken:
        with suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(psycopg.connect(url))
        with pytest.raises(StoreUnavailable, match="takes no more connections") as caught:
            from_url(urlsplit(url))()
        assert "reserved for roles" in str(caught.value)
    with guarded.client() as client:
        client.execute("ALTER ROLE app CONNECTION LIMIT 0")
    with pytest.raises(StoreUnavailable, match="takes no more connections"):
        from_url(urlsplit(url))()


def test_a_standby_without_its_primary_is_no_matter_of_the_address(
    postgres_url: Callable[[], str],
) -> None:
    url = postgres_url()
    with closing(from_url(urlsplit(url))()):
        read_only = f"{url}&options=-cdefault_transaction_read_only%3Don"
        with pytest.raises(StoreUnavailable, match="no standby is promoted") as caught:
            from_url(urlsplit(f"{read_only}&target_session_attrs=read-write"))()
    assert "firewall" not in str(caught.value)


def test_a_connection_that_was_ended_takes_one_line_of_the_log(
    postgres: PostgresServer, postgres_url: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    with bide.Queue("q", f"{postgres_url()}&application_name=ended") as queue:
        queue.put(1)
        assert len(queue.claim(wait=60)) == 1  # it listens from now on
        with postgres.client() as client:
            client.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE application_name = 'ended'"
            )
        queue.put(2)
        for _ in range(600):
            if "listens for puts was lost" in caplog.text:
                break
            queue.claim(wait=0.1)
    assert "listens for puts was lost" in caplog.text
    assert not any("\n" in message for message in caplog.messages)
