"""The outbox of bide as tables of SQLAlchemy.

A put `within=session` needs nothing of this module. It is for programs that create their tables
from their metadata, look into the outbox, or use Alembic (`bide.contrib.alembic`).
"""

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    DateTime,
    Identity,
    Integer,
    MetaData,
    Table,
    Text,
    event,
    func,
)

__all__ = ["is_own", "outbox_dead_table", "outbox_table"]

OUTBOX, OUTBOX_DEAD = "bide_outbox", "bide_outbox_dead"

VACUUM = DDL(  # type: ignore[no-untyped-call]
    "ALTER TABLE %(fullname)s SET"
    " (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)"
)
"""Rows come and go: their number is small, and that of dead ones is not."""


def outbox_table(metadata: MetaData) -> Table:
    """Return the table of commands that wait for the forwarder; it is made if it is not there.

    `metadata.create_all` creates it on PostgreSQL and SQLite as `bide forward` does. Only bide
    writes to it: put with `within=session`.

    Args:
        metadata: of the program, as `Base.metadata`.

    Example:
        >>> from sqlalchemy import MetaData
        >>> outbox_table(MetaData()).columns.keys()
        ['number', 'queue', 'id', 'command']
    """
    if (known := _known(metadata, OUTBOX)) is not None:
        return known
    number = Column("number", _NUMBER, Identity(always=True), primary_key=True)
    table = Table(OUTBOX, metadata, number, *_command_columns(), sqlite_autoincrement=True)
    event.listen(table, "after_create", VACUUM.execute_if(dialect="postgresql"))
    return table


def outbox_dead_table(metadata: MetaData) -> Table:
    """Return the table of commands that the store has refused, with the reasons.

    Args:
        metadata: of the program, as `Base.metadata`.

    Example:
        >>> from sqlalchemy import MetaData
        >>> outbox_dead_table(MetaData()).columns.keys()
        ['number', 'queue', 'id', 'command', 'reason', 'died']
    """
    if (known := _known(metadata, OUTBOX_DEAD)) is not None:
        return known
    return Table(
        OUTBOX_DEAD,
        metadata,
        Column("number", _NUMBER, primary_key=True, autoincrement=False),
        *_command_columns(),
        Column("reason", Text, nullable=False),
        Column("died", DateTime(timezone=True), nullable=False, server_default=func.now()),
    )


def is_own(name: str | None, schema: str | None = None) -> bool:
    """Tell by its name whether a table or a schema is bide's: of a store, or of an outbox.

    That is `bide`, or a name that begins with `bide_`. A store whose schema has another name is not
    recognized.

    Args:
        name: of the table, or of the schema.
        schema: of the table; `None`: the default one.

    Example:
        >>> is_own("bide_outbox"), is_own("message", "bide"), is_own("orders")
        (True, True, False)
    """
    return any(part == "bide" or (part or "").startswith("bide_") for part in (name, schema))


def _known(metadata: MetaData, name: str) -> Table | None:
    """Return a table that the metadata have already, under their own schema if they have one."""
    return metadata.tables.get(name if metadata.schema is None else f"{metadata.schema}.{name}")


_NUMBER = BigInteger().with_variant(Integer, "sqlite")
"""On SQLite only INTEGER can be the primary key that counts up."""


def _command_columns() -> list[Column[Any]]:
    """Return new columns for a command, which both tables have."""
    return [Column(name, Text, nullable=False) for name in ("queue", "id", "command")]
