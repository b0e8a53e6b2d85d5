"""The access log and the action log. Neither contains bodies, queries or secrets.

The access log has a line per request. The action log has a JSON line per act: who did what from
where. If a line cannot be written to its file, because the disk is full or lost, it goes to the
server's log, so no act is lost.
"""

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from bide.logs import logger
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_LOGGED_METHOD, MAX_LOGGED_PATH, MAX_NAME
from bide.model.replies import Outcome
from bide.observing.logs import printable, timestamp
from bide.server import wire
from bide.server.access.rights import OPEN, Caller

DONE = "done"
"""The result of an act that was carried out."""

_access_log = logger("bide.access")
_log = logger("bide.server")


def log_request(
    method: str,
    path: str,
    status: int,
    took: float,
    operation: str,
    client: str,
    caller: Caller,
    request: str = "",
) -> None:
    """Log a request.

    Args:
        method: the method of the request.
        path: the path of the request.
        status: the status of the answer.
        took: seconds from the request to its answer.
        operation: the name of the operation.
        client: the client's address.
        caller: the caller, with the namespace and the id of the token.
        request: the id of the request, which its answer has; "" without.
    """
    if not _access_log.isEnabledFor(logging.INFO):
        return
    method, path = printable(method, MAX_LOGGED_METHOD), printable(path, MAX_LOGGED_PATH)
    namespace, token = caller.namespace or "", caller.token or ""
    line = (
        f"{method} {path} {status} {took * 1000:.1f} ms client={client or '-'} "
        f"namespace={namespace or '-'} token={token or '-'} request={request or '-'}"
    )
    _access_log.info(
        "%s",
        line,
        extra={
            "method": method,
            "path": path,
            "status": status,
            "duration": round(took, 6),
            "operation": operation,
            "client": client,
            "namespace": namespace,
            "token": token,
            "request": request,
        },
    )


def log_refused(client: str, status: int, detail: str) -> None:
    """Log a request that could not be read as HTTP, or a connection without room."""
    log_request("-", f"({detail})", status, 0.0, "", client, OPEN)


class Act(msgspec.Struct, omit_defaults=True):
    """One act: a request, a command of a batch, or a command at a shell."""

    act: str
    """The operation, as /openapi.json names it, or the command."""
    queue: str | None = None
    """Its name within the namespace."""
    messages: int | None = None
    """How many were put, changed, claimed, settled or shown."""
    result: str = DONE
    """"done", or the kind of the problem."""
    target: str | None = None
    """The subscription, token, worker or message that it is about, if it is one."""


class ActionLogLine(msgspec.Struct, omit_defaults=True):
    """A line of the log."""

    time: str
    act: str
    result: str
    who: str = ""
    token: str = ""
    client: str = ""
    namespace: str | None = None
    queue: str | None = None
    messages: int | None = None
    target: str | None = None
    request: str = ""


class ActionLog:
    """A file to which all processes of a server append. It is created with mode 0600.

    Args:
        path: the path of the file; `None`: nothing is logged.

    Raises:
        InvalidArgument: it cannot be opened.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.is_on = path is not None
        """Whether acts are logged."""
        self._file: int | None = None
        self._ends_within_line = False
        """Whether the file ends within a line."""
        if path is not None:
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(path, flags, 0o600)
            except OSError as error:
                raise InvalidArgument(
                    f"action_log={path!r} cannot be opened: {error.strerror}; name a file in a "
                    "folder that this user may write to"
                ) from None

    def write(
        self,
        acts: Sequence[Act],
        *,
        who: str,
        token: str,
        client: str,
        namespace: str | None,
        request: str = "",
    ) -> None:
        """Append a line for each act.

        Args:
            acts: the acts.
            who: the name or id of the token, the subject of a JWT, or a user of this machine.
            token: the id of the token.
            client: the address of the client.
            namespace: the namespace of the queues; `None`: the whole store.
            request: the id of the request; "" for none.
        """
        if self._file is None:
            return
        now = timestamp(time.time())
        entries = [
            ActionLogLine(
                time=now,
                act=act.act,
                result=act.result,
                who=who,
                token=token,
                client=client,
                namespace=namespace,
                queue=_bounded(act.queue),
                messages=act.messages,
                target=_bounded(act.target),
                request=request,
            )
            for act in acts
        ]
        lines = list(map(msgspec.json.encode, entries))
        failure = self._append(self._file, lines)
        if failure is not None:  # all of them: it is not known which lines are whole
            for line in lines:
                _log.error("the action log cannot be written (%s): %s", failure, line.decode())

    def _append(self, file: int, lines: Sequence[bytes]) -> str | None:
        """Append lines to the file; return why not all were written, `None` if they were.

        In one piece, so that no line of another process comes between.
        """
        separator = b"\n" if self._ends_within_line else b""
        data = separator + b"".join(line + b"\n" for line in lines)
        try:
            written = os.write(file, data)
        except OSError as error:
            return error.strerror or str(error)
        if written < len(data):
            self._ends_within_line = self._ends_within_line or written > 0
            return "the disk is full"
        self._ends_within_line = False
        return None

    def close(self) -> None:
        """Close the file."""
        self.is_on = False
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _bounded(name: str | None) -> str | None:
    """Return a name, cut if it is longer than a name may be."""
    return name if name is None or len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"


def count_of(content: Any) -> int | None:
    """Return how many messages an answer or a reply names, `None` if it has no such number.

    Those whose workers were asked to stop count as well.

    Example:
        >>> from bide.model.replies import Outcomes
        >>> count_of(Outcomes([Outcome("a", True), Outcome("b", False)]))
        1
    """
    if isinstance(content, Outcome | wire.MessageOut):
        return int(_is_counted(content))
    for name in ("outcomes", "messages"):
        if isinstance(elements := getattr(content, name, None), list):
            return sum(map(_is_counted, elements))
    for name in ("count", "restored"):
        if isinstance(count := getattr(content, name, None), int):
            return count + len(getattr(content, "stopping", ()))
    return None


def message_of(content: Any) -> str | None:
    """Return the id of the message that an answer is about, if it is one.

    Example:
        >>> message_of(Outcome("a", True))
        'a'
    """
    if isinstance(content, Outcome):
        return content.id
    outcomes = getattr(content, "outcomes", None)
    return outcomes[0].id if isinstance(outcomes, list) and len(outcomes) == 1 else None


def _is_counted(element: Any) -> bool:
    return bool(element) or (isinstance(element, Outcome) and element.state == "stopping")
