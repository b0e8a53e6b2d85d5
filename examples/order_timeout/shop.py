"""A shop: a customer has half an hour to pay; then the order is cancelled.

The payment and the timeout may come at the same time. Both use one conditional update of the order,
so the database lets one of them win, and the other one sees that it lost.
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
    """An article that customers can order."""

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
    """The article is out of stock."""


@dataclass
class Receipt:
    """The result of a payment."""

    accepted: bool
    note: str


@dataclass
class Deadline:
    """The body of a message: the order that must be paid by now."""

    order: str


def place(article: str, pieces: int = 1) -> str:
    """Place an order; return its number.

    The timeout is put before the order is committed. If the shop dies in between, there is a
    timeout without an order, which does nothing. In the other order, an order would never time out.

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
    """Accept the payment of an order, unless it has timed out."""
    with Session.begin() as session:
        if not _leave_unpaid(session, order, "paid"):
            found = session.get(Order, order)
            state = found.state if found else "not known"
            return Receipt(accepted=False, note=f"the order is {state}; the money goes back")
    outcome = timeouts.cancel(f"order-{order}")
    if outcome:
        return Receipt(accepted=True, note="the timeout is cancelled: no worker will get it")
    # A worker handles the timeout now, or has: it finds the order paid and does nothing.
    return Receipt(accepted=True, note=f"at the last moment: {outcome}")


@app.handler("order-timeouts", lease="30s", retry=bide.Backoff(first="1s", ceiling="5m"))
def time_out(deadline: Deadline) -> None:
    """Cancel an unpaid order. Idempotent: the second call finds no unpaid order."""
    with Session.begin() as session:
        order = _leave_unpaid(session, deadline.order, "cancelled")
        if order:
            session.execute(
                update(Article)
                .where(Article.name == order.article)
                .values(stock=Article.stock + order.pieces)
            )


def _leave_unpaid(session: Connected, order: str, state: str) -> Order | None:
    """Move an unpaid order to another state and return it. At most one caller succeeds."""
    return session.scalar(
        update(Order)
        .where(Order.id == order, Order.state == "unpaid")
        .values(state=state)
        .returning(Order)
    )
