"""A shop. Whoever orders has half an hour to pay; then the goods go back on the shelf.

The payment and the time-out may come in the same moment. Both go through one conditional update of
the order, so the database lets one of them win, and the other one sees that it has lost.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.orm import Session as Connected

import bide

PAY_WITHIN = os.environ.get("PAY_WITHIN", "30m")


class Base(DeclarativeBase):
    """The tables of the shop."""


class Article(Base):
    """What can be ordered."""

    __tablename__ = "articles"

    name: Mapped[str] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(Base):
    """An order: unpaid, and then either paid or cancelled."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    article: Mapped[str]
    pieces: Mapped[int]
    state: Mapped[str] = mapped_column(default="unpaid")


Session = sessionmaker()


@contextmanager
def database(_: object = None) -> Iterator[None]:
    """Open the database: around the shop, and as the lifespan of each worker process."""
    engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
    Base.metadata.create_all(engine)
    Session.configure(bind=engine)
    try:
        yield
    finally:
        engine.dispose()


app = bide.App(lifespan=database)
timeouts = bide.Queue("order-timeouts")


class SoldOut(Exception):
    """There is not enough of it."""


@dataclass
class Receipt:
    """What came of a payment."""

    accepted: bool
    note: str


@dataclass
class Deadline:
    """The body of a message: which order is to be paid by now."""

    order: str


def place(article: str, pieces: int = 1) -> str:
    """Take an order; return its number.

    The time-out is put before the order is committed. If the shop dies in between there is a
    time-out without an order, which does nothing; the other way round an order would wait for ever.

    Raises:
        SoldOut: there is not enough of it.
    """
    order = uuid.uuid4().hex
    timeouts.put(Deadline(order), delay=PAY_WITHIN, id=f"order-{order}")
    with Session.begin() as session:
        taken = session.execute(
            update(Article)
            .where(Article.name == article, Article.stock >= pieces)
            .values(stock=Article.stock - pieces)
            .returning(Article.name)
        )
        if taken.one_or_none() is None:
            timeouts.cancel(f"order-{order}")
            raise SoldOut(article)
        session.add(Order(id=order, article=article, pieces=pieces))
    return order


def pay(order: str) -> Receipt:
    """Take the money for an order, unless it has timed out."""
    with Session.begin() as session:
        if not _leave_unpaid(session, order, "paid"):
            found = session.get(Order, order)
            state = found.state if found else "not known"
            return Receipt(accepted=False, note=f"the order is {state}; the money goes back")
    outcome = timeouts.cancel(f"order-{order}")
    if outcome:
        return Receipt(accepted=True, note="the time-out is withdrawn: nobody will get it")
    # It is being handled at this moment, or was: it finds the order paid, and leaves it alone.
    return Receipt(accepted=True, note=f"at the last moment: {outcome}")


@app.handler("order-timeouts", lease="30s", retry=bide.Backoff(first="1s", ceiling="5m"))
def time_out(deadline: Deadline) -> None:
    """Cancel an order that is not paid. It may be called twice: the second call finds no such."""
    with Session.begin() as session:
        order = _leave_unpaid(session, deadline.order, "cancelled")
        if order:
            session.execute(
                update(Article)
                .where(Article.name == order.article)
                .values(stock=Article.stock + order.pieces)
            )


def _leave_unpaid(session: Connected, order: str, state: str) -> Order | None:
    """Move an order that is unpaid to another state, and return it. One caller at most succeeds."""
    return session.scalar(
        update(Order)
        .where(Order.id == order, Order.state == "unpaid")
        .values(state=state)
        .returning(Order)
    )
