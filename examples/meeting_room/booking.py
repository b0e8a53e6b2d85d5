"""The actions of users on meetings. This module knows the database and no queue."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import create_engine, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.orm import Session as Connected


class Base(DeclarativeBase):
    """The tables."""


class Meeting(Base):
    """A meeting: requested, approved, running, over; or refused, or withdrawn."""

    __tablename__ = "meetings"

    id: Mapped[int] = mapped_column(primary_key=True)
    room: Mapped[str]
    host: Mapped[str]
    """A mail address."""
    starts: Mapped[float] = mapped_column(index=True)
    """In Unix seconds: SQLite keeps no time zones."""
    ends: Mapped[float] = mapped_column(index=True)
    state: Mapped[str] = mapped_column(default="requested")


Session = sessionmaker()


class Taken(Exception):
    """The room has another meeting at that time."""


@contextmanager
def database(_: object = None) -> Iterator[None]:
    """Open the database: around the program, and as the lifespan of each worker process."""
    engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///meetings.db"))
    Base.metadata.create_all(engine)
    Session.configure(bind=engine)
    try:
        yield
    finally:
        engine.dispose()


def request(room: str, host: str, starts: datetime, ends: datetime) -> int:
    """Request a room; return the number of the meeting."""
    with Session.begin() as session:
        meeting = Meeting(room=room, host=host, starts=starts.timestamp(), ends=ends.timestamp())
        session.add(meeting)
        session.flush()
        return meeting.id


def approve(meeting: int) -> bool:
    """Approve a request; false if the meeting is not requested any more.

    Raises:
        Taken: the room has another meeting at that time.
    """
    with Session.begin() as session:
        mine = change(session, meeting, "requested", state="approved")
        if mine is None:
            return False
        others = select(Meeting.id).where(
            Meeting.room == mine.room,
            Meeting.id != meeting,
            Meeting.state.in_(("approved", "running")),
            Meeting.starts < mine.ends,
            Meeting.ends > mine.starts,
        )
        if session.scalars(others).first() is not None:
            raise Taken(mine.room)
    return True


def move(meeting: int, starts: datetime, ends: datetime) -> bool:
    """Move an approved meeting; it becomes a request again. False if it is not approved."""
    values = {"state": "requested", "starts": starts.timestamp(), "ends": ends.timestamp()}
    with Session.begin() as session:
        return change(session, meeting, "approved", **values) is not None


def withdraw(meeting: int) -> bool:
    """Withdraw a meeting; false if it has begun or was refused."""
    with Session.begin() as session:
        return change(session, meeting, "requested", "approved", state="withdrawn") is not None


def change(session: Connected, meeting: int, *states: str, **values: Any) -> Meeting | None:
    """Change a meeting that is in one of these states, and return it."""
    return session.scalar(
        update(Meeting)
        .where(Meeting.id == meeting, Meeting.state.in_(states))
        .values(**values)
        .returning(Meeting)
    )
