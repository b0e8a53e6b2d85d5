"""An operation of the API: its request, its answers, and the right that it needs.

Routing, checks and the OpenAPI description use these declarations.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_type_hints

from bide.server.limits.request_bodies import Pause

JSON = "application/json"

ANY = "*/*"
"""Of an answer in the content type that a message was put with."""

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
    content_type: str = JSON


Handle = TypeVar("Handle", bound=Callable[..., Awaitable[Any]])


class Operation(NamedTuple):
    """One method of one path."""

    name: str
    method: str
    path: str
    right: str | None
    """The right that the caller needs; "": any valid token; `None`: not even a token."""
    handle: Callable[..., Awaitable[Any]]
    """The function that answers a call; see `Routes`. Its docstring describes the operation: the
    first line is the summary."""
    answers: dict[int, Any]
    """The type of the content by status; `None`: no content."""
    takes: Any = None
    """The type of the request's body."""
    decodes_body: bool = False
    """Whether the handler gets the decoded body."""
    unpack: Callable[[bytes, Pause], Awaitable[Any]] | None = None
    """Decodes a body in msgpack; `None`: it is always JSON."""
    takes_bytes: bool = False
    """Whether a body of any other content type is accepted as bytes."""
    query: Any = None
    """A struct of the query's parameters."""
    headers: Mapping[str, str] = {}
    """Headers that the request may have, with their descriptions."""
    problems: Sequence[int] = ()
    """Statuses of its problems, besides those of every operation."""
    tag: str = ""
    """The heading in the description."""
    content_type: str = JSON
    """The content type of its answers."""
    without_store: Callable[..., Awaitable[Any]] | None = None
    """Answers a call in place of `handle` if the store does not answer who the caller is: with what
    anybody may know. `None`: the call is refused."""


class Routes:
    """Operations, each declared by a decorator of the function that answers it: the handler.

    A handler takes an `ApiCall` and, if it has parameters of these names, the decoded body
    (`content`) and the decoded query (`query`). Their types, and that of the result, describe the
    operation. It returns an `Answer`, the content of an answer with status 200, or `None` if it has
    answered.

    Args:
        tag: the heading in the description.
    """

    def __init__(self, tag: str) -> None:
        self.operations: list[Operation] = []
        self._tag = tag

    def __call__(
        self,
        name: str,
        method: str,
        path: str,
        right: str | None,
        answers: dict[int, Any] | None = None,
        **more: Any,
    ) -> Callable[[Handle], Handle]:
        """Declare an operation, with the fields of `Operation`, that the function answers."""

        def declare(handle: Handle) -> Handle:
            hints = get_type_hints(handle)
            # A handler that decodes the body itself has no `content`, and declares `takes`.
            fields = {"takes": hints.get("content"), "query": hints.get("query"), **more}
            fields["decodes_body"] = "content" in hints
            self.operations.append(
                Operation(
                    name,
                    method,
                    path,
                    right,
                    handle,
                    answers or {200: hints["return"]},
                    tag=self._tag,
                    **fields,
                )
            )
            return handle

        return declare
