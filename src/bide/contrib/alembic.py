"""Operations of Alembic for the outbox, and filters that keep autogenerate off bide's tables.

In `env.py`: `from bide.contrib.alembic import include_object`, which also adds the operations, and
`context.configure(..., include_object=include_object)`. In a migration: `op.create_bide_outbox()`.
"""

from typing import Any

from alembic.operations import MigrateOperation, Operations

from bide.contrib.sqlalchemy import is_own
from bide.model.errors import InvalidArgument
from bide.outbox.rows import CREATE_TABLES, TABLES, check_empty

__all__ = ["CreateBideOutbox", "DropBideOutbox", "include_name", "include_object"]


@Operations.register_operation("create_bide_outbox")
class CreateBideOutbox(MigrateOperation):
    """Creates the tables of the outbox; those that `bide forward` has made stay as they are."""

    @classmethod
    def create_bide_outbox(cls, operations: Operations) -> None:
        """Create the tables `bide_outbox` and `bide_outbox_dead`.

        Raises:
            InvalidArgument: the database is neither PostgreSQL nor SQLite.
        """
        operations.invoke(cls())

    def reverse(self) -> "DropBideOutbox":
        """Return the operation that undoes this one."""
        return DropBideOutbox()


@Operations.register_operation("drop_bide_outbox")
class DropBideOutbox(MigrateOperation):
    """Drops the tables of the outbox, unless messages wait in it.

    Args:
        discard: drop the messages that wait, too.
    """

    def __init__(self, *, discard: bool = False) -> None:
        self.discard = discard

    @classmethod
    def drop_bide_outbox(cls, operations: Operations, *, discard: bool = False) -> None:
        """Drop the tables `bide_outbox` and `bide_outbox_dead`.

        Args:
            operations: the `op` of the migration.
            discard: drop the commands that wait in them, too.

        Raises:
            NotEmpty: a command waits for the forwarder, or was refused by the store.
        """
        operations.invoke(cls(discard=discard))

    def reverse(self) -> CreateBideOutbox:
        """Return the operation that undoes this one."""
        return CreateBideOutbox()


@Operations.implementation_for(CreateBideOutbox)
def _create(operations: Operations, operation: CreateBideOutbox) -> None:
    dialect = operations.get_context().dialect.name
    if dialect not in CREATE_TABLES:
        raise InvalidArgument(f"an outbox needs PostgreSQL or SQLite, and this is {dialect}")
    for statement in CREATE_TABLES[dialect]:
        operations.execute(statement)


@Operations.implementation_for(DropBideOutbox)
def _drop(operations: Operations, operation: DropBideOutbox) -> None:
    writes_sql_only = operations.get_context().as_sql  # there is no database to look into
    if not operation.discard and not writes_sql_only:
        _check_empty(operations)
    for table in TABLES:
        operations.execute(f"DROP TABLE IF EXISTS {table}")


def _check_empty(operations: Operations) -> None:
    """Check that no command is lost when the tables are dropped.

    Raises:
        NotEmpty: a command waits for the forwarder, or was refused by the store.
    """
    from sqlalchemy import inspect, text

    connection = operations.get_bind()

    def count(table: str) -> int:
        if not inspect(connection).has_table(table):
            return 0
        return int(connection.scalar(text(f"SELECT count(*) FROM {table}")))

    check_empty(count, "op.drop_bide_outbox(discard=True)")


def include_object(
    object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any
) -> bool:
    """Tell autogenerate to leave bide's tables alone: neither drop nor create nor change them.

    For `context.configure(include_object=include_object)`. With a filter of your own, combine them:
    `include_object=lambda *arguments: include_object(*arguments) and mine(*arguments)`.
    """
    # Columns, indexes and constraints belong to a table.
    table = object if type_ == "table" else getattr(object, "table", None)
    return table is None or not is_own(table.name, table.schema)


def include_name(name: str | None, type_: str, parent_names: Any) -> bool:
    """Tell autogenerate not to read the schema of a store, where `include_schemas` is set.

    For `context.configure(include_name=include_name)`.
    """
    return type_ not in ("schema", "table") or not is_own(name)
