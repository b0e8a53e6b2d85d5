"""The access log: a line for each request, made in less time than logging takes for others."""

import logging
import os
import time

import msgspec

from bide.observing.logs import ReadyRecord, moment

__all__ = ["log_refused", "log_request"]

_log = logging.getLogger("bide.access")

_MESSAGE = "%s %s %d %.1f ms client=%s namespace=%s token=%s"

LONGEST_METHOD = 20
LONGEST_PATH = 200
"""How many characters of a request's method and path are logged."""

_COMMON = vars(logging.LogRecord(_log.name, logging.INFO, __file__, 0, _MESSAGE, None, None))
"""What the records of all requests have."""

_encode = msgspec.json.Encoder().encode


class _Line(msgspec.Struct):
    time: str
    level: str
    logger: str
    pid: int
    message: str
    duration: float
    method: str
    path: str
    status: int
    operation: str
    client: str
    namespace: str
    token: str


class _RequestRecord(ReadyRecord):
    """A record of a request; it has all that other records have, and what the line tells.

    Most of it is the same for every request: to find it out anew took longer than all the rest.
    """

    def __init__(self, told: dict[str, object]) -> None:
        self.__dict__ = told

    def line(self) -> str:
        """Return the record as JSON."""
        told = vars(self)
        return _encode(
            _Line(
                moment(told["created"]), "info", _log.name, told["process"], self.getMessage(),
                told["duration"], told["method"], told["path"], told["status"],
                told["operation"], told["client"], told["namespace"], told["token"],
            )
        ).decode()  # fmt: skip


def log_request(
    method: str,
    path: str,
    status: int,
    took: float,
    operation: str,
    client: str,
    namespace: str | None,
    token: str | None,
) -> None:
    """Log a request: never its query, its body or its token, which may hold what is secret.

    Args:
        method: how it was asked.
        path: what was asked for.
        status: what was answered.
        took: for how many seconds it was under way.
        operation: the name of what was done.
        client: from what address it came.
        namespace: whose queues it was about.
        token: the id of the token.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    method, path = _bounded(method, LONGEST_METHOD), _bounded(path, LONGEST_PATH)
    now = time.time()
    told = client or "-", namespace or "-", token or "-"
    _log.handle(
        _RequestRecord(
            {
                **_COMMON, "args": (method, path, status, took * 1000, *told),
                "created": now, "msecs": float(int(now % 1 * 1000)), "process": os.getpid(),
                "method": method, "path": path, "status": status, "duration": round(took, 6),
                "operation": operation, "client": client, "namespace": namespace or "",
                "token": token or "",
            }
        )
    )  # fmt: skip


def _bounded(text: str, most: int) -> str:
    """Return at most `most` characters of a text, without any that a terminal obeys.

    Example:
        >>> _bounded("/v1/\\x1b[2J", 200), _bounded("/v1/queues", 6)
        ('/v1/\\\\x1b[2J', '/v1/q…')
    """
    if not text.isprintable():
        text = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text[:most])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def log_refused(client: str, status: int, detail: str) -> None:
    """Log a request that could not be read as HTTP, or a connection without room."""
    log_request("-", f"({detail})", status, 0.0, "", client, None, None)
