"""What endangers a store on PostgreSQL: how the server writes, who follows it, who holds it up."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult

import psycopg
from psycopg.rows import namedtuple_row

from bide.engines.findings import Finding, other_version
from bide.engines.postgres.faults import translate
from bide.engines.postgres.schema import OLDEST, VERSION, catalog_only
from bide.engines.postgres.settings import Settings, is_pooled, read_url
from bide.engines.postgres.soundness import soundness

TESTED = (15, 18)
"""Versions of the server."""

LONG = 300
"""Seconds: a transaction that is open for longer than that keeps deleted rows in the tables."""

MANY_DEAD = 100_000

Ask = Callable[..., list[Any]]
"""Runs a query with arguments, and returns its rows with named columns."""


def examine(parts: SplitResult, longest: float) -> Sequence[Finding]:
    """Look at the server's settings, its state, and the messages.

    Raises:
        StoreError: the server cannot be reached or refused a question.
    """
    settings = read_url(parts)
    with settings.connect() as connection:

        def ask(query: str, *arguments: Any) -> list[Any]:
            with connection.cursor(row_factory=namedtuple_row) as cursor:
                return cursor.execute(query.encode(), arguments or None).fetchall()

        try:
            with catalog_only(connection):
                pooled = is_pooled(connection) and settings.listen == settings.url
                return [
                    *_version(connection.info.server_version // 10_000),
                    *(_pooler() if pooled else ()),
                    *_encoding(ask),
                    *_writing(ask),
                    *_standbys(ask),
                    *_slots(ask),
                    *_schema(ask, settings),
                    *_transactions(ask),
                    *soundness(connection, settings, longest),
                ]
        except psycopg.Error as error:
            raise translate(error, settings.place, sent=False) from error


def _version(version: int) -> Iterator[Finding]:
    if version < OLDEST:
        yield Finding(
            "danger", f"the server is PostgreSQL {version}",
            "the functions of the store cannot be made or fail", f"upgrade to {TESTED[-1]}",
        )  # fmt: skip
    elif version not in TESTED:
        yield Finding(
            "warning", f"the server is PostgreSQL {version}",
            "bide was not tested with this version",
            "try your own tests on it, or use " + " or ".join(map(str, TESTED)),
        )  # fmt: skip


def _pooler() -> Iterator[Finding]:
    yield Finding(
        "warning", "a pooler is between bide and the server, and the URL names no other way",
        "messages that other processes put are noticed up to a second late",
        "name the server's own address with ?listen=",
    )  # fmt: skip


def _encoding(ask: Ask) -> Iterator[Finding]:
    ((encoding,),) = ask("SELECT current_setting('server_encoding')")
    if encoding not in ("UTF8", "SQL_ASCII"):
        yield Finding(
            "warning", f"the encoding of the database is {encoding}",
            "ids, headers, results and errors with characters that it lacks cannot be stored",
            "use a database with ENCODING 'UTF8'",
        )  # fmt: skip


def _writing(ask: Ask) -> Iterator[Finding]:
    told = ask("SELECT name, setting FROM pg_settings")
    setting = {row.name: row.setting for row in told}
    for name in ("fsync", "full_page_writes"):
        if setting[name] != "on":
            yield Finding(
                "danger", f"{name} = {setting[name]}",
                "when the machine fails, the database may be broken as a whole",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
            )  # fmt: skip
    if setting["synchronous_commit"] == "off":
        yield Finding(
            "danger", "synchronous_commit = off",
            "a crash loses what was confirmed within the last second",
            "ALTER SYSTEM SET synchronous_commit = on; see ALTER ROLE and the URL, too",
        )  # fmt: skip
    elif setting["synchronous_commit"] == "local" and setting["synchronous_standby_names"]:
        yield Finding(
            "warning", "synchronous_commit = local",
            "a failover loses what the standby had not received yet",
            "ALTER SYSTEM SET synchronous_commit = remote_apply",
        )  # fmt: skip
    if setting["autovacuum"] != "on":
        yield Finding(
            "danger", "autovacuum = off",
            "deleted rows are never removed: claims get slower until the store stands still",
            "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
        )  # fmt: skip


def _standbys(ask: Ask) -> Iterator[Finding]:
    ((standby, names, sees),) = ask(
        "SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'),"
        " pg_has_role('pg_read_all_stats', 'USAGE')"
    )
    if standby:
        yield Finding(
            "danger", "this server is a standby", "it is read-only: nothing can be put or claimed",
            "name the primary, or several hosts with ?target_session_attrs=read-write",
        )  # fmt: skip
        return
    if not sees:
        yield Finding(
            "warning", "this user may not see standbys, nor transactions of other users",
            "dangers that come from them are not found",
            "as a superuser: GRANT pg_read_all_stats TO the user; or ask as another user",
        )  # fmt: skip
        return
    following = ask("SELECT sync_state FROM pg_stat_replication")
    synchronous = [row for row in following if row.sync_state in ("sync", "quorum")]
    if names and not synchronous:
        yield Finding(
            "danger", f"synchronous_standby_names = {names!r}, and none of them is connected",
            "commits wait for ever: nothing is put, claimed or acked",
            "start the standby, or ALTER SYSTEM RESET synchronous_standby_names",
        )  # fmt: skip
    elif not following:
        yield Finding(
            "warning", "no standby follows this server",
            "if its disk is lost, so is what came after the last backup",
            "set up a standby, or archive the WAL",
        )  # fmt: skip
    elif not names:
        yield Finding(
            "warning", "no standby is synchronous",
            "a failover loses what was confirmed a moment before",
            "set synchronous_standby_names, and synchronous_commit = remote_apply",
        )  # fmt: skip


def _slots(ask: Ask) -> Iterator[Finding]:
    for row in ask(
        "SELECT slot_name, wal_status, NOT pg_is_in_recovery()"
        " AND pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) > 1073741824 AS behind"
        " FROM pg_replication_slots WHERE NOT active"
    ):
        limited = row.wal_status in ("unreserved", "lost")
        yield Finding(
            "danger" if row.behind and not limited else "warning",
            f"nobody reads the replication slot {row.slot_name} (WAL: {row.wal_status})",
            "its standby must be copied anew" if row.wal_status == "lost" else
            "the server keeps all WAL for it until the disk is full, and stops",
            f"start what reads it, or SELECT pg_drop_replication_slot('{row.slot_name}'); "
            "and set max_slot_wal_keep_size",
        )  # fmt: skip


def _schema(ask: Ask, settings: Settings) -> Iterator[Finding]:
    schema = settings.schema
    ((there, usable, creates),) = ask(
        "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL,"
        " coalesce(has_schema_privilege(to_regnamespace(quote_ident(%s)), 'USAGE'), false),"
        " has_database_privilege(current_database(), 'CREATE')",
        schema, schema,
    )  # fmt: skip
    if not there:
        yield Finding(
            "warning" if creates else "danger", f"there is no schema {schema!r} yet",
            "the first use creates it" if creates else "this user may not create it",
            "bide init, as a user who may create schemas in this database",
        )  # fmt: skip
        return
    if not usable:
        yield Finding(
            "danger", f"this user may not use the schema {schema!r}", "every command fails",
            f"as its owner: SELECT {schema}.allow('USER')",
        )  # fmt: skip
        return
    name = '"' + schema.replace('"', '""') + '"'
    ((version,),) = ask(f"SELECT version FROM {name}.store")
    if version != VERSION:
        yield other_version("", version, VERSION, "its owner opens it with this bide")
    for row in ask(
        "SELECT pg_class.relname, relpersistence, coalesce(n_dead_tup, 0) AS dead,"
        " coalesce(n_live_tup, 0) AS live FROM pg_class"
        " LEFT JOIN pg_stat_all_tables ON relid = pg_class.oid"
        " WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relkind = 'r'",
        schema,
    ):
        if row.relpersistence != "p":
            yield Finding(
                "danger", f"the table {schema}.{row.relname} is not logged",
                "it is empty after a crash, and on a standby",
                f"ALTER TABLE {schema}.{row.relname} SET LOGGED",
            )  # fmt: skip
        if row.dead > max(MANY_DEAD, 5 * row.live):
            yield Finding(
                "warning", f"the table {schema}.{row.relname} has {row.dead:,} deleted rows",
                "the disk fills, and reads get slower",
                "end old transactions, and see that autovacuum keeps up",
            )  # fmt: skip


def _transactions(ask: Ask) -> Iterator[Finding]:
    for row in ask(
        "SELECT pid::text AS who, usename AS role, extract(epoch FROM now() - xact_start) AS age"
        " FROM pg_stat_activity"
        " WHERE now() - xact_start > %s * interval '1 s' AND backend_xmin IS NOT NULL"
        " UNION ALL SELECT 'prepared ' || gid, owner, extract(epoch FROM now() - prepared)"
        " FROM pg_prepared_xacts WHERE now() - prepared > %s * interval '1 s'",
        LONG, LONG,
    ):  # fmt: skip
        yield Finding(
            "warning",
            f"a transaction of {row.role} ({row.who}) is {float(row.age) / 60:.0f} minutes old",
            "deleted rows stay in the tables until it ends: the disk fills, and reads get slower",
            f"end it: SELECT pg_terminate_backend({row.who})" if row.who.isdigit() else
            f"end it: ROLLBACK PREPARED '{row.who.removeprefix('prepared ')}'",
        )  # fmt: skip
