"""An outbox: a letter is sent at a set time; until then it can be edited, moved or withdrawn.

The message carries the whole content, so nothing can be missing when it is due. The database has
the same letter for people to look at. Each change is made in both: in a database transaction that
is committed only if the queue says that it was not too late.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import bide


class Base(DeclarativeBase):
    """The tables of the outbox."""


class Letter(Base):
    """A letter: scheduled, and then either sent or withdrawn."""

    __tablename__ = "letters"

    id: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    text: Mapped[str]
    due: Mapped[float]
    """In Unix seconds: SQLite keeps no time zones."""
    state: Mapped[str] = mapped_column(default="scheduled")


class Arrived(Base):
    """A letter that the addressee has received; it arrives once."""

    __tablename__ = "arrived"

    letter: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    text: Mapped[str]


Session = sessionmaker()


@contextmanager
def database(_: object = None) -> Iterator[None]:
    """Open the database: around the program, and as the lifespan of each worker process."""
    engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///outbox.db"))
    Base.metadata.create_all(engine)
    Session.configure(bind=engine)
    try:
        yield
    finally:
        engine.dispose()


app = bide.App(lifespan=database)
outbox = bide.Queue("outbox", keep="1d")  # for a day it is remembered what was sent


class TooLate(Exception):
    """The letter can no longer be changed; the text says why."""


@dataclass
class Content:
    """The body of a message."""

    address: str
    text: str


def write(address: str, text: str, at: datetime) -> str:
    """Schedule a letter; return its id."""
    letter = uuid.uuid4().hex
    with Session.begin() as session:
        session.add(Letter(id=letter, address=address, text=text, due=at.timestamp()))
        session.flush()  # what the database refuses is refused before anything is put
        outbox.put(Content(address, text), at=at, id=letter)
    return letter


def edit(letter: str, text: str) -> None:
    """Change the text of a letter.

    Raises:
        TooLate: it is being sent, was sent, or is withdrawn. Nothing was changed.
    """
    with _changing(letter, text=text) as row:
        content = Content(row.address, text)
        _done(outbox.put(content, at=row.due, id=letter, on_conflict="replace"))


def move(letter: str, at: datetime, seen: datetime) -> None:
    """Send a letter at another time.

    Args:
        letter: its id.
        at: the new time.
        seen: the time that the user saw; if it has changed since, nothing is moved.

    Raises:
        TooLate: as for `edit`, or another user has moved it meanwhile.
    """
    with _changing(letter, due=at.timestamp()):
        _done(outbox.reschedule(letter, at=at, if_due=seen))


def withdraw(letter: str) -> None:
    """Withdraw a letter. When this returns, it will not be sent.

    Raises:
        TooLate: as for `edit`.
    """
    with _changing(letter, state="withdrawn"):
        _done(outbox.cancel(letter))


@app.handler("outbox", lease="30s")
def send(content: Content, delivery: bide.Handling) -> None:
    """Send a letter with the content of its message."""
    with Session.begin() as session:
        sent = (
            update(Letter)
            .where(Letter.id == delivery.id, Letter.state == "scheduled")
            .values(state="sent", text=content.text)
            .returning(Letter.id)
        )
        if session.scalar(sent) is None:
            raise bide.Discard("it was withdrawn, or sent by an attempt before this one")
        session.add(Arrived(letter=delivery.id, address=content.address, text=content.text))


@contextmanager
def _changing(letter: str, **values: Any) -> Iterator[Letter]:
    """Change a scheduled letter; an exception in the block rolls the change back."""
    with Session.begin() as session:
        row = session.scalar(
            update(Letter)
            .where(Letter.id == letter, Letter.state == "scheduled")
            .values(**values)
            .returning(Letter)
        )
        if row is None:
            found = session.get(Letter, letter)
            raise TooLate(f"the letter is {found.state}" if found else "there is no such letter")
        yield row


def _done(outcome: bide.Outcome) -> None:
    """Raise `TooLate` if the queue refused the change."""
    if not outcome:
        raise TooLate(str(outcome))
