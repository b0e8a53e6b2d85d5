"""Messages whose rows cannot be read, for `bide doctor`."""

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from bide.engines.findings import Finding, of_messages
from bide.engines.postgres.reading import is_readable
from bide.engines.postgres.schema import VERSION
from bide.engines.postgres.settings import Settings

PAGE = 500
"""How many rows are fetched at a time."""

_MAY = """
SELECT CASE WHEN has_schema_privilege(oid, 'USAGE')
  THEN has_table_privilege(to_regclass(format('%%I.store', nspname)), 'SELECT') END,
  CASE WHEN has_schema_privilege(oid, 'USAGE')
  THEN has_table_privilege(to_regclass(format('%%I.message', nspname)), 'SELECT') END
FROM pg_namespace WHERE nspname = %s
"""

_ROWS = """
SELECT q.name, m.id, m.headers, m.failures, m.successor
FROM {schema}.message AS m LEFT JOIN {schema}.queue AS q ON q.id = m.queue
WHERE m.headers IS NOT NULL OR m.failures IS NOT NULL OR m.successor IS NOT NULL
"""
"""All that bide reads of a row and that is not typed: the others can be read."""


def soundness(
    connection: psycopg.Connection[Any], settings: Settings, longest: float
) -> Iterator[Finding]:
    """Look at messages for some seconds."""
    schema = sql.Identifier(settings.schema)
    is_store, reads = connection.execute(_MAY, (settings.schema,)).fetchone() or (None, None)
    if not is_store:
        return
    query = sql.SQL("SELECT version FROM {}.store").format(schema)
    if connection.execute(query).fetchone() != (VERSION,):
        return
    if not reads:
        yield Finding(
            "warning",
            f"this user may not read the tables of the schema {settings.schema!r}",
            "messages that cannot be read are not found",
            "ask as the user who owns the schema",
        )
        return
    looked_at = _looked_at(connection, sql.SQL(_ROWS).format(schema=schema), longest)
    yield from of_messages(looked_at, longest, settings.place, "rows", "tables")


def _looked_at(
    connection: psycopg.Connection[Any], query: sql.Composed, longest: float
) -> Iterator[str | None]:
    """Yield what cannot be read, and `None` after each page of rows."""
    try:
        with connection.transaction(), connection.cursor("bide_doctor") as cursor:
            # A page may take long: most rows have none of these texts.
            limit = max(1, int(min(longest, 1e6) * 1000))
            connection.execute("SELECT set_config('statement_timeout', %s, true)", (f"{limit}",))
            cursor.execute(query)
            while rows := cursor.fetchmany(PAGE):
                for queue, id, *texts in rows:
                    if not is_readable(*texts):
                        yield f"{id!r} in queue {queue!r}"
                yield None
    except psycopg.errors.QueryCanceled as error:
        raise TimeoutError from error
