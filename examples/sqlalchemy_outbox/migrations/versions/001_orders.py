"""Create the orders, and the outbox in which messages wait for the store."""

import sqlalchemy as sa
from alembic import op

revision = "001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "orders",
        sa.Column("number", sa.String(), primary_key=True),
        sa.Column("state", sa.String(), nullable=False),
    )
    op.create_bide_outbox()  # type: ignore[attr-defined]


def downgrade() -> None:
    """Drop the tables; refused while messages wait."""
    op.drop_bide_outbox()  # type: ignore[attr-defined]
    op.drop_table("orders")
