"""Making the schema that a store is."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql

from bide.engines.postgres.bounded_connection import BoundedConnection, patient
from bide.model.errors import AccessDenied, NotAStore, SchemaTooNew, StoreError

_FILES = files(__package__).joinpath("schema")
MIGRATIONS = {
    int(file.name.removesuffix(".sql")): file for file in _FILES.joinpath("migrations").iterdir()
}
_FUNCTIONS = sorted(_FILES.joinpath("functions").iterdir(), key=lambda file: file.name)

VERSION = max(MIGRATIONS)
"""Of the tables and functions, as this bide makes and expects them. A change of a function that
callers of another version would notice needs a migration too, if an empty one."""

OLDEST = 14
"""The functions need this version of the server."""

_AS_WRITTEN = """
SET LOCAL search_path = {}, pg_temp; SET LOCAL client_min_messages = warning;
SET LOCAL standard_conforming_strings = on; SET LOCAL plpgsql.extra_errors = none
"""
"""Lets the files mean the same whatever the user's settings are."""

_NAME = re.compile(r"(?<!')\bbide(?=\.|, pg_temp| FROM PUBLIC)")


@contextmanager
def catalog_only(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Find functions and operators among those of the server alone, for the length of a block.

    Otherwise one of another user's, in a schema of `search_path`, is called if it fits better.
    """
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        yield


def prepare(connection: BoundedConnection, schema: str) -> None:
    """Make the schema if there is none, or bring it up to date; one process at a time does.

    Raises:
        NotAStore: a schema of that name exists, and bide did not make it.
        SchemaTooNew: a newer bide made it.
        AccessDenied: it is of an older bide, and this user does not own it.
        StoreError: the server is too old.
        psycopg.Error: the server refused.
    """
    with catalog_only(connection):  # alone: it keeps its locks until the end of the transaction
        if _version(connection, schema) == VERSION:
            return
    server = connection.info.server_version // 10_000
    if server < OLDEST:
        raise StoreError(
            f"the server is PostgreSQL {server}, and bide needs {OLDEST} or newer: "
            "upgrade the server"
        )
    with patient(connection), catalog_only(connection):
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('bide schema'))")
        found = _version(connection, schema)
        if found == VERSION:
            return
        name = sql.Identifier(schema)
        if found is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        else:
            _drop_functions(connection, schema, found)
        connection.execute(sql.SQL(_AS_WRITTEN).format(name))
        quoted = name.as_string(connection)
        newer = [MIGRATIONS[number] for number in sorted(MIGRATIONS) if number > (found or 0)]
        for file in [*newer, *_FUNCTIONS]:
            connection.execute(_NAME.sub(lambda _: quoted, file.read_text()).encode())
        connection.execute("DELETE FROM store")
        connection.execute("INSERT INTO store VALUES (%s)", (VERSION,))


def _drop_functions(connection: psycopg.Connection[Any], schema: str, version: int) -> None:
    """Drop what is not for people, so that no function of an older version is left.

    The others are replaced: views and functions of the user's may depend on them. The rest of the
    transaction has the rights of the owner, who is to own the new functions: those of a superuser
    would run with all rights, on tables of a user with fewer.
    """
    place = sql.Identifier(schema).as_string(connection)
    owner, may = connection.execute(
        "SELECT pg_get_userbyid(relowner), pg_has_role(relowner, 'USAGE') FROM pg_class"
        " WHERE relname = 'store' AND relnamespace = %s::regnamespace",
        (place,),
    ).fetchone() or ("", False)
    if not may:
        raise AccessDenied(
            f"the schema {schema!r} is of version {version}, and this bide needs {VERSION}: "
            "open the store once as the user who owns the schema (bide init), who brings it "
            "up to date"
        )
    functions = connection.execute(
        "SELECT format('DROP FUNCTION %%s', oid::regprocedure) FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace AND starts_with(proname, '_')",
        (place,),
    ).fetchall()
    for (statement,) in functions:
        connection.execute(statement.encode())
    connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(owner)))


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
            f"{VERSION}: upgrade bide; or, if no newer bide but a draft of the first one made it, "
            "export each queue with the version that wrote it, then import"
        )
    return version
