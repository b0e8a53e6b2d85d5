"""Calling the schema's functions, each in one round trip.

psycopg's cursors and generators do more at each step, which for a put of one message takes longer
than the server needs. This sends a prepared call, and waits once.
"""

import itertools
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import errors, generators, sql
from psycopg.adapt import Buffer, PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from bide.engines.postgres.arrays import register
from bide.engines.waiting import watch

Statement = tuple[bytes, tuple[int, ...] | None]
"""Its text, and the types of its arguments; `None`: those that the function declares."""
Wait = Callable[[PGconn], list[PGresult]]
_PLACE = b", pg_current_wal_insert_lsn()"
_BINARY = [[Format.BINARY] * count for count in range(32)]


class Caller:
    """Calls functions over one connection; not while anything else uses it.

    Args:
        connection: to the server, in autocommit mode.
        schema: the functions are there.
        prepares: whether statements are prepared once; a pooler may not allow that.
    """

    def __init__(self, connection: psycopg.Connection[Any], schema: str, *, prepares: bool) -> None:
        self.connection = connection
        self._schema = schema
        self._prepares = prepares
        self._prepared: dict[Statement, bytes] = {}
        self._numbers = itertools.count()
        self._owes = False
        self._has_input = watch(connection.fileno())
        self._wait_for_input = watch(connection.fileno(), waits=True)
        self._texts: dict[str, bytes] = {}
        self._rows: dict[str, Callable[[Sequence[Any]], Any]] = {}
        register(connection)

    def __call__(self, function: str, *arguments: Any) -> list[Any]:
        """Call one function, and return its rows with named columns.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        results = self._call(function, arguments, self._results)
        return self._load(function, _accepted(results))

    def value_and_place(
        self, function: str, *arguments: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """Call a function that returns one value; return it, and how far the log has come.

        All is as the server has it, in its binary form. Two columns are less work to it than a row.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        text = self._texts.get(function)
        if text is None:
            text = self._text(function, len(arguments), b"SELECT ") + _PLACE
            self._texts[function] = text
        formats = _BINARY[len(arguments)]
        results = self._exchange(text, arguments, None, formats, self._results)
        got = _accepted(results)
        return got.get_value(0, 0), got.get_value(0, 1)

    def start(self, function: str, *arguments: Any) -> None:
        """Call a function without waiting for it.

        What becomes of it is told by `settle`, before anything else is done with the connection.

        Raises:
            psycopg.Error: the connection was lost, or the server knows no such function.
        """
        refused = self._call(function, arguments, self._sent)
        if refused:
            raise errors.error_from_result(refused[-1])
        self._owes = True

    def settle(self) -> psycopg.Error | None:
        """Wait for the call of `start`, if there is one; return why it was refused.

        Raises:
            psycopg.Error: the connection was lost.
        """
        if not self._owes:
            return None
        self._owes = False
        try:
            results = self._results(self.connection.pgconn)
        except BaseException:
            self.connection.close()
            raise
        refused = results[-1].status == ExecStatus.FATAL_ERROR
        return errors.error_from_result(results[-1]) if refused else None

    def has_news(self) -> bool:
        """Whether the server has closed the connection while it was idle."""
        if self.connection.closed:
            return True
        if not self._has_input():
            return False
        try:
            self.connection.pgconn.consume_input()  # a notice, or the end
        except psycopg.OperationalError:
            return True
        return bool(self._has_input())

    def _call(self, function: str, arguments: Sequence[Any], then: Wait) -> list[PGresult]:
        text = self._texts.get(function) or self._text(function, len(arguments), b"SELECT * FROM ")
        transformer = Transformer(self.connection)
        values = transformer.dump_sequence(arguments, [PyFormat.BINARY] * len(arguments))
        return self._exchange(text, values, transformer.types, transformer.formats or (), then)

    def _exchange(
        self,
        text: bytes,
        values: Sequence[Buffer | None],
        types: tuple[int, ...] | None,
        formats: Sequence[Format],
        then: Wait,
    ) -> list[PGresult]:
        """Send a statement, and return what `then` does. The first of its kind is prepared before.

        If that is refused, the answer to it is returned.
        """
        sender = self.connection.pgconn
        try:
            if not self._prepares:
                sender.send_query_params(text, values, types, formats, Format.BINARY)
                return then(sender)
            name = self._prepared.get((text, types))
            if name is None:
                name = b"bide%d" % next(self._numbers)
                sender.send_prepare(name, text, types)
                prepared = self._results(sender)
                if prepared[-1].status == ExecStatus.FATAL_ERROR:
                    return prepared
                self._prepared[text, types] = name
            sender.send_query_prepared(name, values, formats, Format.BINARY)
            return then(sender)
        except BaseException:
            self.connection.close()  # nobody knows what is still on its way
            raise

    def _sent(self, sender: PGconn) -> list[PGresult]:
        """Wait until the server has all that was sent. It has answered nothing so far."""
        self.connection.wait(generators.send(sender))
        return []

    def _results(self, sender: PGconn) -> list[PGresult]:
        """Wait for all answers to what was sent; a signal interrupts it."""
        if sender.flush():
            self._sent(sender)
        results: list[PGresult] = []
        while True:
            while sender.is_busy():
                self._wait_for_input()
                sender.consume_input()
            if (result := sender.get_result()) is None:
                return results
            results.append(result)

    def _text(self, function: str, count: int, head: bytes) -> bytes:
        name = sql.Identifier(self._schema, function).as_bytes(self.connection)
        marks = b", ".join(b"$%d" % number for number in range(1, count + 1))
        self._texts[function] = text = head + name + b"(" + marks + b")"
        return text

    def _load(self, function: str, got: PGresult) -> list[Any]:
        make = self._rows.get(function)
        if make is None:
            names = [(got.fname(n) or b"").decode() for n in range(got.nfields)]
            row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            make = self._rows[function] = row._make
        transformer = Transformer(self.connection)
        transformer.set_pgresult(got, format=Format.BINARY)
        return transformer.load_rows(0, got.ntuples, make)


def _accepted(results: list[PGresult]) -> PGresult:
    """Return the last answer of the server, or raise the error that it is."""
    result = results[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(result)
    return result
