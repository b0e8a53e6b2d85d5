"""One connection: calls of the schema's functions, and confirmed changes that a server has lost.

psycopg's cursors and generators do more at each step, which for a put of one message takes longer
than the server needs. This sends a prepared call, and waits once. In a transaction it sends what
needs no answer (BEGIN, locks) together with the next call, by libpq's pipeline mode.
"""

import struct
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors, generators, sql
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from bide.engines import losses
from bide.engines.bounded_dict import BoundedDict
from bide.engines.postgres.bounded_connection import LONG, BoundedConnection
from bide.engines.waiting import watch

Argument = bytes | str | int | None
"""An argument of a function; an array is bytes already, and an integer a bigint."""

_FORMATS = [[Format.BINARY] * count for count in range(32)]
"""The formats of arguments, by how many there are; no function has more."""

_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"

_bigint, _boolean = struct.Struct("!q").pack, struct.Struct("!?").pack

_ROWS_AND_LSN = b"SELECT *, pg_current_wal_insert_lsn() AS lsn FROM %s(%s)"

_ROWS_AND_NOW = (
    b"SELECT *, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now FROM %s(%s)"
)

_STATEMENT = b"SELECT * FROM %s(%s)"
"""The call of a function, and its arguments."""

_OTHER_STATEMENTS = {
    "_put": _ROWS_AND_LSN,
    "_change": _ROWS_AND_LSN,
    "_delete_where": _ROWS_AND_LSN,
    "_close_group": _ROWS_AND_LSN,
    "_reopen_group": _ROWS_AND_LSN,
    "_find": _ROWS_AND_NOW,
    "_put_one": b"SELECT %s(%s), pg_current_wal_insert_lsn()",  # two values are faster than a row
}
"""Calls that also return the server's time, or the position in the log (WAL) behind the change, in
binary form."""


