"""Jobs: a class with the data of a message, its due time, and the work."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.message import JOB, NewMessage
from bide.model.times import Duration


class Job(msgspec.Struct):
    """A kind of work: the fields are the body, `due` returns the due time, `run` does the work.

    Register it with `App.job`. Several jobs may share a queue: a header of each message names its
    job. It is a `msgspec.Struct`, so it needs no `__init__`.

    Example:
        >>> import bide
        >>> from datetime import UTC, datetime, timedelta
        >>> app = bide.App("memory://")
        >>> @app.job("meetings")
        ... class Remind(bide.Job):
        ...     meeting: int
        ...     starts: datetime
        ...     def due(self):
        ...         return self.starts - timedelta(minutes=10)
        ...     def key(self):
        ...         return f"remind-{self.meeting}"
        ...     async def run(self):
        ...         print("meeting", self.meeting)
        >>> Remind(7, datetime(2030, 1, 1, 9, tzinfo=UTC)).message().at
        datetime.datetime(2030, 1, 1, 8, 50, tzinfo=datetime.timezone.utc)
    """

    _queue: ClassVar[str] = ""
    _name: ClassVar[str] = ""

    def due(self) -> Duration | datetime | None:
        """Return when it is due: a `datetime`, or a delay from now. By default at once."""
        return None

    def key(self) -> str | None:
        """Return the message's id, so that the same work is put once; random by default."""
        return None

    def options(self) -> Mapping[str, Any]:
        """Return more options of the put: `priority`, `expires`, `attempts`, `group`, `headers`."""
        return {}

    def still_wanted(self, *_: Any) -> Any:
        """Return, before each `run`, whether the work is still wanted; if not, it is discarded.

        As `still_wanted=` of `App.handler`: async if `run` is, and it may take the delivery. True
        by default.
        """
        return True

    def run(self, *_: Any) -> Any:
        """Do the work. A plain or an async method, which may take the delivery as its parameter."""
        raise NotImplementedError(f"{type(self).__name__} has no method run")

    def message(self) -> NewMessage:
        """Return what to put: `queue.put_many([job.message()])`.

        Raises:
            InvalidArgument: its class was not registered with `App.job`, or `options` returns an
                option that messages do not have.
        """
        if not self._name:
            raise InvalidArgument(
                f"{type(self).__name__} belongs to no queue yet; register it with @app.job(queue)"
            )
        due = self.due()
        at, delay = (due, None) if isinstance(due, datetime) else (None, due)
        options = dict(self.options())
        headers = {**options.pop("headers", {}), JOB: self._name}
        try:
            return NewMessage(self, delay=delay, at=at, id=self.key(), headers=headers, **options)
        except TypeError as error:
            raise InvalidArgument(f"options of {type(self).__name__}: {error}") from error
