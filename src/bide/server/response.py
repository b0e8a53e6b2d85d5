"""The answer to a request: whole, or a stream."""

import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]

SAFE_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
"""Headers of each answer that does not say otherwise: no browser guesses its type, and nothing
keeps what a token was needed for."""


_numbers = itertools.count()
_process_part = secrets.token_hex(4)


def new_request_id() -> str:
    """Return an id for a request: the part of this process, and a number."""
    return f"{_process_part}-{next(_numbers):x}"


class Response:
    """The answer to one request.

    Args:
        send: ASGI's `send`.
        request: the id of the request, which its answer, the access log and the action log have.
    """

    def __init__(self, send: Send, request: str) -> None:
        self._send = send
        self.request = request
        self.headers = {"x-request-id": request, **SAFE_HEADERS}
        """Headers of the answer, unless it has others of these names."""
        self.streams = False
        """Whether the answer is a stream, whose status was sent already."""

    async def send_whole(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        """Send the answer in one piece."""
        headers = {**self.headers, **headers, "content-length": str(len(data))}
        if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            data = b""
            del headers["content-length"]
            headers.pop("content-type", None)
        await self._send(_head(status, headers))
        await self._send({"type": "http.response.body", "body": data})

    async def begin_stream(self, kind: str) -> None:
        """Begin a stream of a content type."""
        self.streams = True
        headers = {**self.headers, "content-type": kind, "x-accel-buffering": "no"}
        await self._send(_head(200, headers))

    async def send_part(self, data: bytes) -> None:
        """Send a part of the stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        """Send the end of the stream."""
        await self._send({"type": "http.response.body"})


def _head(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    fields = []
    for name, text in headers.items():
        fields.append((name.encode("latin-1"), text.encode("latin-1")))
    return {"type": "http.response.start", "status": int(status), "headers": fields}
