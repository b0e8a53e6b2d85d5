"""Calling the schema's functions, each in one round trip.

psycopg's cursors do more at each step; for a put of one message that takes longer than the server
needs. This sends a prepared call, and waits once.
"""

import itertools
from collections import namedtuple
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from bide.engines.postgres.arrays import register

__all__ = ["ENCODED", "Caller"]

ENCODED = frozenset(("_put_one",))
"""Functions whose arguments are given as the server takes them: in its binary form, or `None`."""

Result = list[Any] | psycopg.Error
Statement = tuple[bytes, tuple[int, ...] | None]
"""Its text, and the types of its arguments; `None`: those that the function declares."""
T = TypeVar("T")


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
        self._owed: str | None = None
        self._texts: dict[str, bytes] = {}
        self._rows: dict[str, Callable[[Sequence[Any]], Any]] = {}
        register(connection)

    def __call__(self, function: str, *arguments: Any) -> list[Any]:
        """Call one function, and return its rows with named columns.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        result = self._do(self._exchange(function, arguments))
        if isinstance(result, psycopg.Error):
            raise result
        return result

    def start(self, function: str, *arguments: Any) -> None:
        """Call a function without waiting for it.

        What becomes of it is told by `settle`, before anything else is done with the connection.

        Raises:
            psycopg.Error: the connection was lost, or the server knows no such function.
        """
        refused = self._do(self._send(function, arguments))
        if refused is not None:
            raise refused
        self._owed = function

    def settle(self) -> psycopg.Error | None:
        """Wait for the call of `start`, if there is one; return why it was refused.

        Raises:
            psycopg.Error: the connection was lost.
        """
        if self._owed is None:
            return None
        function, self._owed = self._owed, None
        result = self._do(self._receive(function))
        return result if isinstance(result, psycopg.Error) else None

    def _do(self, exchange: Generator[Any, Any, T]) -> T:
        try:
            return self.connection.wait(exchange)
        except BaseException:
            self.connection.close()  # nobody knows what is still on its way
            raise

    def _exchange(self, function: str, arguments: Sequence[Any]) -> Generator[Any, Any, Result]:
        refused = yield from self._send(function, arguments)
        return refused or (yield from self._receive(function))

    def _send(
        self, function: str, arguments: Sequence[Any]
    ) -> Generator[Any, Any, psycopg.Error | None]:
        """Send a call. The first of its kind is prepared before; return the error if it fails."""
        sender = self.connection.pgconn
        text = self._texts.get(function) or self._text(function, len(arguments))
        values, types = arguments, None
        formats: Sequence[Format] = [Format.BINARY] * len(arguments)
        if function not in ENCODED:
            transformer = Transformer(self.connection)
            values = transformer.dump_sequence(arguments, [PyFormat.BINARY] * len(arguments))
            types, formats = transformer.types, transformer.formats or formats
        if self._prepares:
            name = self._prepared.get((text, types))
            if name is None:
                name = b"bide%d" % next(self._numbers)
                sender.send_prepare(name, text, types)
                refused = yield from self._receive(function)
                if isinstance(refused, psycopg.Error):
                    return refused
                self._prepared[text, types] = name
            sender.send_query_prepared(name, values, formats, Format.BINARY)
        else:
            sender.send_query_params(text, values, types, formats, Format.BINARY)
        while sender.flush():
            ready = yield Wait.RW
            if ready & Ready.R:
                sender.consume_input()
        return None

    def _text(self, function: str, count: int) -> bytes:
        name = sql.Identifier(self._schema, function).as_bytes(self.connection)
        marks = b", ".join(b"$%d" % number for number in range(1, count + 1))
        self._texts[function] = text = b"SELECT * FROM " + name + b"(" + marks + b")"
        return text

    def _receive(self, function: str) -> Generator[Any, Any, Result]:
        """Return the rows or the error of one call; no rows of what was only prepared."""
        sender = self.connection.pgconn
        result: Result = []
        while True:
            while sender.is_busy():
                yield Wait.R
                sender.consume_input()
            got = sender.get_result()
            if got is None:
                return result
            if got.status == ExecStatus.TUPLES_OK:
                result = self._load(function, got)
            elif got.status == ExecStatus.FATAL_ERROR:
                result = errors.error_from_result(got)

    def _load(self, function: str, got: PGresult) -> list[Any]:
        make = self._rows.get(function)
        if make is None:
            names = [(got.fname(n) or b"").decode() for n in range(got.nfields)]
            row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            make = self._rows[function] = row._make
        transformer = Transformer(self.connection)
        transformer.set_pgresult(got, format=Format.BINARY)
        return transformer.load_rows(0, got.ntuples, make)
