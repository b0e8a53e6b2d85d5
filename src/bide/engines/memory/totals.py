"""Counts and forecasts of a queue in memory."""

from itertools import chain, islice, pairwise

from bide.engines.memory.queue_state import QueueState
from bide.model.commands import Count, Forecast
from bide.model.message import stored_size
from bide.model.rank import forecast_start
from bide.model.replies import Counts, Flow, Forecasted, Sizes
from bide.model.times import LIMITS


def counts(queue: QueueState, command: Count, now: int) -> Counts:
    """Return the number of records in each state."""
    ready, due = queue.sets["ready"], queue.due_by(now)
    delayed = len(queue.sets["delayed"])
    sizes = Sizes(
        delayed - due, len(ready) + due, len(queue.sets["leased"]), len(queue.sets["dead"])
    )
    waiting = chain(ready, islice(queue.sets["delayed"], min(due, 1)))
    return Counts(
        sizes,
        Flow(**queue.tally),
        kept=len(queue.sets["acked"]) + len(queue.sets["expired"]),
        paused=queue.paused,
        keep=queue.keep,
        history=queue.ends.history,
        result_ttl=queue.ends.result_ttl,
        oldest=min((record.due for _, _, record in waiting), default=None),
        recount=sizes if command.recount else None,
        strays=queue.strays() if command.recount else None,
        stored=_stored(queue) if command.stored else None,
        **{name: getattr(queue.lines, name) for name in LIMITS},
    )


def _stored(queue: QueueState) -> int:
    records = queue.records.values()
    successors = [record.successor for record in records if record.successor is not None]
    return queue.ends.size + sum(map(stored_size, records)) + sum(map(stored_size, successors))


def forecast(queue: QueueState, command: Forecast, now: int) -> Forecasted:
    """Return how many records are due when."""
    start = forecast_start(now, command.bucket)
    edges = [start + command.bucket * number for number in range(command.buckets + 1)]
    edges[0] = now
    below = [queue.due_by(edge) for edge in edges]
    buckets = [after - before for before, after in pairwise(below)]
    overdue = len(queue.sets["ready"]) + below[0]
    return Forecasted(start, overdue, buckets, len(queue.sets["delayed"]) - below[-1])
