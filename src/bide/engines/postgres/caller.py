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
        self._texts: dict[str, bytes] = {}
        self._rows: dict[str, Callable[[Sequence[Any]], Any]] = {}
        register(connection)

    def __call__(self, function: str, *arguments: Any) -> list[Any]:
        """Call one function, and return its rows with named columns.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        (result,) = self.all([(function, arguments)])
        if isinstance(result, psycopg.Error):
            raise result
        return result

    def all(self, calls: Sequence[Call]) -> list[Result]:
        """Call functions one after the other: each a transaction of its own, if none is open.

        Returns:
            For each its rows, or the error with which the server refused it.

        Raises:
            psycopg.Error: the connection was lost.
        """
        try:
            return self.connection.wait(self._exchange(calls))
        except BaseException:
            self.connection.close()  # nobody knows what is still on its way
            raise

    def _exchange(self, calls: Sequence[Call]) -> Generator[Any, Any, list[Result]]:
        sender = self.connection.pgconn
        sender.enter_pipeline_mode()
        new = [self._send(*call) for call in calls]
        while sender.flush():
            ready = yield Wait.RW
            if ready & Ready.R:
                sender.consume_input()
        results = []
        for (function, _), statement in zip(calls, new, strict=True):
            got = yield from self._receive()
            result: Result = []
            if got is not None and got.status == ExecStatus.FATAL_ERROR:
                result = errors.error_from_result(got)
            elif got is not None:
                result = self._load(function, got)
            if statement is not None and isinstance(result, psycopg.Error):
                del self._prepared[statement]
            results.append(result)
        sender.exit_pipeline_mode()
        return results

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

    def _receive(self) -> Generator[Any, Any, PGresult | None]:
        """Return the rows or the error of one call."""
        sender = self.connection.pgconn
        told: PGresult | None = None
        while True:
            while sender.is_busy():
                yield Wait.R
                sender.consume_input()
            got = sender.get_result()
            if got is None:
                continue
            if got.status == ExecStatus.PIPELINE_SYNC:
                return told
            if got.status in (ExecStatus.TUPLES_OK, ExecStatus.FATAL_ERROR):
                told = got

    def _load(self, function: str, got: PGresult) -> list[Any]:
        make = self._rows.get(function)
        if make is None:
            names = [(got.fname(n) or b"").decode() for n in range(got.nfields)]
            row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            make = self._rows[function] = row._make
        transformer = Transformer(self.connection)
        transformer.set_pgresult(got, format=Format.BINARY)
        return transformer.load_rows(0, got.ntuples, make)
