"""What a session on the server is set up with, whatever its user, database and search path say."""

from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from bide.engines.postgres.schema import catalog_only, owner, prepare
from bide.engines.postgres.settings import is_pooled
from bide.engines.postgres.witness import Witness

DIRECT, FOR_OTHERS = "_put_one", "_put_one_as_owner"
"""Functions that put one message: with the rights and settings of the session, and with its own."""


class Session(NamedTuple):
    """What a session is like."""

    pooled: bool
    """Whether it is shared with others, who would have to live with its settings."""
    put_function: str


def begin(connection: psycopg.Connection[Any], schema: str, witness: Witness) -> Session:
    """Begin a session for the commands of an engine.

    Raises:
        StoreError: the store cannot be made or brought up to date; see `prepare`.
        psycopg.Error: the server refused.
    """
    prepare(connection, schema)
    with catalog_only(connection):
        witness.compare(connection)
        pooled = is_pooled(connection)
        direct = not pooled and _is_owner(connection, schema)
    if not pooled:
        connection.execute("SET default_transaction_isolation = 'read committed'")
    if direct:
        _act_as_owner(connection, schema)
    return Session(pooled, DIRECT if direct else FOR_OTHERS)


def _is_owner(connection: psycopg.Connection[Any], schema: str) -> bool:
    """Whether the user is the owner of the store, and not another one that acts for it."""
    row = connection.execute(
        "SELECT session_user = %s AND session_user = current_user", (owner(connection, schema),)
    ).fetchone()
    return row == (True,)


def _act_as_owner(connection: psycopg.Connection[Any], schema: str) -> None:
    """Set up a session as the schema's functions do for themselves.

    Then `_put_one` can be called directly: to set and reset the user and the settings at each call
    takes a twentieth of the server's time for a put.
    """
    connection.execute(sql.SQL("SET search_path = {}, pg_temp").format(sql.Identifier(schema)))
    connection.execute("SET lock_timeout = '250ms'")
