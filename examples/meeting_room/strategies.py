"""The room keeper: one strategy for each thing that happens to a meeting by itself.

A strategy is one class: its name, for which meetings it is due in a window of time, and what to do.
Every minute a loader asks each of them what is due in the coming minutes, and the queue is told.
"""

import os
import smtplib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import Any, ClassVar, Self

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

import bide
from examples.meeting_room.booking import Meeting, Session, change, database

REMIND_AHEAD = timedelta(seconds=float(os.environ.get("REMIND_AHEAD", "600")))
REFUSE_AHEAD = timedelta(seconds=float(os.environ.get("REFUSE_AHEAD", "1800")))

app = bide.App(lifespan=database)


class Strategy(bide.Job):
    """What happens to a meeting at one of its times."""

    meeting: int
    when: datetime

    counts_from: ClassVar[str] = "starts"
    """The time of the meeting from which it counts."""
    ahead: ClassVar[timedelta] = timedelta(0)
    states: ClassVar[tuple[str, ...]]
    """The states of the meetings to which it applies."""

    @classmethod
    def due_between(cls, after: datetime, before: datetime) -> Iterator[Self]:
        """Find the meetings for which it is due: after <= due < before."""
        column = cls.column()
        found = select(Meeting.id, column).where(
            column >= (after + cls.ahead).timestamp(),
            column < (before + cls.ahead).timestamp(),
            Meeting.state.in_(cls.states),
        )
        with Session() as session:
            for meeting, when in session.execute(found):
                yield cls(meeting, cls.due_at(when))

    @classmethod
    def column(cls) -> InstrumentedAttribute[float]:
        """Return the column from which its due time counts."""
        column: InstrumentedAttribute[float] = getattr(Meeting, cls.counts_from)
        return column

    @classmethod
    def due_at(cls, counted_from: float) -> datetime:
        """Return its due time, given the time of the meeting from which it counts."""
        return datetime.fromtimestamp(counted_from, UTC) - cls.ahead

    def due(self) -> datetime:
        """Return when it is due."""
        return self.when

    def key(self) -> str:
        """Return an id that contains the due time: a moved meeting has other messages."""
        return f"{type(self).__name__}-{self.meeting}@{self.when:%Y-%m-%dT%H:%M:%S.%f}"

    def still_wanted(self) -> bool:
        """Tell whether the meeting is still there, at that time, and in such a state."""
        with Session() as session:
            found = select(self.column()).where(
                Meeting.id == self.meeting, Meeting.state.in_(self.states)
            )
            counted_from = session.scalar(found)
        return counted_from is not None and self.due_at(counted_from) == self.when


@app.job("meetings")
class Start(Strategy):
    """An approved meeting starts."""

    states = ("approved",)

    def run(self) -> None:
        """Mark it as running."""
        with Session.begin() as session:
            change(session, self.meeting, "approved", state="running")


@app.job("meetings")
class End(Strategy):
    """A meeting ends."""

    counts_from = "ends"
    states = ("approved", "running")

    def run(self) -> None:
        """Mark it as over."""
        with Session.begin() as session:
            change(session, self.meeting, "approved", "running", state="over")


BY_MAIL = bide.Backoff(attempts=8, first="5s", ceiling="5m")


@app.job("meetings", retry=BY_MAIL, timeout="1m")
class Remind(Strategy):
    """Its host is reminded some minutes before it starts."""

    ahead = REMIND_AHEAD
    states = ("approved",)

    def options(self) -> Mapping[str, Any]:
        """Once it has started, there is nothing to remind of."""
        return {"expires": self.ahead}

    def run(self) -> None:
        """Send a mail."""
        with Session() as session:
            meeting = session.get_one(Meeting, self.meeting)
        mail(self, meeting, f"Your meeting in {meeting.room} begins soon")


@app.job("meetings", retry=BY_MAIL, timeout="1m")
class Refuse(Strategy):
    """Refuse a request that nobody has approved in time."""

    ahead = REFUSE_AHEAD
    states = ("requested", "refused")

    def run(self) -> None:
        """Refuse it and send a mail; if the mail fails, the next attempt finds it refused."""
        with Session.begin() as session:
            meeting = change(session, self.meeting, "requested", "refused", state="refused")
            if meeting is None:
                raise bide.Discard("it was just approved or withdrawn")
            session.expunge(meeting)
        mail(self, meeting, f"Your request for {meeting.room} is refused")


STRATEGIES: tuple[type[Strategy], ...] = (Start, End, Remind, Refuse)


@app.source("meetings", every="1m", window="10m", back="1d")
def load(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
    """Yield the messages of all strategies that are due in a time window."""
    for strategy in STRATEGIES:
        for job in strategy.due_between(after, before):
            yield job.message()


def mail(job: Strategy, meeting: Meeting, subject: str) -> None:
    """Send a mail to the host of a meeting. A second attempt has the same Message-ID."""
    message = EmailMessage()
    message["From"] = "rooms@example.org"
    message["To"] = meeting.host
    message["Subject"] = subject
    message["Message-ID"] = f"<{job.key()}.rooms@example.org>"
    message.set_content(f"Meeting {meeting.id}: {subject}.")
    host, _, port = os.environ.get("SMTP", "localhost:25").partition(":")
    with smtplib.SMTP(host, int(port), timeout=30) as server:
        server.send_message(message)
