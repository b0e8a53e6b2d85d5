"""The operations of the API, one file a noun."""

from bide.server.operation import Operation
from bide.server.routes.batch import BATCH
from bide.server.routes.changes import CHANGES
from bide.server.routes.dead import DEAD
from bide.server.routes.deliveries import DELIVERIES
from bide.server.routes.ending import ENDING
from bide.server.routes.events import EVENTS
from bide.server.routes.explanation import EXPLANATION
from bide.server.routes.messages import MESSAGES
from bide.server.routes.monitoring import MONITORING
from bide.server.routes.queues import QUEUES
from bide.server.routes.search import SEARCH
from bide.server.routes.subscriptions import SUBSCRIPTIONS
from bide.server.routes.undoing import UNDOING
from bide.server.routes.workers import WORKERS

_BY_TAG: dict[str, tuple[Operation, ...]] = {
    "messages": (*MESSAGES, *CHANGES, *UNDOING, *EXPLANATION, *ENDING), "deliveries": DELIVERIES,
    "queues": (*QUEUES, *SEARCH), "dead letters": DEAD, "subscriptions": SUBSCRIPTIONS,
    "batch": BATCH, "events": EVENTS, "workers": WORKERS, "service": MONITORING,
}  # fmt: skip

OPERATIONS = tuple(one._replace(tag=tag) for tag, found in _BY_TAG.items() for one in found)
"""All of them, in the order in which they are described."""
