"""The operations of the API, one file a noun."""

from bide.server.routes import (
    batch,
    changes,
    deliveries,
    events,
    messages,
    monitoring,
    queues,
    subscriptions,
    undoing,
)

OPERATIONS = tuple(
    operation
    for routes in (
        messages.route, changes.route, undoing.route, deliveries.route, queues.route,
        changes.dead_letters, subscriptions.route, batch.route, events.route, monitoring.workers,
        monitoring.route,
    )
    for operation in routes.operations
)  # fmt: skip
"""All of them, in the order in which they are described."""