class PostgresCaller:
    """Calls functions over one connection; not while anything else uses it.

    Args:
        connection: to the server, in autocommit mode.
        schema: the functions are there.
        prepares: whether statements are prepared once; a pooler may not allow that.
    """

    def __init__(self, connection: BoundedConnection, schema: str, *, prepares: bool) -> None:
        self.connection = connection
        self._schema = schema
        self._prepares = prepares
        encoding = connection.info.parameter_status("server_encoding")
        self.escapes = encoding not in ("UTF8", "SQL_ASCII")
        """Whether the database lacks characters, so that JSON is stored with escapes."""
        self.in_use = False
        """Whether an exchange has begun and not ended: after an interrupt nobody may use it."""
        self._in_transaction = False
        """Whether a transaction is open; then the connection is in libpq's pipeline mode."""
        self._unanswered = 0
        """How many statements were sent without waiting for their results."""
        # Each of the three tells whether the server has sent something: at once, or after a wait.
        self._has_input = watch(connection.fileno())
        self._wait_for_input = watch(connection.fileno(), seconds=connection.timeout)
        self._wait_long = watch(connection.fileno(), seconds=LONG * connection.timeout)
        self._transformer = Transformer(connection)
        """Makes Python values of results."""
        self._statements: dict[tuple[str, ...], tuple[bytes, bytes]] = {}
        """Statements by function and names of arguments: the name when prepared, and the text."""
        self._row_makers: dict[str, Callable[[Sequence[Any]], Any]] = {}
        """By function: makes a row with named columns of values."""

    def __call__(self, function: str, *arguments: Argument, **named: Argument) -> list[Any]:
        """Call one function, and return its rows with named columns.

        Args:
            function: its name.
            arguments: its first arguments.
            named: others, by the names of the function's parameters without `p_`.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        self.start(function, *arguments, **named)
        return self._rows_of(function, self._answer(self._wait_for_input))

    def patiently(self, function: str, *arguments: Argument) -> list[Any]:
        """Call a function that reads all of a queue, which may take long. Raises as a call."""
        self.start(function, *arguments)
        return self._rows_of(function, self._answer(self._wait_long))

    def _rows_of(self, function: str, result: PGresult) -> list[Any]:
        """Return the rows in the result of a function, with named columns."""
        make_row = self._row_makers.get(function)
        if make_row is None:
            names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
            row_type: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            make_row = self._row_makers[function] = row_type._make
        self._transformer.set_pgresult(result, format=Format.BINARY)
        return self._transformer.load_rows(0, result.ntuples, make_row)

    def start(self, function: str, *arguments: Argument, **named: Argument) -> None:
        """Call a function without waiting for it. The arguments are those of a call.

        In a transaction it is sent with the next call, which raises if the server refuses this one.
        Outside, call `settle` for the result, before any other use of the connection.

        Raises:
            psycopg.Error: the connection was lost, or the server knows no such function.
        """
        values = [_binary(argument) for argument in (*arguments, *named.values())]
        pgconn = self.connection.pgconn
        try:
            statement = self._statements.get((function, *named))
            if statement is None:
                statement = self._prepare(function, len(arguments), tuple(named))
            name, text = statement
            self._unanswered += 1
            formats = _FORMATS[len(values)]
            if self._prepares:
                pgconn.send_query_prepared(name, values, formats, Format.BINARY)
            else:
                pgconn.send_query_params(text, values, None, formats, Format.BINARY)
            if not self._in_transaction:
                self._flush()
        except BaseException:
            self.connection.close()  # half of the call may be on its way
            raise

    def _prepare(self, function: str, count: int, names: tuple[str, ...]) -> tuple[bytes, bytes]:
        """Prepare the statement of a call with `count` arguments and named ones.

        Returns its name, and its text, which is sent instead where statements are not prepared.
        """
        name = b"%s:%d" % (function.encode(), len(self._statements))
        marks = [b"$%d" % number for number in range(1, count + 1)]
        for number, parameter in enumerate(names, count + 1):
            marks.append(b"p_%s => $%d" % (parameter.encode(), number))
        qualified = sql.Identifier(self._schema, function).as_bytes(self.connection)
        text = _OTHER_STATEMENTS.get(function, _STATEMENT) % (qualified, b", ".join(marks))
        if self._prepares:
            self._unanswered += 1
            self.connection.pgconn.send_prepare(name, text)
            self._answer(self._wait_for_input)
        self._statements[function, *names] = name, text
        return name, text

    def settle(self) -> None:
        """Wait for the calls of `start`, if there are any.

        Raises:
            psycopg.Error: the server refused one, or the connection was lost.
        """
        if self._unanswered and not self.connection.closed:
            self._answer(self._wait_for_input)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Execute the calls of a block in one transaction, which an error in the block undoes.

        BEGIN is sent with the first call, and what was started last with COMMIT.

        Raises:
            psycopg.Error: the server refused a call or the commit, or the connection was lost.
        """
        self.connection.pgconn.enter_pipeline_mode()
        self._in_transaction = True
        try:
            self._send(_BEGIN)
            yield
            self._send(b"COMMIT")
            self.settle()
            self.connection.pgconn.exit_pipeline_mode()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._in_transaction = False

    def _roll_back(self) -> None:
        """Undo the transaction, unless it ended with the connection."""
        try:
            with suppress(psycopg.Error):
                self.settle()  # after a refusal the server skips the rest of what it was sent
            if not self.connection.closed:
                self._send(b"ROLLBACK")
                self.settle()
                self.connection.pgconn.exit_pipeline_mode()
        except psycopg.Error:
            self.connection.close()

    def _send(self, statement: bytes) -> None:
        """Send a statement of a transaction with what comes next."""
        self._unanswered += 1
        self.connection.pgconn.send_query_params(statement, None)

    def _flush(self) -> None:
        """Send what libpq has buffered; wait if the server does not take all of it at once."""
        if self.connection.pgconn.flush():
            self.connection.wait(generators.send(self.connection.pgconn))

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
        return bool(self._has_input())  # after the end it is always readable

    def _answer(self, wait: Callable[[], object]) -> PGresult:
        """Wait for the results of what was sent, and return the last. A signal interrupts that.

        Args:
            wait: waits for input; false: none came in time.

        Raises:
            psycopg.Error: one is a refusal, or the connection was lost.
        """
        last_result: Any = None
        refusal: Any = None  # the first one: the server skips what follows it in a transaction
        try:
            if self._in_transaction:  # only now does the server execute what is in the pipeline
                self.connection.pgconn.pipeline_sync()
                self._flush()
            for _ in range(self._unanswered):
                while (result := self._next_result(wait)) is not None:
                    last_result = result
                    if refusal is None and result.status == ExecStatus.FATAL_ERROR:
                        refusal = result
            if self._in_transaction:
                self._next_result(wait)  # the result of the synchronization
        except psycopg.OperationalError:
            self.connection.close()
            if refusal is not None:  # it says why the server closed the connection
                raise errors.error_from_result(refusal) from None
            raise
        except BaseException:
            self.connection.close()  # the answer may still be on its way
            raise
        self._unanswered = 0
        if refusal is not None:
            raise errors.error_from_result(refusal)
        return last_result  # type: ignore[no-any-return]

    def _next_result(self, wait: Callable[[], object]) -> PGresult | None:
        """Wait for one more result of a statement; `None`: it has no more."""
        pgconn = self.connection.pgconn
        while pgconn.is_busy():
            if not wait():
                raise self.connection.silent()
            pgconn.consume_input()
        return pgconn.get_result()


