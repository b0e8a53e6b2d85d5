"""A shop on Flask and Flask-SQLAlchemy: an order that is not paid in time is cancelled.

The queue is in the shop's own database: an order and its timeout are committed together.
"""

import os
from typing import Any

from flask import Flask, abort
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from bide.contrib.flask import Bide


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order: unpaid, and then either paid or cancelled."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    state: Mapped[str] = mapped_column(default="unpaid")


db = SQLAlchemy(model_class=Base)
bide = Bide()
timeouts = bide.queue("order-timeouts")


def create_app(database: str | None = None) -> Flask:
    """Make the application.

    Args:
        database: a URL; the one of the environment by default.
    """
    app = Flask(__name__)
    url = database or os.environ.get("DATABASE_URL", f"sqlite:///{os.getcwd()}/shop.db")  # noqa: PTH109
    app.config.from_mapping(
        SQLALCHEMY_DATABASE_URI=url, BIDE_URL=url, PAY_WITHIN=os.environ.get("PAY_WITHIN", "30m")
    )
    db.init_app(app)
    bide.init_app(app)
    with app.app_context():
        Base.metadata.create_all(db.engine)

    @app.post("/orders/<article>")
    def place(article: str) -> tuple[dict[str, int], int]:
        """Place an order. Its timeout is in the same transaction: both are committed, or none."""
        order = Order(article=article)
        db.session.add(order)
        db.session.flush()  # now it has its id
        timeouts.put(
            {"order": order.id},
            delay=app.config["PAY_WITHIN"],
            id=f"order-{order.id}",
            within=db.session,
        )
        db.session.commit()
        return {"order": order.id}, 201

    @app.post("/orders/<int:order>/payment")
    def pay(order: int) -> dict[str, bool]:
        """Pay an order, unless it has timed out."""
        if not leave_unpaid(order, "paid"):
            abort(409, "the order is paid or cancelled, or there is none")
        cancelled = timeouts.cancel(f"order-{order}", within=db.session)
        db.session.commit()
        return {"timeout_cancelled": bool(cancelled)}

    @app.get("/orders/<int:order>")
    def show(order: int) -> dict[str, Any]:
        """Show an order."""
        found = db.session.get(Order, order) or abort(404, "there is no such order")
        return {"article": found.article, "state": found.state}

    return app


@bide.handler("order-timeouts")
def time_out(body: dict[str, int]) -> None:
    """Cancel an unpaid order, in the application context. Idempotent."""
    leave_unpaid(body["order"], "cancelled")
    db.session.commit()


def leave_unpaid(order: int, state: str) -> bool:
    """Move an unpaid order to another state. At most one caller succeeds."""
    unpaid = update(Order).where(Order.id == order, Order.state == "unpaid")
    return db.session.scalar(unpaid.values(state=state).returning(Order.id)) is not None
