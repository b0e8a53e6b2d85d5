"""A task of Celery as it waits in a store: what is published to the broker when it is due."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bide.model.errors import InvalidArgument


class TaskMessage(msgspec.Struct, omit_defaults=True):
    """A message of Celery's protocol 2, with its place on the broker.

    Example:
        >>> TaskMessage("shop.expire", '[[42], {}, {}]', headers={"id": "a"}).content_type
        'application/json'
    """

    task: str
    """The name of the task."""
    text: str | None = None
    """The serialized arguments, exactly as Celery has made them, if they are text."""
    data: bytes | None = None
    """The same if they are not, as pickle's; in base64 in JSON."""
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    compression: str | None = None
    headers: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    """`correlation_id`, `reply_to`, `priority`, `delivery_mode` and others."""
    exchange: str = ""
    routing_key: str = ""
    declare: list[str] = []
    """The queues of the Celery app that are declared before it is published."""


def id_of(headers: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the id of a task's message, and its group.

    A retry has the id of its task, and so has a task that replaces another one. Their message may
    be put before that of the first run is acked, so it has an id of its own. Its group is the task.

    Example:
        >>> id_of({"id": "a", "retries": 0}), id_of({"id": "a", "retries": 2})
        (('a', None), ('a.retry-2', 'a'))
    """
    id = str(headers["id"])
    retries, replaced = headers.get("retries") or 0, headers.get("replaced_task_nesting") or 0
    if not retries and not replaced:
        return id, None
    return f"{id}.retry-{retries}" + (f".replaced-{replaced}" if replaced else ""), id


def encoded(message: TaskMessage) -> Any:
    """Return the body of a message in the store.

    Raises:
        InvalidArgument: an option of the task is no JSON.
    """
    try:
        return msgspec.to_builtins(message)
    except TypeError as error:
        raise InvalidArgument(
            f"task {message.task} has a header or an option that is not JSON ({error}), so it "
            "cannot wait in bide; leave the option away, or convert it"
        ) from error
