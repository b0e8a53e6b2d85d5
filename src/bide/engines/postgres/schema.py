"""Making the schema that a store is."""

import re
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql

from bide.model.errors import NotAStore, SchemaTooNew

__all__ = ["VERSION", "prepare"]

VERSION = 1
"""Of the tables and functions, as this bide makes and expects them."""

_NAME = re.compile(r"\bbide(?=\.|, pg_temp| FROM PUBLIC)")


def prepare(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make the schema if there is none; one process at a time does.

    Raises:
        NotAStore: a schema of that name exists, and bide did not make it.
        SchemaTooNew: a newer bide made it.
        psycopg.Error: the server refused.
    """
    if _version(connection, schema) == VERSION:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('bide schema'))")
        found = _version(connection, schema)
        if found == VERSION:
            return
        if found is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.execute(
            sql.SQL("SET LOCAL search_path = {}, pg_temp").format(sql.Identifier(schema))
        )
        plain = re.fullmatch("[a-z_][a-z0-9_]*", schema)
        quoted = schema if plain else sql.Identifier(schema).as_string(connection)
        for file in sorted(files(__package__).joinpath("schema").iterdir(), key=lambda f: f.name):
            connection.execute(_NAME.sub(quoted, file.read_text()).encode())
        connection.execute("INSERT INTO store VALUES (%s)", (VERSION,))


def _version(connection: psycopg.Connection[Any], schema: str) -> int | None:
    """Return the version of the schema, `None` if there is no such schema."""
    row = connection.execute(
        "SELECT to_regclass(format('%%I.store', %s::text)) IS NOT NULL,"
        " EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)",
        (schema, schema),
    ).fetchone()
    assert row is not None
    is_store, exists = row
    if not exists:
        return None
    if not is_store:
        raise NotAStore(
            f"the schema {schema!r} exists in this database, and bide did not make it; name "
            "another with ?schema=NAME, or drop it"
        )
    row = connection.execute(
        sql.SQL("SELECT version FROM {}.store").format(sql.Identifier(schema))
    ).fetchone()
    version = int(row[0]) if row is not None else 0
    if version > VERSION:
        raise SchemaTooNew(
            f"the schema {schema!r} is of version {version}, and this bide knows versions up to "
            f"{VERSION}: upgrade bide"
        )
    return version
