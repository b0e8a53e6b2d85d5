"""What endangers a store on PostgreSQL: settings for writes, standbys, old transactions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from bide.engines.findings import Finding, Unreadable, findings, of_messages, other_version
from bide.engines.postgres.bounded_connection import patient
from bide.engines.postgres.faults import translate
from bide.engines.postgres.reading import is_readable
from bide.engines.postgres.schema import OLDEST, VERSION, catalog_only, check_owner
from bide.engines.postgres.settings import PostgresSettings, is_pooled, read_url

TESTED = (15, 18)
"""The versions of the server with which bide is tested."""

LONG_SECONDS = 300
"""A transaction that is open for longer than that keeps deleted rows in the tables."""

MANY_DEAD_ROWS = 100_000
"""A table with more deleted rows than that, and five times as many as others, is a finding."""

PAGE = 500
"""The number of rows of messages that are fetched at a time."""

_SLOT_CONSEQUENCES = {
    None: "it keeps no WAL yet",
    "unreserved": "WAL that its reader needs is removed at the next checkpoint",
    "lost": "its reader has lost WAL that it needs, and cannot go on",
}
"""What a replication slot without a reader means, by its `wal_status`."""

Ask = Callable[..., list[Any]]
"""Runs a query with arguments, and returns its rows with named columns."""


def examine(parts: SplitResult, longest: float) -> Sequence[Finding]:
    """Look at the server's settings, its state, and the messages.

    Args:
        parts: the URL of the store.
        longest: for how many seconds messages are read at most.

    Raises:
        StoreError: the server cannot be reached or refused a question.
    """
    settings = read_url(parts)
    with settings.connect() as connection, patient(connection):

        def ask(query: str, *arguments: Any) -> list[Any]:
            """Be an `Ask`."""
            with connection.cursor(row_factory=namedtuple_row) as cursor:
                return cursor.execute(query.encode(), arguments or None).fetchall()

        try:
            with catalog_only(connection):
                check_owner(connection, settings.schema)
                pooled = is_pooled(connection) and settings.listen == settings.url
                return [
                    *_version(connection.info.server_version // 10_000),
                    *_pooler(pooled),
                    *_writing(ask),
                    *_standbys(ask),
                    *_slots(ask),
                    *_schema(ask, settings),
                    *_transactions(ask),
                    *_messages(ask, connection, settings, longest),
                ]
        except psycopg.Error as error:
            raise translate(error, settings.shown, sent=False) from error


def _version(version: int) -> list[Finding]:
    """Look at the major version of the server."""
    return findings(
        (
            version < OLDEST,
            "danger",
            f"the server is PostgreSQL {version}",
            "the functions of the store cannot be made or fail",
            f"upgrade to {TESTED[-1]}",
        ),
        (
            version >= OLDEST and version not in TESTED,
            "warning",
            f"the server is PostgreSQL {version}",
            "bide was not tested with this version",
            "try your own tests on it, or use " + " or ".join(map(str, TESTED)),
        ),
    )


def _pooler(pooled: bool) -> list[Finding]:
    """Say that a pooler keeps notifications away."""
    return findings(
        (
            pooled,
            "warning",
            "a pooler is between bide and the server, and the URL names no other way",
            "messages that other processes put are noticed up to a second late",
            "name the server's own address with ?listen=",
        )
    )


def _writing(ask: Ask) -> list[Finding]:
    """Look at the settings by which the server writes to its disk."""
    setting = {row.name: row.setting for row in ask("SELECT name, setting FROM pg_settings")}
    encoding, commit = setting["server_encoding"], setting["synchronous_commit"]
    broken = "when the machine fails, the database may be broken as a whole"
    alter, reload = "ALTER SYSTEM SET", "SELECT pg_reload_conf()"
    return findings(
        (
            encoding not in ("UTF8", "SQL_ASCII"),
            "danger",
            f"the encoding of the database is {encoding}",
            "ids, groups and names with characters that it lacks are refused, in SQL also bodies",
            "use a database with ENCODING 'UTF8'",
        ),
        *(
            (
                setting[name] != "on",
                "danger",
                f"{name} = {setting[name]}",
                broken,
                f"{alter} {name} = on; {reload}",
            )
            for name in ("fsync", "full_page_writes")
        ),
        (
            commit == "off",
            "danger",
            "synchronous_commit = off",
            "a crash loses what was confirmed within the last second",
            f"{alter} synchronous_commit = on; see ALTER ROLE and the URL, too",
        ),
        (
            commit == "local" and bool(setting["synchronous_standby_names"]),
            "warning",
            "synchronous_commit = local",
            "a failover loses what the standby had not received yet",
            f"{alter} synchronous_commit = remote_apply",
        ),
        (
            setting["autovacuum"] != "on",
            "danger",
            "autovacuum = off",
            "deleted rows are never removed: claims get slower until the store is unusable",
            f"{alter} autovacuum = on; {reload}",
        ),
    )


def _standbys(ask: Ask) -> list[Finding]:
    """Look whether this is a standby, and which standbys follow."""
    ((is_standby, synchronous_names, sees_all),) = ask(
        "SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'),"
        " pg_has_role('pg_read_all_stats', 'USAGE')"
    )
    following = ask("SELECT sync_state FROM pg_stat_replication")
    has_synchronous = any(row.sync_state in ("sync", "quorum") for row in following)
    return findings(
        (
            is_standby,
            "danger",
            "this server is a standby",
            "it is read-only: nothing can be put or claimed",
            "name the primary, or several hosts with ?target_session_attrs=read-write",
        ),
        (
            not is_standby and not sees_all,
            "warning",
            "this user may not see standbys, nor transactions of other users",
            "dangers that come from them are not found",
            "as a superuser: GRANT pg_read_all_stats TO the user; or ask as another user",
        ),
        (
            not is_standby and sees_all and bool(synchronous_names) and not has_synchronous,
            "danger",
            f"synchronous_standby_names = {synchronous_names!r}, and none of them is connected",
            "commits wait for ever: nothing is put, claimed or acked",
            "start the standby, or ALTER SYSTEM RESET synchronous_standby_names",
        ),
        (
            not is_standby and sees_all and not synchronous_names and not following,
            "warning",
            "no standby follows this server",
            "if its disk is lost, so is what came after the last backup",
            "set up a standby, or archive the WAL",
        ),
        (
            not is_standby and sees_all and not synchronous_names and bool(following),
            "warning",
            "no standby is synchronous",
            "a failover loses messages confirmed just before",
            "set synchronous_standby_names, and synchronous_commit = remote_apply",
        ),
    )


def _slots(ask: Ask) -> Iterator[Finding]:
    """Look for replication slots that no client reads: the server keeps its log (WAL) for them."""
    for row in ask(
        "SELECT slot_name, wal_status, NOT pg_is_in_recovery()"
        " AND pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) > 1073741824 AS behind,"
        " current_setting('max_slot_wal_keep_size') <> '-1' AS limited"
        " FROM pg_replication_slots WHERE NOT active"
    ):
        if row.limited:
            otherwise = "the server keeps WAL for it, up to max_slot_wal_keep_size"
        else:
            otherwise = "the server keeps all WAL for it until the disk is full, and stops"
        drop = f"SELECT pg_drop_replication_slot('{row.slot_name}')"
        if row.wal_status == "lost":
            fix = f"{drop}, and make its reader anew"
        else:
            fix = f"start what reads it, or {drop}"
        yield Finding(
            "danger" if row.behind and not row.limited else "warning",
            f"the replication slot {row.slot_name} has no reader (WAL: {row.wal_status or 'none'})",
            _SLOT_CONSEQUENCES.get(row.wal_status, otherwise),
            fix if row.limited else f"{fix}; and set max_slot_wal_keep_size",
        )


def _schema(ask: Ask, settings: PostgresSettings) -> list[Finding]:
    """Look at the schema: whether this user may use it, its version, and its tables."""
    schema = settings.schema
    ((exists, may_use, may_create),) = ask(
        "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL,"
        " coalesce(has_schema_privilege(to_regnamespace(quote_ident(%s)), 'USAGE'), false),"
        " has_database_privilege(current_database(), 'CREATE')",
        schema,
        schema,
    )
    if not (exists and may_use):
        return findings(
            (
                not exists,
                "warning" if may_create else "danger",
                f"there is no schema {schema!r} yet",
                "the first use creates it" if may_create else "this user may not create it",
                "bide init, as a user who may create schemas in this database",
            ),
            (
                exists,
                "danger",
                f"this user may not use the schema {schema!r}",
                "every command fails",
                f"as its owner: SELECT {schema}.allow('USER')",
            ),
        )
    of_schema: list[Finding] = []
    version = _version_of(ask, settings)
    if version != VERSION:
        of_schema.append(other_version("", version, VERSION, "its owner opens it with this bide"))
    for row in ask(
        "SELECT pg_class.relname, relpersistence, coalesce(n_dead_tup, 0) AS dead,"
        " coalesce(n_live_tup, 0) AS live FROM pg_class"
        " LEFT JOIN pg_stat_all_tables ON relid = pg_class.oid"
        " WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relkind = 'r'",
        schema,
    ):
        table = f"{schema}.{row.relname}"
        of_schema += findings(
            (
                row.relpersistence != "p",
                "danger",
                f"the table {table} is not logged",
                "it is empty after a crash, and on a standby",
                f"ALTER TABLE {table} SET LOGGED",
            ),
            (
                row.dead > max(MANY_DEAD_ROWS, 5 * row.live),
                "warning",
                f"the table {table} has {row.dead:,} deleted rows",
                "the disk fills, and reads get slower",
                "end old transactions, and see that autovacuum keeps up",
            ),
        )
    return of_schema


def _version_of(ask: Ask, settings: PostgresSettings) -> int:
    """Return the version of the schema."""
    ((version,),) = ask(f"SELECT version FROM {settings.identifier.as_string()}.store")
    return int(version)


def _transactions(ask: Ask) -> Iterator[Finding]:
    """Look for old transactions, also prepared ones, for which deleted rows are kept."""
    for row in ask(
        "SELECT pid::text AS who, usename AS role, extract(epoch FROM now() - xact_start) AS age"
        " FROM pg_stat_activity"
        " WHERE now() - xact_start > %s * interval '1 s' AND backend_xmin IS NOT NULL"
        " UNION ALL SELECT 'prepared ' || gid, owner, extract(epoch FROM now() - prepared)"
        " FROM pg_prepared_xacts WHERE now() - prepared > %s * interval '1 s'",
        LONG_SECONDS,
        LONG_SECONDS,
    ):
        yield Finding(
            "warning",
            f"a transaction of {row.role} ({row.who}) is {float(row.age) / 60:.0f} minutes old",
            "deleted rows stay in the tables until it ends: the disk fills, and reads get slower",
            f"end it: SELECT pg_terminate_backend({row.who})"
            if row.who.isdigit()
            else f"end it: ROLLBACK PREPARED '{row.who.removeprefix('prepared ')}'",
        )


_RIGHTS = """
SELECT CASE WHEN has_schema_privilege(oid, 'USAGE')
  THEN has_table_privilege(to_regclass(format('%%I.store', nspname)), 'SELECT') END AS is_store,
  CASE WHEN has_schema_privilege(oid, 'USAGE')
  THEN has_table_privilege(to_regclass(format('%%I.message', nspname)), 'SELECT') END AS reads
