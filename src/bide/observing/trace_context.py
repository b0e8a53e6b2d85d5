"""The context of a trace, which travels in the headers of messages."""

from collections.abc import Mapping

import msgspec

from bide.model.commands import Put

PARENT = "traceparent"
"""The header of W3C Trace Context with the span that put a message."""


def stamped(command: Put, context: Mapping[str, str], mark: str) -> Put:
    """Return a put with this context in the headers of its messages.

    Args:
        command: the put.
        context: the headers that carry the context.
        mark: the header by which a context is recognized: a message that has it keeps its own. No
            header of a message is replaced.
    """
    items = [
        item
        if mark in (item.headers or {})
        else msgspec.structs.replace(item, headers={**context, **(item.headers or {})})
        for item in command.items
    ]
    return msgspec.structs.replace(command, items=items)
