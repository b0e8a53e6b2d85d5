"""A connection that gives up a silent server, and is never used after an interrupt."""

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.conninfo import conninfo_to_dict

R = TypeVar("R")

CONNECT_TIMEOUT = 10
"""Seconds for which each address is tried, unless the URL or PGCONNECT_TIMEOUT says otherwise:
libpq itself waits forever for a server that accepts a connection and is silent."""

TIMEOUT = 30.0
"""Seconds for which a server may be silent while an answer is due."""

LONG = 20
"""How many times as long as others a statement may take that reads all of a queue, or changes the
schema."""

SECONDS_BETWEEN_LOOKS = 0.1
"""Seconds between two looks at the time: a server that answers is noticed at once."""


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself if the server is silent for too long, or a wait is interrupted.

    The answer may come later: nobody may read it as that of another statement.
    """

    timeout: float = TIMEOUT
    """Seconds for which the server may be silent."""

    @classmethod
    def open(cls, url: str, timeout: float, *, name: str, **options: Any) -> "BoundedConnection":
        """Connect to a server, in autocommit mode.

        Args:
            url: as libpq takes it.
            timeout: seconds for which the server may be silent.
            name: of the application, unless the URL has one.
            options: of libpq.

        Raises:
            psycopg.Error: the server cannot be reached.
        """
        connection = cls.connect(
            url,
            autocommit=True,
            prepare_threshold=None,
            fallback_application_name=name,
            connect_timeout=connect_timeout(url),
            client_encoding="UTF8",
            **options,
        )
        connection.timeout = timeout
        return connection

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for what a generator does with the connection; psycopg calls this.

        Args:
            gen: yields what it waits for, and is sent what is ready; it returns the result.
            args: as of psycopg.
            kwargs: as of psycopg.
        """
        interval = min(SECONDS_BETWEEN_LOOKS, self.timeout)
        try:
            return waiting.wait(self._bounded(gen), self.pgconn.socket, interval)
        except psycopg.Error:
            raise
        except BaseException:  # an interrupt: the answer may still come
            self.close()
            raise

    def _bounded(self, gen: Generator[Any, Any, R]) -> Generator[Any, Any, R]:
        """Do as a generator does, until it has waited in vain for too long.

        What is ready is falsy where only the time between two looks has passed.
        """
        last_heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    last_heard = time.monotonic()
                elif time.monotonic() - last_heard >= self.timeout:
                    raise self.silent()
                wanted = gen.send(ready)
        except StopIteration as end:
            result: R = end.value
            return result

    def silent(self) -> psycopg.OperationalError:
        """Close the connection, and return the error to raise."""
        self.close()
        return silence(self.timeout)

    def __del__(self, *_: object) -> None:
        """Close it: an interrupt while it was opened may have left nobody who does."""
        if hasattr(self, "pgconn"):
            self.close()


@contextmanager
def patient(connection: BoundedConnection) -> Iterator[None]:
    """Let statements of a block take long."""
    usual_timeout = connection.timeout
    connection.timeout = LONG * usual_timeout
    try:
        yield
    finally:
        connection.timeout = usual_timeout


def silence(seconds: float) -> psycopg.OperationalError:
    """Return the error for a server that does not answer."""
    return psycopg.OperationalError(
        f"the server was silent for {seconds:g} s (?timeout= in the URL)"
    )


def connect_timeout(url: str) -> str | int:
    """Return the seconds for which each address of a URL is tried, as libpq takes them."""
    chosen = conninfo_to_dict(url).get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
    return str(chosen) if chosen else CONNECT_TIMEOUT
