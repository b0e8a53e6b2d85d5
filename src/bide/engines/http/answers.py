"""Requests that are no commands, and the exceptions of answers that report an error."""

from http import HTTPStatus
from typing import Any

import msgspec

from bide.engines.http.connection import RUNNING, HttpAddress, HttpConnection
from bide.model import errors
from bide.model.errors import BideError, OutcomeUnknown, StoreError, StoreUnavailable


class _Problem(msgspec.Struct):
    """A problem document (RFC 9457), as far as it is read."""

    detail: str = ""
    error: str | None = None
    """The name of the exception that bide raises."""


_OF_STATUS: dict[int, type[BideError]] = {
    401: errors.AccessDenied,
    403: errors.AccessDenied,
    413: errors.InvalidArgument,
    429: StoreUnavailable,
    502: OutcomeUnknown,
    503: StoreUnavailable,
    504: OutcomeUnknown,
    507: errors.StoreFull,
}
"""The exceptions of answers that name none, by status."""


def error_of(status: int, name: str | None) -> type[BideError]:
    """Return the exception of an answer: the one that it names, else that of its status."""
    if name in errors.__all__:
        error: type[BideError] = getattr(errors, name)
        return error
    # Any server on the way may fail after bide's own has done what was asked.
    return _OF_STATUS.get(status, OutcomeUnknown if status >= 500 else StoreError)


def is_of_proxy(status: int, answer: bytes) -> bool:
    """Tell whether an answer is that of a proxy which has no server, or has lost it.

    The problems of bide's own servers name their type, and mostly the exception.
    """
    is_of_bide = b"/docs#problem-" in answer or _problem_of(answer).error is not None
    return status in (502, 503, 504) and not is_of_bide


def refusal(address: HttpAddress, status: int, answer: bytes) -> BideError:
    """Return the error of a problem document."""
    problem = _problem_of(answer)
    detail = problem.detail or f"it answered with status {status}; {RUNNING}"
    return error_of(status, problem.error)(f"{address.shown}: {detail}")


def _problem_of(answer: bytes) -> _Problem:
    """Return the problem in an answer; an empty one if it has none."""
    try:
        return msgspec.json.decode(answer, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Problem()


def request(
    connection: HttpConnection, address: HttpAddress, method: str, path: str, content: Any = None
) -> dict[str, Any] | None:
    """Return the answer of a server; `None` if nothing exists at the path.

    Args:
        connection: to the server.
        address: of the server, for errors.
        method: of the request.
        path: on the server, such as "/v1/queues".
        content: sent as JSON; `None`: nothing is sent.

    Raises:
        BideError: the error of the server, or a `StoreError` if it is away.
    """
    data = None if content is None else msgspec.json.encode(content)
    status, answer = connection.ask(method, path, data, "application/json")
    # A proxy may say 404, too: only a server of bide's says that there is nothing.
    if status == HTTPStatus.NOT_FOUND and b"/docs#problem-not-found" in answer:
        return None
    if not 200 <= status < 300:
        raise refusal(address, status, answer)
    return msgspec.json.decode(answer or b"{}", type=dict[str, Any])
