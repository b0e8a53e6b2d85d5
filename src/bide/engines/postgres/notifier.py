"""How processes wake each other: by NOTIFY, and only if one would sleep too long."""

import logging
import os
import threading
from typing import Any

import psycopg
from psycopg import sql

from bide.engines.postgres.faults import first_line
from bide.engines.postgres.settings import Settings
from bide.engines.waiting import readable
from bide.model.errors import StoreError

AGAIN = 1.0
"""Seconds until a lost connection is opened again; until then waiting claims look by themselves."""

_log = logging.getLogger("bide.postgres")


class PostgresNotifier:
    """Receives the hints for one process, on a separate connection.

    Args:
        settings: of the store.
        process: the name under which the process sleeps; it gets its hints, and those for all.

    Raises:
        StoreError: the server cannot be reached.
    """

    def __init__(self, settings: Settings, process: str) -> None:
        self._settings = settings
        self._process = process
        self._closed = threading.Event()
        self._woken, self._waker = os.pipe()
        self._connection: psycopg.Connection[Any] | None = self._open()

    @property
    def is_listening(self) -> bool:
        """Whether its connection is there, as far as it knows."""
        return self._connection is not None

    def listen(self) -> list[tuple[str, int]]:
        """Block until hints come, and return them; an empty list once closed."""
        while not self._closed.is_set():
            try:
                self._connection = connection = self._connection or self._open()
                hints = self._receive(connection)
            except (psycopg.Error, StoreError, OSError) as error:
                if self._connection is not None:
                    _log.warning(
                        "the connection that listens for puts was lost (%s): until it is back, "
                        "messages that other processes put are noticed within a second",
                        first_line(error),
                    )
                    self._connection.close()
                    self._connection = None
                self._closed.wait(AGAIN)
                continue
            if hints:
                return hints
        if self._connection is not None:
            self._connection.close()
        os.close(self._woken)
        return []

    def close(self) -> None:
        """Stop listening: `listen` returns."""
        if not self._closed.is_set():
            os.write(self._waker, b"\0")  # under gevent, closing the pipe wakes no reader
            self._closed.set()  # from here on the listener may close the other end
            os.close(self._waker)

    def _receive(self, connection: psycopg.Connection[Any]) -> list[tuple[str, int]]:
        notes = list(connection.notifies(timeout=0))
        if not notes:
            readable(connection.fileno(), self._woken)
            notes = [] if self._closed.is_set() else list(connection.notifies(timeout=0))
        hints = []
        for note in notes:
            head, _, queue = note.payload.partition(" ")
            moment, _, process = head.partition("/")
            if process in ("", self._process):
                hints.append((queue, int(moment)))
        return hints

    def _open(self) -> psycopg.Connection[Any]:
        connection = self._settings.connect(to_listen=True)
        connection.execute("SET idle_session_timeout = 0")  # it is always idle
        connection.execute(sql.SQL("LISTEN {}").format(self._settings.identifier))
        return connection
