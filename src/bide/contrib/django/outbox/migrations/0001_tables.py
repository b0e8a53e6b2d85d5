"""Make the tables of the outbox, in the database whose transactions puts join."""

from typing import Any

from django.db import migrations

from bide.contrib.django.conf import configuration
from bide.outbox.rows import CREATE_TABLES, TABLES, check_empty


def make(apps: Any, editor: Any) -> None:
    """Make the tables; a forwarder may have made them before."""
    if editor.connection.alias == configuration().database:
        for statement in CREATE_TABLES.get(editor.connection.vendor, ()):
            editor.execute(statement)


def drop(apps: Any, editor: Any) -> None:
    """Drop the tables, unless commands are in them."""
    if editor.connection.alias == configuration().database:
        with editor.connection.cursor() as cursor:
            tables = editor.connection.introspection.table_names(cursor)

            def count(table: str) -> int:
                if table not in tables:
                    return 0
                cursor.execute(f"SELECT count(*) FROM {table}")
                return int(cursor.fetchone()[0])

            check_empty(count, "delete them from the table")
        for table in TABLES:
            editor.execute(f"DROP TABLE IF EXISTS {table}")


class Migration(migrations.Migration):
    """The only migration."""

    initial = True
    operations = (migrations.RunPython(make, drop),)
