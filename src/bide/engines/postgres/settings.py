"""Where the server is, and which schema is the store: what a URL says."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from bide.engines.postgres.bounded_connection import TIMEOUT, BoundedConnection
from bide.engines.postgres.faults import translate
from bide.engines.registry import seconds
from bide.model.errors import InvalidArgument, StoreUnavailable

OWN_OPTIONS = ("schema", "listen", "reconnect", "timeout")
"""Options of a URL that are bide's; all others are libpq's."""

SHORTEST_TIMEOUT = 0.1
"""The shortest `timeout`, in seconds."""

PATH_NOT_RESOLVED = "failed to resolve host '/"
"""How psycopg begins an error about the path of a socket, which it does not resolve: it took an
`OSError` of a signal handler for one of a lookup."""


@dataclass(frozen=True)
class PostgresSettings:
    """How to reach a store."""

    url: str
    """As libpq takes it."""
    listen: str
    """The same for LISTEN: a direct address where `url` is that of a pooler."""
    schema: str
    reconnect: float
    """Seconds: how long to try to connect to a lost server again."""
    timeout: float
    """Seconds for which the server may be silent while an answer is due."""
    shown: str
    """Host and database, as errors name them."""

    @property
    def identifier(self) -> sql.Identifier:
        """The schema, quoted."""
        return sql.Identifier(self.schema)

    def connect(self, *, to_listen: bool = False) -> BoundedConnection:
        """Open a connection.

        A signal handler may run meanwhile and raise. What it raises reaches the caller, also where
        psycopg makes an error of its own of it.

        Args:
            to_listen: whether the connection is for notifications, which have a URL of their own.

        Raises:
            StoreError: the server cannot be reached.
        """
        url = self.listen if to_listen else self.url
        try:
            psycopg.capabilities.has_pipeline(check=True)  # says which libpq is too old
            connection = BoundedConnection.open(url, self.timeout, name="bide")
        except psycopg.ProgrammingError as error:
            # When psycopg reads a number of the URL, it makes a wrong number of any exception, also
            # of that of a signal handler.
            cause = error.__context__
            if cause is not None and not isinstance(cause, (ValueError, psycopg.Error)):
                raise cause from None
            raise translate(error, self.shown, sent=False) from error
        except psycopg.Error as error:
            if str(error).startswith(PATH_NOT_RESOLVED):  # a signal has interrupted it: try again
                return self.connect(to_listen=to_listen)
            raise translate(error, self.shown, sent=False) from error
        except OSError as error:
            if error.errno is None:  # the system sets it, so a signal handler has raised this
                raise
            # To wait for the server, psycopg opens one more file.
            raise StoreUnavailable(
                f"{self.shown}: no connection can be opened ({error}): see how many files this "
                "process may open (ulimit -n)"
            ) from error
        connection.isolation_level = (
            psycopg.IsolationLevel.READ_COMMITTED
        )  # psycopg says it in each BEGIN
        return connection


def libpq_url(parts: SplitResult) -> str:
    """Return a URL as libpq takes it, without the options that are bide's.

    What libpq reads stays as it was written: it knows no `+` for a space, and `urlunsplit` drops
    the slashes of a URL without a host.
    """
    options = [
        option for option in parts.query.split("&") if option.partition("=")[0] not in OWN_OPTIONS
    ]
    query = f"?{'&'.join(options)}" if any(options) else ""
    return f"postgresql://{parts.netloc}{parts.path}{query}"


def read_url(parts: SplitResult) -> PostgresSettings:
    """Return what a URL says; all options but those of `OWN_OPTIONS` are libpq's.

    Raises:
        InvalidArgument: the URL is of another form.
    """
    options = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in options if name in OWN_OPTIONS}
    url = libpq_url(parts)
    try:
        address = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidArgument(f"the postgresql:// URL is wrong: {error}") from None
    schema = own.get("schema", "bide")
    has_length = 1 <= len(schema.encode()) <= 63
    is_reserved = schema.startswith("pg_")
    if not has_length or not schema.isprintable() or is_reserved or "$$" in schema:
        raise InvalidArgument(
            f"schema={schema!r} is not a valid schema: 1 to 63 bytes, no control characters, "
            "not pg_..., and no $$"
        )
    host, port = address.get("host") or "localhost", address.get("port")
    has_one_port = port and "," not in str(port)  # several hosts are shown without their ports
    shown_port = f":{port}" if has_one_port else ""
    database = address.get("dbname") or address.get("user") or ""  # as libpq chooses it
    reconnect = seconds(own.get("reconnect", "5s"), "reconnect")
    timeout = seconds(own.get("timeout", f"{TIMEOUT}"), "timeout")
    if timeout < SHORTEST_TIMEOUT:
        raise InvalidArgument(
            f"?timeout={timeout:g} is too short; it is {SHORTEST_TIMEOUT} s or more"
        )
    return PostgresSettings(
        url=url,
        listen=own.get("listen", url),
        schema=schema,
        reconnect=reconnect,
        timeout=timeout,
        shown=f"{host}{shown_port}/{database}",
    )


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether there is a pooler: the backend that it names is not that of the server.

    Statements cannot be prepared then, because the next transaction may have another backend, and
    notifications do not arrive.
    """
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row != (connection.info.backend_pid,)
