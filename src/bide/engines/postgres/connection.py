"""One connection: calls of the schema's functions, and what its server lacks of another's.

psycopg's cursors and generators do more at each step, which for a put of one message takes longer
than the server needs. This sends a prepared call, and waits once.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors, generators, sql
from psycopg.adapt import Buffer, PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from bide.engines import losses
from bide.engines.bounded_dict import BoundedDict
from bide.engines.postgres.arrays import Array
from bide.engines.waiting import watch

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
        self._prepared: dict[tuple[bytes, tuple[int, ...] | None], bytes] = {}
        """Names of statements, by text and types of arguments (`None`: as the function says)."""
        self._owes = False
        self._has_input = watch(connection.fileno())
        self._wait_for_input = watch(connection.fileno(), waits=True)
        self._texts: dict[str, bytes] = {}
        self._rows: dict[str, Callable[[Sequence[Any]], Any]] = {}

    def __call__(self, function: str, *arguments: Any) -> list[Any]:
        """Call one function, and return its rows with named columns.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        got = self._call(function, arguments)
        if (make := self._rows.get(function)) is None:
            names = [(got.fname(n) or b"").decode() for n in range(got.nfields)]
            row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            make = self._rows[function] = row._make
        transformer = Transformer(self.connection)
        transformer.set_pgresult(got, format=Format.BINARY)
        return transformer.load_rows(0, got.ntuples, make)

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
        got = self._exchange(text, arguments, None, _BINARY[len(arguments)])
        return got.get_value(0, 0), got.get_value(0, 1)

    def start(self, function: str, *arguments: Any) -> None:
        """Call a function without waiting for it.

        Call `settle` for the result, before any other use of the connection.

        Raises:
            psycopg.Error: the connection was lost, or the server knows no such function.
        """
        self._call(function, arguments, waits=False)

    def settle(self) -> None:
        """Wait for the call of `start`, if there is one.

        Raises:
            psycopg.Error: the server refused it, or the connection was lost.
        """
        if not self._owes:
            return
        self._owes = False
        try:
            result = self._last_result()
        except BaseException:
            self.connection.close()
            raise
        _accepted(result)

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

    def _call(self, function: str, arguments: Sequence[Any], *, waits: bool = True) -> PGresult:
        text = self._texts.get(function) or self._text(function, len(arguments), b"SELECT * FROM ")
        transformer = Transformer(self.connection)
        others = [None if isinstance(one, Array) else one for one in arguments]
        values = list(transformer.dump_sequence(others, [PyFormat.BINARY] * len(others)))
        types = list(transformer.types or ())
        for at, one in enumerate(arguments):
            if isinstance(one, Array):
                types[at], values[at] = one
        return self._exchange(text, values, tuple(types), _BINARY[len(values)], waits=waits)

    def _text(self, function: str, count: int, head: bytes) -> bytes:
        name = sql.Identifier(self._schema, function).as_bytes(self.connection)
        marks = b", ".join(b"$%d" % number for number in range(1, count + 1))
        self._texts[function] = text = head + name + b"(" + marks + b")"
        return text

    def _exchange(
        self,
        text: bytes,
        values: Sequence[Buffer | None],
        types: tuple[int, ...] | None,
        formats: Sequence[Format],
        *,
        waits: bool = True,
    ) -> PGresult:
        """Send a statement, and return its answer, or raise the refusal that it is.

        The first of its kind is prepared before; without `waits` that is the last answer.
        """
        sender = self.connection.pgconn
        result: Any = None
        try:
            name = self._prepared.get((text, types))
            if name is None and self._prepares:
                name = b"bide%d" % len(self._prepared)
                sender.send_prepare(name, text, types)
                result = self._last_result()
                if result.status != ExecStatus.FATAL_ERROR:
                    self._prepared[text, types] = name
            if result is None or result.status != ExecStatus.FATAL_ERROR:
                if name is None:
                    sender.send_query_params(text, values, types, formats, Format.BINARY)
                else:
                    sender.send_query_prepared(name, values, formats, Format.BINARY)
                self._owes = not waits
                if waits:
                    result = self._last_result()
                else:  # until the server has all that was sent
                    self.connection.wait(generators.send(sender))
        except BaseException:
            self.connection.close()  # answers may still be on their way
            raise
        return _accepted(result)

    def _last_result(self) -> PGresult:
        """Wait for all answers to what was sent; return the last one. A signal interrupts it."""
        sender = self.connection.pgconn
        if sender.flush():
            self.connection.wait(generators.send(sender))
        last: PGresult | None = None
        while True:
            while sender.is_busy():
                self._wait_for_input()
                sender.consume_input()
            if (result := sender.get_result()) is None:
                assert last is not None
                return last
            last = result


def _accepted(result: Any) -> PGresult:
    """Return an answer of the server, or raise the error that it is."""
    if result is not None and result.status == ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(result)
    return result  # type: ignore[no-any-return]


_LOG = """
SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
       pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint,
       (SELECT oid FROM pg_namespace WHERE nspname = %s)
"""


class Witness:
    """Detects confirmed changes that a store has lost, over all connections to it.

    With each put, cancel, reschedule or other change by id or rule, except acks, the server says
    how far its log (WAL) had come just before the commit. A standby that is promoted begins a new
    timeline where its copy of the log ended: if that is before such a place, the change is lost. A
    server that comes back with a shorter log has lost it as well, and so has a schema that was
    dropped and made again, or restored.
    """

    def __init__(self, place: str, schema: str) -> None:
        self._place = place
        self._schema = schema
        self._made: int | None = None
        self._timeline = 0
        self._confirmed: BoundedDict[str, int] = BoundedDict()

    def confirmed(self, places: Mapping[str, int]) -> None:
        """Note the places in the log, by queue, behind which changes were committed."""
        self._confirmed.update(places)

    def compare(self, connection: psycopg.Connection[Any]) -> None:
        """Check, on a new connection, that confirmed changes are there; report lost ones."""
        recovery = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if recovery == (True,):
            return  # a standby: nothing can be put there
        row = connection.execute(_LOG, (self._schema,)).fetchone()
        assert row is not None
        timeline, end, replayed, made = row
        # The last replayed place is where the new timeline begins; a restart forgets it.
        reach = replayed if timeline > self._timeline and replayed is not None else end
        if self._made not in (None, made):
            reach = -1  # the name is the same, the schema is another one
        self._timeline, self._made = timeline, made
        for queue in [queue for queue, place in self._confirmed.items() if place > reach]:
            del self._confirmed[queue]
            losses.report(self._place, queue, 1)
