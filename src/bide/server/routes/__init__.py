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

OPERATIONS: tuple[Operation, ...] = (
    *MESSAGES, *CHANGES, *UNDOING, *EXPLANATION, *ENDING, *DELIVERIES, *QUEUES, *SEARCH, *DEAD,
    *SUBSCRIPTIONS, *BATCH, *EVENTS, *WORKERS, *MONITORING,
)  # fmt: skip
"""All of them, in the order in which they are described."""
