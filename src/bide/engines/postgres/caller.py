"""Calling the schema's functions, several in one round trip.

psycopg's own pipeline and cursors communicate at each step; for a put of one message that takes
longer than the server needs. This sends all calls at once, prepared, and waits once.
"""

import itertools
from collections import namedtuple
from collections.abc import Callable, Generator, Sequence
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from bide.engines.postgres.arrays import register

__all__ = ["Call", "Caller"]

Call = tuple[str, Sequence[Any]]
"""The name of a function and its arguments."""

Result = list[Any] | psycopg.Error
Statement = tuple[bytes, tuple[int, ...]]
"""Its text, and the types of its arguments."""


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
        self._owed: tuple[str, Statement | None] | None = None
        self._texts: dict[str, bytes] = {}
        self._rows: dict[str, Callable[[Sequence[Any]], Any]] = {}
        register(connection)

    def __call__(self, function: str, *arguments: Any) -> list[Any]:
        """Call one function, and return its rows with named columns.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        result = self._do(self._exchange((function, arguments), None))
        if isinstance(result, psycopg.Error):
            raise result
        return result

    def then(self, first: Call, second: Call) -> list[Any]:
        """Call two functions, and return the rows of the first as soon as it is committed.

        What becomes of the second is told by `settle`, before anything else is done with the
        connection.

        Raises:
            psycopg.Error: the server refused the first, or the connection was lost.
        """
        result = self._do(self._exchange(first, second))
        if isinstance(result, psycopg.Error):
            raise result
        return result

    def settle(self) -> psycopg.Error | None:
        """Wait for the second call of `then`, if there is one; return why it was refused.

        Raises:
            psycopg.Error: the connection was lost.
        """
        result = self._do(self._settle()) if self._owed is not None else None
        return result if isinstance(result, psycopg.Error) else None

    def _do(self, exchange: Generator[Any, Any, Result]) -> Result:
        try:
            return self.connection.wait(exchange)
        except BaseException:
            self.connection.close()  # nobody knows what is still on its way
            raise

    def _exchange(self, first: Call, second: Call | None) -> Generator[Any, Any, Result]:
        sender = self.connection.pgconn
        sender.enter_pipeline_mode()
        new = self._send(*first)
        if second is not None:
            self._owed = second[0], self._send(*second)
        while sender.flush():
            ready = yield Wait.RW
            if ready & Ready.R:
                sender.consume_input()
        result = yield from self._receive(first[0], new)
        if second is None:
            sender.exit_pipeline_mode()
        return result

    def _settle(self) -> Generator[Any, Any, Result]:
        assert self._owed is not None
        result = yield from self._receive(*self._owed)
        self._owed = None
        self.connection.pgconn.exit_pipeline_mode()
        return result

    def _send(self, function: str, arguments: Sequence[Any]) -> Statement | None:
        """Queue a call; return the statement if it is prepared only now."""
        sender = self.connection.pgconn
        text = self._texts.get(function) or self._text(function, len(arguments))
        transformer = Transformer(self.connection)
        values = transformer.dump_sequence(arguments, [PyFormat.BINARY] * len(arguments))
        types, formats = transformer.types or (), transformer.formats
        new = None
        if not self._prepares:
            sender.send_query_params(text, values, types, formats, Format.BINARY)
        else:
            statement = text, types
            name = self._prepared.get(statement)
            if name is None:
                new = statement
                name = self._prepared[statement] = b"bide%d" % next(self._numbers)
                sender.send_prepare(name, text, types)
            sender.send_query_prepared(name, values, formats, Format.BINARY)
        sender.pipeline_sync()
        return new

    def _text(self, function: str, count: int) -> bytes:
        name = sql.Identifier(self._schema, function).as_bytes(self.connection)
        marks = b", ".join(b"$%d" % number for number in range(1, count + 1))
        self._texts[function] = text = b"SELECT * FROM " + name + b"(" + marks + b")"
        return text

    def _receive(self, function: str, new: Statement | None) -> Generator[Any, Any, Result]:
        """Return the rows or the error of one call."""
        sender = self.connection.pgconn
        result: Result = []
        while True:
            while sender.is_busy():
                yield Wait.R
                sender.consume_input()
            got = sender.get_result()
            if got is None:
                continue
            if got.status == ExecStatus.PIPELINE_SYNC:
                return result
            if got.status == ExecStatus.TUPLES_OK:
                result = self._load(function, got)
            elif got.status == ExecStatus.FATAL_ERROR:
                result = errors.error_from_result(got)
                if new is not None:
                    self._prepared.pop(new, None)

    def _load(self, function: str, got: PGresult) -> list[Any]:
        make = self._rows.get(function)
        if make is None:
            names = [(got.fname(n) or b"").decode() for n in range(got.nfields)]
            row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            make = self._rows[function] = row._make
        transformer = Transformer(self.connection)
        transformer.set_pgresult(got, format=Format.BINARY)
        return transformer.load_rows(0, got.ntuples, make)
