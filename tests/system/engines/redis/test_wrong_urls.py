"""Places that are no store, or not for this user: each is told what it is, and what to write."""

import logging
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import Claim
from bide.model.errors import InvalidArgument, StoreUnavailable
from tests.servers import PATIENCE, RedisServer
from tests.system.engines.redis.conftest import Open

Start = Callable[..., RedisServer]
HOUR = 3_600_000


@pytest.fixture
def greeter() -> Iterator[int]:
    """A port where somebody says hello who is no Redis."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    with near:
                        near.sendall(b"SSH-2.0-hello\r\n")
                        near.recv(1)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("form", ["redis://{}", "redis+cluster://{}", "redis+sentinel://{}/m"])
def test_a_port_where_nobody_speaks_redis(open_engine: Open, greeter: int, form: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"what answers there is not a Redis server.*port"):
        open_engine(form.format(f"127.0.0.1:{greeter}"))


def test_a_database_that_there_is_not(open_engine: Open, redis_server: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match=r"change the URL.*DB index is out of range"):
        open_engine(f"{redis_server.url}?db=64")


def test_a_password_that_is_not_asked_for(open_engine: Open, redis_server: RedisServer) -> None:
    with pytest.raises(
        StoreUnavailable, match=r"needs none.*without any password configured"
    ) as raised:
        open_engine(f"unix://:s3cret@{redis_server.path}")
    assert "s3cret" not in str(raised.value)


def test_a_user_who_may_not_wake_others(open_engine: Open, start: Start) -> None:
    """He is told at once, not in the middle of a put for which somebody waits."""
    server = start()
    admin: Any = server.client()
    admin.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~bide:*", "+@all")
    with pytest.raises(StoreUnavailable, match="its ACL needs what bide's documentation lists"):
        open_engine(f"unix://app:pw@{server.path}")


def test_a_user_who_may_not_be_woken(
    start: Start, open_engine: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    admin: Any = server.client()
    admin.execute_command(
        "ACL", "SETUSER", "app", "on", ">pw", "~bide:*", "&bide:*", "+@all", "-subscribe"
    )
    lane = Lane(opener(f"unix://app:pw@{server.path}"))
    with caplog.at_level(logging.WARNING, "bide"):
        for _ in range(2):
            lane.call(Claim("q", 1, HOUR, "w"), wait=0.01)
    told = [r.getMessage() for r in caplog.records if "cannot listen" in r.getMessage()]
    assert len(told) == 1
    assert "its ACL needs what bide's documentation lists" in told[0]
    assert "'subscribe'" in told[0]
    lane.close()


def test_closing_does_not_wait_long_for_a_silent_server(open_engine: Open, start: Start) -> None:
    server = start()
    engine = open_engine(f"{server.url}?timeout=1h")
    engine.notifier()
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_several_servers_that_are_neither_a_cluster_nor_a_group() -> None:
    with pytest.raises(InvalidArgument, match=r"one server; write redis\+cluster://"):
        opener("redis://a:6379,b:6379")


@pytest.mark.parametrize("form", ["redis+unix", "unix"])
def test_the_url_of_a_socket_is_shown_as_it_was_written(open_engine: Open, form: str) -> None:
    with pytest.raises(
        StoreUnavailable, match=rf"^{re.escape(form)}:///no/such/socket\?timeout=1s:"
    ):
        open_engine(f"{form}:///no/such/socket?timeout=1s")
