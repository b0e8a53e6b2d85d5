"""How Alembic connects, and what autogenerate compares."""

from alembic import context
from sqlalchemy import NullPool, create_engine

from bide.contrib.alembic import include_object  # this also adds op.create_bide_outbox
from examples.sqlalchemy_outbox.shop import Base

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, target_metadata=Base.metadata, include_object=include_object)
    with context.begin_transaction():
        context.run_migrations()
else:
    assert url is not None
    with create_engine(url, poolclass=NullPool).connect() as connection:
        context.configure(
            connection=connection, target_metadata=Base.metadata, include_object=include_object
        )
        with context.begin_transaction():
            context.run_migrations()