def _binary(argument: Argument) -> bytes | None:
    """Return the binary form of an argument; `None` is the null of SQL."""
    if isinstance(argument, str):  # or of a derived type, such as `StrEnum`
        return argument.encode()
    if isinstance(argument, int):  # a truth value is one, too
        return _boolean(argument) if isinstance(argument, bool) else _bigint(argument)
    return argument


_LOG_AND_SCHEMA = """
SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
       pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint,
       (SELECT oid FROM pg_namespace WHERE nspname = %s)
WHERE NOT pg_is_in_recovery()
"""
"""The timeline; the end of the log; where the last recovery ended, null after a restart; the oid of
the schema. Positions in the log are bytes since its beginning."""


class Witness:
    """Detects confirmed changes that a store has lost, over all connections to it.

    Args:
        shown: host and database, as errors name them.
        schema: the schema that is the store.

    With each put, cancel, reschedule or other change by id or rule, except acks, the server says
    how far its log (WAL) had come just before the commit. A standby that is promoted begins a new
    timeline where its copy of the log ended: if that is before such a position, the change is lost.
    A server that comes back with a shorter log has lost it as well, and so has a schema that was
    dropped and made again, or restored.
    """

    def __init__(self, shown: str, schema: str) -> None:
        self._shown = shown
        self._schema = schema
        self._schema_oid: int | None = None
        """The id of the schema at the last connection: if it is made again, it has another one."""
        self._timeline = 0
        """The timeline of the last connection's server."""
        self._confirmed: BoundedDict[str, int] = BoundedDict()
        """By queue: the position in the log behind its last confirmed change."""

    def confirmed(self, positions: Mapping[str, int]) -> None:
        """Note the positions in the log, by queue, behind which changes were committed."""
        self._confirmed.update(positions)

    def compare(self, connection: psycopg.Connection[Any]) -> None:
        """Check, on a new connection, that confirmed changes are there; report lost ones."""
        row = connection.execute(_LOG_AND_SCHEMA, (self._schema,)).fetchone()
        if row is None:
            return  # a standby: nothing can be put there
        timeline, log_end, replayed, schema_oid = row
        kept_until = log_end  # what was confirmed behind this position is lost
        if timeline > self._timeline and replayed is not None:
            # A promoted standby: it goes on behind what it has replayed, on a timeline of its own.
            kept_until = replayed
        if self._schema_oid not in (None, schema_oid):
            kept_until = -1  # the name is the same, the schema is another one
        self._timeline, self._schema_oid = timeline, schema_oid
        lost = [queue for queue, lsn in self._confirmed.items() if lsn > kept_until]
        for queue in lost:
            del self._confirmed[queue]
            losses.report(self._shown, queue, 1)
