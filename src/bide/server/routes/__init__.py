"""The operations of the API, in a file for each kind of resource."""

from bide.server.routes import (
    batch,
    changes,
    deliveries,
    ended,
    events,
    groups,
    messages,
    monitoring,
    past,
    queues,
    recovery,
    repeating,
    subscriptions,
    undoing,
)
from bide.server.routes.documentation import documentation_of

_ROUTES = (
    messages.route,
    ended.route,
    changes.route,
    repeating.route,
    undoing.route,
    groups.route,
    deliveries.route,
    queues.route,
    past.route,
    recovery.route,
    changes.dead_letters,
    subscriptions.route,
    batch.route,
    events.route,
    monitoring.workers,
    monitoring.route,
)

_DESCRIBED = [operation for routes in _ROUTES for operation in routes.operations]

OPERATIONS = (*_DESCRIBED, *documentation_of(_DESCRIBED).operations)
"""All operations, in the order of the description."""
