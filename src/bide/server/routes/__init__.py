"""The operations of the API, one file a noun."""

from bide.server.routes import (
    batch,
    changes,
    dead,
    deliveries,
    ending,
    events,
    explanation,
    messages,
    monitoring,
    queues,
    search,
    subscriptions,
    undoing,
    workers,
)

OPERATIONS = tuple(
    operation
    for noun in (
        messages, changes, undoing, explanation, ending, deliveries, queues, search, dead,
        subscriptions, batch, events, workers, monitoring,
    )
    for operation in noun.route.operations
)  # fmt: skip
"""All of them, in the order in which they are described."""
