"""The transactions of a handler in which it uses bide: whether each was committed."""

import sqlite3
from typing import Any

from bide.consuming.handling import Handling
from bide.model.errors import Unsupported


class SqliteTransaction:
    """A transaction on a connection of the user's. The statements on it tell how it ends.

    Args:
        connection: is in a transaction.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._is_committing = False
        """Whether the last statement was a commit, which may fail."""
        self._is_committed: bool | None = None
        """How it has ended; `None`: it is open, as far as its statements say."""
        connection.set_trace_callback(self._hear)

    def _hear(self, statement: str) -> None:
        """Note a statement that is about to be executed."""
        words = statement.upper().replace(";", " ").split()
        if self._is_committed is not None or not words:
            return
        if words[0] == "ROLLBACK" and "TO" not in words:
            self._is_committed = False
        elif words[0] == "BEGIN":  # the next transaction begins
            self._is_committed = self._is_committing
        elif words[0] in ("COMMIT", "END"):
            self._is_committing = True

    @property
    def is_committed(self) -> bool | None:
        """Whether it was committed; `None`: it is still open."""
        if self._is_committed is None:
            try:
                is_open = self.connection.in_transaction
            except sqlite3.ProgrammingError:  # the connection was closed, which ends it
                is_open = False
            if not is_open:
                self._is_committed = self._is_committing  # else an error has ended it
        return self._is_committed


class OpenTransactions:
    """Numbers the transactions of a handler, and finds those that have ended."""

    def __init__(self) -> None:
        self._last_number = 0
        self._of_handler: int | None = None
        """The number of the transaction that the worker has opened for the handler (`within=`)."""
        self._on_sqlite: dict[int, SqliteTransaction] = {}
        """The transactions that the handler has opened itself, by number."""
        self._ended: dict[int, bool] = {}
        """By number, of transactions that have ended and were not asked for: whether committed."""

    def number_of(self, within: object, handling: Handling) -> int:
        """Return the number of the transaction on a connection of the user's.

        Raises:
            Unsupported: nothing tells how it will end.
        """
        if within is handling.connection:
            if self._of_handler is None:
                self._of_handler = self._next()
            return self._of_handler
        if not isinstance(within, sqlite3.Connection):
            raise Unsupported(
                "a crash test cannot see whether the handler commits a transaction on "
                f"{type(within).__name__} that it opens itself; let the worker open it, with "
                "within= of @app.handler or @app.task, and pass on the parameter within"
            )
        self._look()
        for number, transaction in self._on_sqlite.items():
            if transaction.connection is within:
                return number
        if not within.in_transaction:  # a real store begins one for its first statement
            within.execute("BEGIN")
        number = self._next()
        self._on_sqlite[number] = SqliteTransaction(within)
        return number

    def number_of_call(self, arguments: list[Any], handling: Handling) -> int | None:
        """Return the number of the transaction in which a call worked; `None`: in none.

        A call that takes the connection of an open transaction works in it.
        """
        for argument in arguments:
            is_of_handler = argument is not None and argument is handling.connection
            is_open = isinstance(argument, sqlite3.Connection) and argument.in_transaction
            if is_of_handler or is_open:
                return self.number_of(argument, handling)
        return None

    def ended(self) -> dict[int, bool]:
        """Return those that have ended since the last call, each with whether it was committed."""
        self._look()
        ended, self._ended = self._ended, {}
        return ended

    def _look(self) -> None:
        """Find those that have ended."""
        for number, transaction in list(self._on_sqlite.items()):
            if (is_committed := transaction.is_committed) is not None:
                self._ended[number] = is_committed
                del self._on_sqlite[number]

    def handler_ended(self) -> int | None:
        """Return the number of the one that the worker has opened, which has ended now."""
        number, self._of_handler = self._of_handler, None
        return number

    def _next(self) -> int:
        self._last_number += 1
        return self._last_number
