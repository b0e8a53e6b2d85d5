"""The outbox of a PostgreSQL database, as the forwarder uses it."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg

from bide.engines.postgres.bounded_connection import TIMEOUT, BoundedConnection
from bide.engines.waiting import readable
from bide.model.limits import MAX_BYTES
from bide.outbox.rows import CHANNEL, CREATE_TABLES, Row, Table

# No other outbox has it: the database system, the database and the table.
_NAME = """
SELECT pg_catalog.format(
  'postgresql-%s-%s-%s', system_identifier, d.oid, 'bide_outbox'::regclass::oid
)
FROM pg_control_system(), pg_database AS d WHERE datname = current_database()
"""

# To a user whose name is that of a store's schema, which is `bide` by default, this schema is the
# first of `search_path`. Programs of other users would not find the tables there, and they would
# be dropped with the store.
_OUTSIDE_OF_STORES = """
SELECT set_config(
  'search_path',
  coalesce(
    string_agg(pg_catalog.format('%I', name), ', ' ORDER BY place), current_setting('search_path')
  ),
  true
)
FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (name, place)
WHERE has_schema_privilege(name, 'CREATE')
  AND to_regclass(pg_catalog.format('%I.sleeper', name)) IS NULL
"""

# `octet_length` need not read a large text, as `length` does.
_OLDEST = """
SELECT number, queue, id, command FROM (
  SELECT *, sum(octet_length(command)) OVER (ORDER BY number) - octet_length(command) AS before
  FROM (
    SELECT * FROM bide_outbox WHERE queue <> ALL (?::text[]) ORDER BY number LIMIT ?
  ) AS oldest
) AS summed WHERE before < ? ORDER BY number
"""


class PostgresTable(Table):
    """One connection, which also listens.

    Args:
        url: of the database, as libpq takes it.
    """

    def __init__(self, url: str) -> None:
        self.connection = BoundedConnection.open(url, TIMEOUT, name="bide forward")
        # A pipe by which `wake` ends a wait.
        self._wake_reader, writer = os.pipe()
        self._wake_writer: int | None = writer
        """`None`: it is closed, and another file may have its number."""
        self._waking = threading.RLock()  # a signal handler may come between
        self._notifications: list[psycopg.Notify] = []
        """The notifications that came since the last wait."""
        self.connection.add_notify_handler(self._notifications.append)
        try:
            if self.connection.info.server_version >= 140_000:
                self.run("SET idle_session_timeout = 0")  # it waits for notifications
            with self.transaction():
                # CREATE TABLE IF NOT EXISTS fails if two run it at once.
                self.run("SELECT pg_advisory_xact_lock(hashtext('bide outbox'))")
                self.run("SET LOCAL client_min_messages = warning")  # no notice that it exists
                if self.run("SELECT to_regclass('bide_outbox_dead')").fetchone() == (None,):
                    self.run(_OUTSIDE_OF_STORES)
                    for statement in CREATE_TABLES["postgresql"]:
                        self.run(statement)
            (self.name,) = self.run(_NAME).fetchone()
            self.run(f"LISTEN {CHANNEL}")
        except BaseException:
            self.close()
            raise

    def run(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement."""
        return self.connection.execute(statement.replace("?", "%s").encode(), values or None)

    def transaction(self) -> AbstractContextManager[object]:
        """Commit the statements of a block together."""
        return self.connection.transaction()

    @contextmanager
    def lead(self) -> Iterator[bool]:
        """Take a lock of the session; yield whether it is taken now.

        The server frees it when this process dies.
        """
        (leads,) = self.run("SELECT pg_try_advisory_lock(hashtext('bide forward'))").fetchone()
        try:
            yield leads
        finally:
            if leads and not self.connection.closed:
                self.run("SELECT pg_advisory_unlock(hashtext('bide forward'))")

    def read(self, limit: int, without: Sequence[str] = ()) -> list[Row]:
        """Return the oldest committed rows."""
        return [Row(*row) for row in self.run(_OLDEST, (list(without), limit, MAX_BYTES))]

    def wait(self, seconds: float) -> None:
        """Wait for a notification."""
        if not self._notifications:
            readable(self.connection.fileno(), self._wake_reader, seconds=seconds)
        self._notifications.clear()  # what select has seen is read with the next rows

    def wake(self) -> None:
        """End a wait, from another thread."""
        with self._waking:
            if self._wake_writer is not None:  # else nothing waits
                os.write(self._wake_writer, b"x")

    def close(self) -> None:
        """Leave the database."""
        self.connection.close()
        with self._waking:
            writer, self._wake_writer = self._wake_writer, None
            if writer is not None:
                os.close(writer)
                os.close(self._wake_reader)
