"""Making the schema that a store is."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import errors, sql

from bide.engines.constants import with_constants
from bide.engines.postgres.bounded_connection import BoundedConnection, patient
from bide.engines.postgres.constants import CONSTANTS
from bide.model.errors import AccessDenied, NotAStore, SchemaTooNew, StoreError

_FILES = files(__package__).joinpath("schema")
MIGRATIONS = {
    int(file.name.removesuffix(".sql")): file for file in _FILES.joinpath("migrations").iterdir()
}
"""By version: the file that brings a store of the version before up to it."""

_FUNCTIONS = sorted(_FILES.joinpath("functions").iterdir(), key=lambda file: file.name)
"""The files of functions, in the order in which they are executed: a function in SQL needs those
that it calls."""

VERSION = max(MIGRATIONS)
"""Of the tables and functions, as this bide makes and expects them. A change of a function that
callers of another version would notice needs a migration too, if an empty one."""

OLDEST = 14
"""The functions need this version of the server, or a newer one."""

_SETTINGS = """
SET LOCAL search_path = {}, pg_temp; SET LOCAL client_min_messages = warning;
SET LOCAL standard_conforming_strings = on; SET LOCAL plpgsql.extra_errors = none
"""
"""Lets the files mean the same whatever the user's settings are."""

_SCHEMA_IN_FILES = re.compile(r"(?<!')\bbide(?=\.|, pg_temp| FROM PUBLIC)")
"""Where the files name the schema: `bide` is there for that of the store."""


def function_texts() -> list[str]:
    """Return the files of functions, with numbers in place of the names of constants.

    Migrations have their numbers in them: what they did stays, whatever becomes of a constant.
    """
    return [with_constants(file.read_text(), CONSTANTS) for file in _FUNCTIONS]


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
        AccessDenied: an older bide made it, and only its owner can bring it up to date; or this
            user must not call functions of its owner (see `check_owner`).
        StoreError: the server is too old.
        psycopg.Error: the server refused.
    """
    # A transaction of its own: else the look at the tables would lock them until `_make` is done.
    with catalog_only(connection):
        check_owner(connection, schema)
        if _version(connection, schema) == VERSION:
            return
    server = connection.info.server_version // 10_000
    if server < OLDEST:
        raise StoreError(
            f"the server is PostgreSQL {server}, and bide needs {OLDEST} or newer: "
            "upgrade the server"
        )
    with patient(connection):
        try:
            _make(connection, schema)
        except (errors.DuplicateSchema, errors.UniqueViolation):  # another has made it meanwhile
            _make(connection, schema)


def _make(connection: BoundedConnection, schema: str) -> None:
    """Make the schema, or bring it up to date, unless another process has done so meanwhile.

    Raises:
        psycopg.Error: as above; `DuplicateSchema` and `UniqueViolation` if another makes it now.
    """
    with catalog_only(connection):
        check_owner(connection, schema)
        version = _version(connection, schema)
        name = sql.Identifier(schema)
        if version is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))  # one process at a time
        else:
            owner = _lock_store(connection, schema, version)
            if _version(connection, schema) == VERSION:
                return
            _drop_functions(connection, schema, owner)
        connection.execute(sql.SQL(_SETTINGS).format(name))
        quoted_name = name.as_string(connection)
        missing = [MIGRATIONS[number] for number in sorted(MIGRATIONS) if number > (version or 0)]
        for text in [*(file.read_text() for file in missing), *function_texts()]:
            connection.execute(_SCHEMA_IN_FILES.sub(lambda _: quoted_name, text).encode())
        connection.execute("DELETE FROM store")
        connection.execute("INSERT INTO store VALUES (%s)", (VERSION,))


def _lock_store(connection: psycopg.Connection[Any], schema: str, version: int) -> str:
    """Lock a schema that is not of this version, for one process; return its owner.

    Raises:
        AccessDenied: this user does not own it.
    """
    table = sql.Identifier(schema, "store")
    owner, acts_for_owner = connection.execute(
        "SELECT pg_get_userbyid(relowner), pg_has_role(relowner, 'USAGE') FROM pg_class"
        " WHERE oid = %s::regclass",
        (table.as_string(connection),),
    ).fetchone() or ("", False)
    if not acts_for_owner:
        raise AccessDenied(
            f"the schema {schema!r} is of version {version}, and this bide needs {VERSION}: "
            "open the store once as the user who owns the schema (bide init), who brings it "
            "up to date"
        )
    # No process adds counters up meanwhile: that locks the row of this table first.
    connection.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(table))
    return str(owner)


def _drop_functions(connection: psycopg.Connection[Any], schema: str, owner: str) -> None:
    """Drop what is not for people, so that no function of an older version is left.

    The others are replaced: views and functions of the user's may depend on them. The rest of the
    transaction has the rights of the owner, who is to own the new functions: those of a superuser
    would run with all rights, on tables of a user with fewer.
    """
    functions = connection.execute(
        "SELECT format('DROP FUNCTION %%s', oid::regprocedure) FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace AND starts_with(proname, '_')",
        (sql.Identifier(schema).as_string(connection),),
    ).fetchall()
    for (statement,) in functions:
        connection.execute(statement.encode())
    connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(owner)))


_OTHER_OWNER = """
WITH RECURSIVE mine AS (
  SELECT oid FROM pg_roles WHERE rolname IN (session_user, current_user)
  UNION SELECT roleid FROM pg_auth_members JOIN mine ON member = mine.oid
), owner AS (
  SELECT nspowner AS oid FROM pg_namespace WHERE nspname = %s
  UNION SELECT relowner FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace
    WHERE nspname = %s AND relname = 'store'
)
SELECT rolname FROM pg_roles AS r JOIN owner USING (oid)
WHERE NOT rolsuper AND oid NOT IN (SELECT oid FROM mine) AND EXISTS (
  SELECT FROM pg_roles WHERE rolname IN (session_user, current_user) AND rolsuper)
"""
"""The owner of the schema or of its table `store`, if that is an ordinary user, this one is a
superuser, and this one is no member of the owner: else no row."""


def check_owner(connection: psycopg.Connection[Any], schema: str) -> None:
    """Refuse to let a superuser run the functions of an ordinary user, who may have made them.

    A superuser has all rights, and any user who may create schemas can make one first that looks
    like a store.

    Raises:
        AccessDenied: this user is a superuser, and is no member of the role that owns the schema.
    """
    row = connection.execute(_OTHER_OWNER, (schema, schema)).fetchone()
    if row is not None:
        (owner,) = row
        raise AccessDenied(
            f"the schema {schema!r} belongs to {owner!r}, whose functions would run with the "
            f"rights of a superuser: connect as {owner!r}, or, if you trust this user, GRANT "
            f"{owner} to the user of the URL"
        )


def _version(connection: psycopg.Connection[Any], schema: str) -> int | None:
    """Return the version of the schema, 0 if none is noted; `None` if there is no such schema.

    Raises:
        NotAStore: bide did not make it.
        SchemaTooNew: a newer bide made it.
    """
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
