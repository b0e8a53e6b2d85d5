"""The log of workers and servers: a line of text, or one JSON object per line; its tracebacks."""

import json
import logging
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from bide.engines.bounded_dict import BoundedDict

FIELDS = (
    "queue",
    "id",
    "attempt",
    "outcome",
    "lateness",
    "duration",
    "handler",
    "holder",
    "reason",
    "count",
    "counts",
    "running",
    "subscription",
    "circuit",
    "method",
    "path",
    "status",
    "operation",
    "client",
    "namespace",
    "token",
    "request",
)
"""Attributes of records that JSON has as fields of their own."""

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Characters that a terminal may take for a command, that turn the direction of writing, break the
line or show nothing; tab and end of line are not."""


PLAIN_FORMAT = "%(asctime)s %(levelname)-7s [%(process)d] %(message)s"


MAX_MESSAGE = 4_000
"""Characters of the message of a log line."""


def printable(text: str, most: int) -> str:
    """Return at most `most` characters of a text on one line, with control characters escaped.

    For what others have chosen, in lines that may go to a log of the user's own.

    Example:
        >>> printable("/v1/\\x1b[2J\\n", 200), printable("/v1/queues", 6)
        ('/v1/\\\\x1b[2J\\\\x0a', '/v1/q…')
    """
    text = text[: most + 1]
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else f"\\x{ord(character):02x}"
            for character in text
        )
    return text if len(text) <= most else f"{text[: most - 1]}…"


class JsonFormatter(logging.Formatter):
    """Formats a record as an object: time, level, logger, pid, message, and more fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        entry: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage()[:MAX_MESSAGE],
        }
        fields = record.__dict__
        entry |= {name: fields[name] for name in FIELDS if name in fields}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(entry).decode()
        except UnicodeEncodeError:  # of a surrogate, which a file name may have
            return json.dumps(entry, ensure_ascii=False).encode(errors="replace").decode()


def timestamp(seconds: float) -> str:
    """Return a time in Unix seconds as the log shows it.

    Example:
        >>> timestamp(1_700_000_000.25)
        '2023-11-14T22:13:20.250+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class PlainFormatter(logging.Formatter):
    """Formats a record as a line of text whose content cannot control a terminal.

    The time is in UTC, with date and zone: a program may change the zone of its process. The
    first failure of each cause has its traceback below the line, and later ones every ten minutes;
    at level debug every failure has, with all frames.
    """

    def __init__(self, fmt: str | None = None) -> None:
        super().__init__(fmt)
        self._tracebacks = Tracebacks()

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text with visible control characters."""
        text = super().format(record)
        reason = str(record.__dict__.get("reason", ""))
        _error, _, trace = reason.partition("\n")
        if trace and not record.exc_info:
            if logging.getLogger().level <= logging.DEBUG:
                text = f"{text}\n{trace}"
            elif self._tracebacks.admit(reason, record.created):
                text = f"{text}\n{folded(trace)}"
        return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of the record in UTC."""
        return timestamp(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line: whatever it says, it is one, and not longer than `MAX_MESSAGE`."""
        record.message = record.message[:MAX_MESSAGE].replace("\n", "\\n")
        return super().formatMessage(record)


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr. A handler of messages that closes it loses the log, not the worker."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Write on stderr what is wrong with a record, if stderr is open."""
        with suppress(ValueError):
            super().handleError(record)


def configure(*, as_json: bool, level: str) -> None:
    """Log to stderr.

    Args:
        as_json: whether each line is an object.
        level: the lowest level that is logged.
    """
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter(PLAIN_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # It logs tracebacks of lost connections, which bide logs itself.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)


REMIND_SECONDS = 600.0
"""Seconds after which the traceback of a cause is shown again."""

MOST_CAUSES = 1_000
"""The number of causes that are remembered."""

_FRAME = re.compile(r'  File "(?P<file>.*)", line \d+, in ')
_LIBRARY = re.compile(r".*[/\\](?:site-packages|dist-packages|python\d\.\d+)[/\\]([^/\\.]+)")


class Tracebacks:
    """Tells which tracebacks to show: the first of each cause, and again after ten minutes.

    Errors have the same cause if they have the same type and were raised at the same place by the
    same calls, whatever their messages say.

    Example:
        >>> shown = Tracebacks()
        >>> reason = 'KeyError: 42\\nTraceback:\\n  File "shop.py", line 9, in pay'
        >>> shown.admit(reason, 0.0), shown.admit(reason, 1.0), shown.admit(reason, 601.0)
        (True, False, True)
    """

    def __init__(self) -> None:
        self.shown: BoundedDict[tuple[str, ...], float] = BoundedDict(MOST_CAUSES)
        """By type and frames: when the traceback was shown, in Unix seconds."""

    def admit(self, reason: str, now: float) -> bool:
        """Tell whether to show the traceback of a failure; never if it has none.

        Args:
            reason: a line with the error, and its traceback below.
            now: in seconds.
        """
        error, *trace = reason.splitlines()
        frames = [line for line in trace if _FRAME.match(line)]
        if not frames:
            return False
        error_type, _, _text = error.partition(":")
        cause = (error_type, *frames)
        shown_at = self.shown.get(cause)
        if shown_at is not None and now < shown_at + REMIND_SECONDS:
            return False
        self.shown[cause] = now
        return True


def folded(trace: str) -> str:
    """Return a traceback with one line for frames of libraries that follow each other.

    The innermost frame stays: it is where the error was raised.

    Example:
        >>> lib = '  File "/x/site-packages/orm/s.py", line 1, in f\\n    g()'
        >>> print(folded(f'Traceback:\\n{lib}\\n{lib}\\n{lib}\\nValueError'))
        Traceback:
          ... 2 frames in orm
          File "/x/site-packages/orm/s.py", line 1, in f
            g()
        ValueError
    """
    lines: list[str] = []
    library_frames: list[list[str]] = []  # those that follow each other, each with its lines
    libraries: dict[str, None] = {}  # in the order of their frames
    end_mark = ""  # a line that is no frame, so that the last frames are written, too
    for line in [*trace.splitlines(), end_mark]:
        if _FRAME.match(line) and (library := _LIBRARY.match(line)) is not None:
            library_frames.append([line])
            libraries[library[1]] = None
        elif library_frames and line.startswith("    "):  # the code of the frame
            library_frames[-1].append(line)
        else:
            if len(library_frames) > 2:
                hidden_count = len(library_frames) - 1
                lines.append(f"  ... {hidden_count} frames in {', '.join(libraries)}")
                lines += library_frames[-1]
            else:
                lines += [part for frame in library_frames for part in frame]
            library_frames, libraries = [], {}
            lines.append(line)
    return "\n".join(lines[:-1])
