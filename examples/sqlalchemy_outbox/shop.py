"""A shop on SQLAlchemy whose queue is elsewhere, behind `bide serve` or on Redis.

What a transaction puts waits in the outbox, a table of the shop's own database. `bide worker
--outbox` hands it to the store after the commit.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import bide
from bide.contrib.sqlalchemy import outbox_dead_table, outbox_table

PAY_WITHIN = os.environ.get("PAY_WITHIN", "30m")


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order: unpaid, and then either paid or cancelled."""

    __tablename__ = "orders"

    number: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="unpaid")


outbox, refused = outbox_table(Base.metadata), outbox_dead_table(Base.metadata)
Session = sessionmaker()


def migrations(url: str) -> Config:
    """Return the configuration of Alembic for a database."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(url: str) -> None:
    """Bring the tables of a database up to date; those of the outbox are among them."""
    command.upgrade(migrations(url), "head")


@contextmanager
def database(_: object = None) -> Iterator[None]:
    """Open the database: around the shop, and as the lifespan of each worker process."""
    engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
    Session.configure(bind=engine)
    try:
        yield
    finally:
        engine.dispose()


app = bide.App(lifespan=database)
timeouts = bide.Queue("order-timeouts")


def place(*numbers: str) -> None:
    """Place orders in one transaction: all of them with their timeouts, or none.

    Raises:
        IntegrityError: one of them exists. Nothing was placed, and nothing put.
    """
    with Session.begin() as session:
        for number in numbers:
            session.add(Order(number=number))
            timeouts.put({"number": number}, delay=PAY_WITHIN, id=number, within=session)


def pay(number: str) -> bool:
    """Pay an order, unless it has timed out."""
    with Session.begin() as session:
        paid = update(Order).where(Order.number == number, Order.state == "unpaid")
        if session.scalar(paid.values(state="paid").returning(Order.number)) is None:
            return False
        timeouts.cancel(number, within=session)
        return True


def waiting() -> int:
    """Return how many commands wait in the outbox."""
    with Session() as session:
        return session.scalar(select(func.count()).select_from(outbox)) or 0


@app.handler("order-timeouts")
def time_out(body: dict[str, str]) -> None:
    """Cancel an unpaid order. Idempotent: the second call finds no unpaid order."""
    with Session.begin() as session:
        session.execute(
            update(Order)
            .where(Order.number == body["number"], Order.state == "unpaid")
            .values(state="cancelled")
        )
