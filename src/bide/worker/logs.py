"""How the worker's log looks: a line for people, or one JSON object a line for machines."""

import logging
import sys
from datetime import UTC, datetime

import msgspec

__all__ = ["configure"]

FIELDS = (
    "queue", "id", "attempt", "outcome", "lateness", "duration", "handler", "reason", "counts",
    "running",
    "method", "path", "status", "operation", "client", "namespace", "token",
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """Makes an object of each record: time, level, logger, pid, message, and what it tells of."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        entry |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


def configure(*, as_json: bool, level: str) -> None:
    """Send what is logged to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        plain = "%(asctime)s.%(msecs)03d %(levelname)-7s [%(process)d] %(message)s"
        handler.setFormatter(logging.Formatter(plain, "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
