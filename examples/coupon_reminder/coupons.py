"""Coupons: three days before one expires, its owner gets a reminder, unless it was used.

The tills and the office know only the database. A source returns the reminders that should exist,
and a check right before the delivery drops those that are no longer wanted. So a lost queue is
filled again within an hour, and no owner gets two reminders.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ForeignKey, create_engine, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import bide

AHEAD = timedelta(days=3)


class Base(DeclarativeBase):
    """The tables."""


class Coupon(Base):
    """A coupon."""

    __tablename__ = "coupons"

    code: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    expires: Mapped[float] = mapped_column(index=True)
    """In Unix seconds: SQLite keeps no time zones."""
    used: Mapped[bool] = mapped_column(default=False)


class Reminder(Base):
    """A reminder that was sent; at most one per coupon."""

    __tablename__ = "reminders"

    coupon: Mapped[str] = mapped_column(ForeignKey("coupons.code"), primary_key=True)
    text: Mapped[str]


Session = sessionmaker()


@contextmanager
def database(_: object = None) -> Iterator[None]:
    """Open the database: around the program, and as the lifespan of each worker process."""
    engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///coupons.db"))
    Base.metadata.create_all(engine)
    Session.configure(bind=engine)
    try:
        yield
    finally:
        engine.dispose()


app = bide.App(lifespan=database)


def issue(code: str, owner: str, expires: datetime) -> None:
    """Issue a coupon."""
    with Session.begin() as session:
        session.add(Coupon(code=code, owner=owner, expires=expires.timestamp()))


def use(code: str) -> bool:
    """Use a coupon; false if it does not exist or was used before."""
    with Session.begin() as session:
        used = (
            update(Coupon)
            .where(Coupon.code == code, Coupon.used.is_(False))
            .values(used=True)
            .returning(Coupon.code)
        )
        return session.scalar(used) is not None


@dataclass
class Remind:
    """The body of a message: the coupon whose owner gets a reminder."""

    coupon: str


@app.source("coupon-reminders", every="1h", window="1d", back="3d")
def reminders(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
    """Yield the reminders that fall due in a time window, at most one per coupon."""
    with Session() as session:
        expiring = (
            select(Coupon)
            .outerjoin(Reminder)
            .where(
                Coupon.expires >= (after + AHEAD).timestamp(),
                Coupon.expires < (before + AHEAD).timestamp(),
                Coupon.used.is_(False),
                Reminder.coupon.is_(None),
            )
        )
        for coupon in session.scalars(expiring):
            yield bide.NewMessage(
                Remind(coupon.code),
                id=f"coupon-{coupon.code}",
                at=coupon.expires - AHEAD.total_seconds(),
                expires=AHEAD,  # after that there is nothing left to remind of
            )


def unused(reminder: Remind) -> bool:
    """Return whether a coupon can still be used."""
    with Session() as session:
        coupon = session.get(Coupon, reminder.coupon)
        return coupon is not None and not coupon.used


@app.handler("coupon-reminders", still_wanted=unused)
def remind(reminder: Remind) -> None:
    """Remind the owner of a coupon, once."""
    with Session.begin() as session:
        if session.get(Reminder, reminder.coupon) is None:
            coupon = session.get_one(Coupon, reminder.coupon)
            text = f"{coupon.owner}, your coupon {coupon.code} is good for three more days"
            session.add(Reminder(coupon=coupon.code, text=text))
