"""Requests to a server about what is not a message: subscriptions."""

from http import HTTPStatus
from typing import Any

import msgspec

from bide.engines.http.connection import Address, Connection
from bide.engines.http.refusals import refusal


def request(
    connection: Connection, address: Address, method: str, path: str, content: Any = None
) -> dict[str, Any] | None:
    """Return what a server answers; `None` if it does not have what the path names.

    Raises:
        BideError: what the server refused it with, or a `StoreError` if it is away.
    """
    data = None if content is None else msgspec.json.encode(content)
    status, answer = connection.ask(method, path, data, "application/json")
    if status == HTTPStatus.NOT_FOUND and b"/docs#problem-not-found" in answer:
        return None
    if not 200 <= status < 300:
        raise refusal(address, status, answer)
    return msgspec.json.decode(answer or b"{}", type=dict[str, Any])
