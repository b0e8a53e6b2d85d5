"""How the worker's log looks: a line for people, or one JSON object a line for machines."""

import asyncio
import logging
import re
import sys
from abc import ABC, abstractmethod
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

__all__ = ["ReadyRecord", "configure", "moment"]

FIELDS = (
    "queue", "id", "attempt", "outcome", "lateness", "duration", "handler", "reason", "counts",
    "running",
    "method", "path", "status", "operation", "client", "namespace", "token",
)  # fmt: skip

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal may take for an order; not the tab and the end of a line."""

MOMENT = 0.05
"""For how many seconds a line may wait for others."""


class ReadyRecord(logging.LogRecord, ABC):
    """A record that makes its own line of JSON: for what is logged so often that it must be quick.

    The line has the fields that `JsonFormatter` gives others, in their order.
    """

    @abstractmethod
    def line(self) -> str:
        """Return the record as a line of JSON."""


class JsonFormatter(logging.Formatter):
    """Makes an object of each record: time, level, logger, pid, message, and what it tells of."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        if isinstance(record, ReadyRecord):
            return record.line()
        entry: dict[str, object] = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        told = record.__dict__
        for name in FIELDS:
            if name in told:
                entry[name] = told[name]
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(entry).decode()
        except UnicodeEncodeError:  # half a character, as the name of a file may have it
            return msgspec.json.encode(_whole(entry)).decode()


def moment(seconds: float) -> str:
    """Return a moment in Unix seconds as the log tells it.

    Example:
        >>> moment(1_700_000_000.25)
        '2023-11-14T22:13:20.250+00:00'
    """
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03d}+00:00"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


class PlainFormatter(logging.Formatter):
    """Makes a line for people; what an error says cannot steer the terminal they read it on.

    The time is in UTC, with date and zone: a program may change the zone of its process. What
    failed for good has the traceback below its line; at level debug every failure has.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text, control characters made visible."""
        text = super().format(record)
        detailed = record.levelno >= logging.ERROR or logging.getLogger().level <= logging.DEBUG
        _, _, trace = str(record.__dict__.get("reason", "")).partition("\n")
        if detailed and trace and not record.exc_info:
            text = f"{text}\n{trace}"
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return when the record was made, in UTC."""
        return moment(record.created)


def _whole(value: Any) -> Any:
    """Return a value in which no text has half a character."""
    if isinstance(value, dict):
        return {_whole(name): _whole(inner) for name, inner in value.items()}
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


class GatheringHandler(logging.Handler):
    """Writes to stderr what is logged within a moment with one system call.

    A server that logs each request would else spend more on that than on many a request. What is a
    warning or worse is written at once, with all that came before it, and so is what is logged
    where no event loop runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._due: asyncio.TimerHandle | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record in."""
        try:
            self._lines.append(self.format(record))
        except Exception:  # noqa: BLE001  (logging reports a call that is wrong by itself)
            self.handleError(record)
            return
        if record.levelno >= logging.WARNING:
            self.flush()
        elif self._due is None:
            try:
                self._due = asyncio.get_running_loop().call_later(MOMENT, self.flush)
            except RuntimeError:
                self.flush()

    def flush(self) -> None:
        """Write what was logged; `logging` calls it as well when the process ends."""
        with self.lock or nullcontext():
            lines, self._lines, self._due = self._lines, [], None
            if lines:
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()


def configure(*, as_json: bool, level: str, gather: bool = False) -> None:
    """Send what is logged to stderr.

    Args:
        as_json: whether each line is an object.
        level: from which level on.
        gather: whether lines may be written a moment later, several at once.
    """
    handler = GatheringHandler() if gather else logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        plain = "%(asctime)s %(levelname)-7s [%(process)d] %(message)s"
        handler.setFormatter(PlainFormatter(plain))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # What it tells of lost connections, with tracebacks, bide's own lines tell.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    # No line of ours shows these, and each record would find them out.
    logging.logThreads = False
    logging._srcfile = None
