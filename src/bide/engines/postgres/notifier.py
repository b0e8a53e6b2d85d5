"""How processes wake each other: by NOTIFY, and only if one would sleep too long."""

import os
import threading
from collections.abc import Mapping

import psycopg
from psycopg import sql

from bide.engines.postgres.bounded_connection import BoundedConnection
from bide.engines.postgres.faults import first_line
from bide.engines.postgres.settings import PostgresSettings
from bide.engines.waiting import readable
from bide.logs import logger
from bide.model.errors import StoreError

AGAIN = 1.0
"""Seconds until a lost connection is opened again; until then waiting claims look by themselves."""

_log = logger("bide.postgres")


class PostgresNotifier:
    """Receives the hints for one process, on a separate connection.

    Args:
        settings: of the store.
        process: the name under which the process sleeps; it gets its hints, and those for all.
        names: what it waits for, by what notifications call it.

    Raises:
        StoreError: the server cannot be reached.
    """

    def __init__(self, settings: PostgresSettings, process: str, names: Mapping[str, str]) -> None:
        self._settings = settings
        self._process = process
        self._names = names
        self._closed = threading.Event()
        self._has_seen_other_text = False
        self._woken, self._waker = os.pipe()
        self._connection: BoundedConnection | None = self._open()

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

    def _receive(self, connection: BoundedConnection) -> list[tuple[str, int]]:
        sender, hints = connection.pgconn, []
        note = sender.notifies()
        if note is None:
            if not readable(connection.fileno(), self._woken, seconds=self._settings.timeout):
                connection.execute("SELECT 1")  # a server that has gone says nothing either
            if self._closed.is_set():
                return []
            sender.consume_input()
            note = sender.notifies()
        while note is not None:
            hints += self._hints(note.extra)
            note = sender.notifies()
        return hints

    def _hints(self, text: bytes) -> list[tuple[str, int]]:
        """Return the hint for this process in a notification; anybody may send one that is none."""
        try:
            head, _, tag = text.decode().partition(" ")
            moment, _, process = head.partition("/")
            name = self._names.get(tag)
            if name is None or process not in ("", self._process):
                return []
            return [(name, int(moment))]
        except ValueError:
            if not self._has_seen_other_text:
                self._has_seen_other_text = True
                _log.warning("a notification is not from bide, and was skipped: %.100r", text)
            return []

    def _open(self) -> BoundedConnection:
        connection = self._settings.connect(to_listen=True)
        connection.execute("SET idle_session_timeout = 0")  # it is always idle
        query = sql.SQL("SELECT channel FROM {}.store").format(self._settings.identifier)
        ((channel,),) = connection.execute(query).fetchall()
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return connection
