"""What changes nothing: messages by id, pages of a scan, counts, and forecasts."""

from collections.abc import Iterator
from itertools import pairwise

from bide.engines.cursor import PHASES, Budget, Phase, cursor_after, position
from bide.engines.memory.queue_state import Entry, QueueState
from bide.engines.record import matches
from bide.model.commands import Count, Find, Forecast, History, Scan
from bide.model.ended import size_of_end, within_budget
from bide.model.message import Message, size_of, stored_size
from bide.model.rank import delayed_reach, forecast_start
from bide.model.replies import Counts, Ends, Flow, Forecasted, Found, Page, Sizes
from bide.model.times import LIMITS


def find(queue: QueueState, command: Find, now: int) -> Found:
    """Return the messages with some ids, as many as the budget allows."""
    budget = Budget(command.max_bytes)
    found: list[Message | None] = []
    for id in command.ids:
        record = queue.records.get(id)
        if record is not None and not budget.takes(size_of(record)):
            break
        found.append(None if record is None else record.message(queue.name, now))
    return Found(found)


def history(queue: QueueState, command: History, now: int) -> Ends:
    """Return how messages with an id have ended."""
    record = queue.records.get(command.id)
    state = None if record is None else record.seen(now)
    return Ends(state, within_budget(queue.ends_of(command.id, now), command.max_bytes))


def scan(queue: QueueState, command: Scan, now: int) -> Page:
    """Return a page of messages, and the cursor of the next."""
    phases = PHASES[command.state]
    number, after = position(command.cursor)
    budget = Budget(command.max_bytes)
    found: list[Message] = []
    last = number, *after
    for index in range(number, len(phases)):
        start = after if index == number else (-1, -1)
        for rank, seq, record in _phase(queue, phases[index], start, now):
            if not matches(record, command.where) or not record.id.startswith(command.prefix or ""):
                continue
            if not budget.takes(size_of(record)):
                return Page(found, cursor_after(*last))
            found.append(record.message(queue.name, now))
            last = index, rank, seq
            if len(found) == command.limit:
                return Page(found, cursor_after(*last))
    return Page(found, None)


def _phase(queue: QueueState, phase: Phase, after: tuple[int, int], now: int) -> Iterator[Entry]:
    low = (after[0], after[1] + 1)
    if phase.state is None:  # all, as they were put
        return ((0, *one) for one in queue.all.irange((low[1],)))
    if phase.due is False:
        low = max(low, (delayed_reach(now) + 1, -1))
    high = (delayed_reach(now) + 1,) if phase.due else None
    found: Iterator[Entry] = queue.sets[phase.state].irange(low, high, inclusive=(True, False))
    return found


def count(queue: QueueState, command: Count, now: int) -> Counts:
    """Return the number of records in each state."""
    due, sets = queue.due_by(now), queue.sets
    sizes = Sizes(
        len(sets["delayed"]) - due, len(sets["ready"]) + due, len(sets["leased"]), len(sets["dead"])
    )
    waiting = [*sets["ready"], *sets["delayed"][: min(due, 1)]]
    return Counts(
        sizes,
        Flow(**queue.tally),
        kept=len(sets["acked"]) + len(sets["expired"]),
        paused=queue.paused,
        keep=queue.keep,
        history=queue.history,
        result_ttl=queue.result_ttl,
        oldest=min((record.due for _, _, record in waiting), default=None),
        recount=sizes if command.recount else None,
        strays=0 if command.recount else None,
        stored=_stored(queue) if command.stored else None,
        **{name: getattr(queue.lines.limits, name) for name in LIMITS},
    )


def _stored(queue: QueueState) -> int:
    records = queue.records.values()
    successors = [record.successor for record in records if record.successor is not None]
    ends = sum(size_of_end(end) for _, end in queue.ends)
    return ends + sum(map(stored_size, records)) + sum(map(stored_size, successors))


def forecast(queue: QueueState, command: Forecast, now: int) -> Forecasted:
    """Return how many records are due when."""
    start = forecast_start(now, command.bucket)
    edges = [start + command.bucket * number for number in range(command.buckets + 1)]
    edges[0] = now
    below = [queue.due_by(edge) for edge in edges]
    buckets = [after - before for before, after in pairwise(below)]
    overdue = len(queue.sets["ready"]) + below[0]
    return Forecasted(start, overdue, buckets, len(queue.sets["delayed"]) - below[-1])
