"""Serve an ASGI application with uvicorn, as a program does, and ask it over HTTP."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn

BOUND = 60.0


class Answer(NamedTuple):
    status: int
    body: Any


class Site:
    """An application that is served.

    Args:
        port: on which it listens.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=BOUND) as reply:
                return Answer(reply.status, json.load(reply))
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            try:
                return Answer(error.code, json.loads(text))
            except ValueError:
                return Answer(error.code, text.decode())


@contextmanager
def serving(asgi: Any) -> Iterator[Site]:
    """Serve an application from a thread of this process; its lifespan ends with the block."""
    config = uvicorn.Config(asgi, port=0, log_config=None, ws="none", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started, "the application has not started"
        yield Site(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(BOUND)
    assert not thread.is_alive(), "the application does not stop"


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
