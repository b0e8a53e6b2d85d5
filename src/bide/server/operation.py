"""An operation of the API: what it takes, what it answers, and the right that it needs.

Routes, checks and the OpenAPI description are made from these.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_type_hints

JSON = "application/json"

MSGPACK = "application/msgpack"

QUEUE = "/v1/queues/{queue}"

MESSAGE = f"{QUEUE}/messages/{{id}}"
"""The paths of a queue and of a message."""


class Answer(NamedTuple):
    """An answer to a request."""

    status: int
    content: Any = None
    """A value that becomes JSON, or bytes."""
    headers: Mapping[str, str] = {}
    kind: str = JSON


Handle = TypeVar("Handle", bound=Callable[..., Awaitable[Any]])


class Operation(NamedTuple):
    """One method of one path."""

    name: str
    method: str
    path: str
    right: str | None
    """The right that it needs; "": any token; `None`: no token."""
    handle: Callable[..., Awaitable[Any]]
    """Answers a call; see `Routes`. Its docstring describes the operation: the first line is the
    summary."""
    answers: dict[int, Any]
    """The type of the content by status; `None`: no content."""
    parameters: frozenset[str] = frozenset()
    """What the handler is given beside the call: `asked`, `query`."""
    takes: Any = None
    """The type of the request's body."""
    takes_bytes: bool = False
    """Whether a body of any other content type is accepted as bytes."""
    query: Any = None
    """A struct of the query's parameters."""
    headers: Mapping[str, str] = {}
    """Headers that the request may have, and what they do."""
    problems: Sequence[int] = ()
    """Statuses of its own problems, beside those of every operation."""
    tag: str = ""
    """Under what it is described."""
    kind: str = JSON
    """The content type of what it answers."""


class Routes:
    """Operations, each declared at the function that answers it: the handler.

    A handler takes a `Call` and, if it has parameters of these names, the decoded body (`asked`)
    and the decoded query (`query`). Their types, and that of the result, describe the operation. It
    returns an `Answer`, what is to be sent with status 200, or `None` if it has sent the answer.

    Args:
        tag: under what they are described.
    """

    def __init__(self, tag: str) -> None:
        self.operations: list[Operation] = []
        self._tag = tag

    def __call__(
        self, name: str, method: str, path: str, right: str | None,
        answers: dict[int, Any] | None = None, **more: Any,
    ) -> Callable[[Handle], Handle]:  # fmt: skip
        """Have the decorated function answer an operation, which has the fields of `Operation`."""

        def declare(handle: Handle) -> Handle:
            kinds = get_type_hints(handle)
            told = answers or {200: kinds["return"]}
            types = {"takes": kinds.get("asked"), "query": kinds.get("query"), **more}
            given = frozenset(kinds) & {"asked", "query"}
            self.operations.append(
                Operation(name, method, path, right, handle, told, given, tag=self._tag, **types)
            )
            return handle

        return declare
