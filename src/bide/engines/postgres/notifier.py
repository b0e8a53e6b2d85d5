"""How processes hear of each other, by NOTIFY.

A process is woken only if it would sleep too long. It is also told that messages which it has
claimed are to be stopped. Then it asks which ones: notifications do not name them, because they
reach all who may use the store, and not all may use the queue.
"""

import os
import re
import threading
from collections.abc import Mapping

import psycopg
from psycopg import sql

from bide.engines.postgres.bounded_connection import BoundedConnection
from bide.engines.postgres.faults import first_line
from bide.engines.postgres.settings import PostgresSettings
from bide.engines.waiting import readable
from bide.logs import logger
from bide.model.ended import message_hint
from bide.model.errors import StoreError

SECONDS_BETWEEN_CONNECTS = 1.0
"""Seconds until a lost connection is opened again; until then waiting claims look by themselves."""

_NOTE = re.compile(rb"(\d{1,18})(?:/(\S+))? ([0-9a-f]{16}|stop \d{1,9})")
"""A notification: a time, a process unless it is for all, and what it is about: the tag of a queue
or of the end of a message, or a queue some of whose messages are to be stopped."""

_STOP = "stop "
"""How a notification names a queue some of whose messages are to be stopped; then its number."""

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
        """Whether a notification was not from bide: a warning is logged once."""
        self._arrived: list[bytes] = []
        """Notifications that came before the answer to a query."""
        self._wake_reader, self._wake_writer = os.pipe()
        """A pipe, so that `close` ends the wait of `listen` in another thread."""
        self._connection: BoundedConnection | None = self._open()
        """`None` while it is lost."""

    @property
    def is_listening(self) -> bool:
        """Whether its connection is there, as far as it knows."""
        return self._connection is not None

    def listen(self) -> list[tuple[str, int]]:
        """Block until hints come, and return them; an empty list once closed.

        A hint is a queue or a message (`message_hint`), and the Unix milliseconds at which there is
        something to claim or to ask.
        """
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
                self._closed.wait(SECONDS_BETWEEN_CONNECTS)
                continue
            if hints:
                return hints
        if self._connection is not None:
            self._connection.close()
        os.close(self._wake_reader)
        return []

    def close(self) -> None:
        """Stop listening: `listen` returns."""
        if not self._closed.is_set():
            os.write(self._wake_writer, b"\0")  # under gevent, closing the pipe wakes no reader
            self._closed.set()  # from here on the listener may close the other end
            os.close(self._wake_writer)

    def _receive(self, connection: BoundedConnection) -> list[tuple[str, int]]:
        """Wait once, and return the hints that came; there may be none."""
        notes = self._notes(connection)
        if not notes:
            seconds = self._settings.timeout
            if not readable(connection.fileno(), self._wake_reader, seconds=seconds):
                connection.execute("SELECT 1")  # raises if the server has gone without a word
            if self._closed.is_set():
                return []
            connection.pgconn.consume_input()
            notes = self._notes(connection)
        hints: list[tuple[str, int]] = []
        stopping_queues: dict[int, None] = {}  # by their numbers; each is asked once
        for moment, tag in filter(None, map(self._read, notes)):
            if (name := self._names.get(tag)) is not None:
                hints.append((name, moment))
            elif tag.startswith(_STOP):
                stopping_queues[int(tag.removeprefix(_STOP))] = None
        for queue_number in stopping_queues:
            hints += self._stopping(connection, queue_number)
        return hints

    def _notes(self, connection: BoundedConnection) -> list[bytes]:
        """Return the texts of the notifications that have arrived."""
        while (note := connection.pgconn.notifies()) is not None:
            self._arrived.append(note.extra)
        notes, self._arrived = self._arrived, []
        return notes

    def _read(self, text: bytes) -> tuple[int, str] | None:
        """Return the time and the tag in a notification; `None` if it is not for this process.

        Any user of the database may send another text, which is skipped.
        """
        match = _NOTE.fullmatch(text)
        if match is None:
            if not self._has_seen_other_text:
                self._has_seen_other_text = True
                _log.warning("a notification is not from bide, and was skipped: %.100r", text)
            return None
        moment, process, tag = match.groups()
        if process not in (None, self._process.encode()):
            return None
        return int(moment), tag.decode()

    def _stopping(self, connection: BoundedConnection, queue_number: int) -> list[tuple[str, int]]:
        """Return a hint for each message of this process whose worker was asked to stop.

        Args:
            connection: asks which ones.
            queue_number: the number of their queue in the store.
        """
        function = sql.Identifier(self._settings.schema, "_stopping")
        query = sql.SQL("SELECT queue, id FROM {}(%s, %s)").format(function)
        rows = connection.execute(query, (self._process, queue_number)).fetchall()
        at_once = 0
        return [(message_hint(queue, id), at_once) for queue, id in rows]

    def _open(self) -> BoundedConnection:
        """Return a connection that gets the notifications of the store.

        Raises:
            StoreError: the server cannot be reached.
            psycopg.Error: it refused.
        """
        connection = self._settings.connect(to_listen=True)
        connection.add_notify_handler(lambda note: self._arrived.append(note.payload.encode()))
        connection.execute("SET idle_session_timeout = 0")  # it is always idle
        query = sql.SQL("SELECT channel FROM {}.store").format(self._settings.identifier)
        ((channel,),) = connection.execute(query).fetchall()
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return connection