FROM pg_namespace WHERE nspname = %s
"""
"""Whether this user may read the table `store`, and that of messages; null: there is none, or the
schema is not for this user. No row: there is no schema."""

_ROWS = """
SELECT q.name, m.id, m.headers, m.failures, m.successor, m.progress
FROM {schema}.message AS m LEFT JOIN {schema}.queue AS q ON q.id = m.queue
WHERE m.headers IS NOT NULL OR m.failures IS NOT NULL OR m.successor IS NOT NULL
  OR m.progress IS NOT NULL
"""
"""The texts in rows of messages that may be unreadable: all other columns have types of the server.
Rows without such texts are left out."""


def _messages(
    ask: Ask, connection: psycopg.Connection[Any], settings: PostgresSettings, longest: float
) -> Iterator[Finding]:
    """Look for messages whose rows cannot be read, for `longest` seconds at most."""
    rights = next(iter(ask(_RIGHTS, settings.schema)), None)
    if rights is None or not rights.is_store or _version_of(ask, settings) != VERSION:
        return
    yield from findings(
        (
            not rights.reads,
            "warning",
            f"this user may not read the tables of the schema {settings.schema!r}",
            "messages that cannot be read are not found",
            "ask as the user who owns the schema",
        )
    )
    if rights.reads:
        query = sql.SQL(_ROWS).format(schema=settings.identifier)
        unreadable = _unreadable(connection, query, longest)
        yield from of_messages(unreadable, longest, settings.shown, "rows", "tables")


def _unreadable(
    connection: psycopg.Connection[Any], query: sql.Composed, longest: float
) -> Iterator[Unreadable | None]:
    """Yield the messages that cannot be read, and `None` after each page of rows.

    Raises:
        TimeoutError: a page took longer than `longest` seconds.
    """
    try:
        with connection.transaction(), connection.cursor("bide_doctor") as cursor:
            # A page may take long: most rows have none of these texts. A second at least, so that
            # the server has time to close the cursor after the last page.
            limit_ms = 1_000 * int(max(1.0, min(longest, 1e6)))
            connection.execute("SELECT set_config('statement_timeout', %s, true)", (f"{limit_ms}",))
            cursor.execute(query)
            while rows := cursor.fetchmany(PAGE):
                for queue, id, *texts in rows:
                    if not is_readable(*texts):
                        yield Unreadable(f"{id!r} in queue {queue!r}")
                yield None
    except psycopg.errors.QueryCanceled as error:
        raise TimeoutError from error
