"""Commands that change nothing."""

from typing import Any

from bide.engines.cursor import Budget
from bide.engines.ended_pages import EndSpan, ended_page
from bide.engines.execution.pausing import pause_of
from bide.engines.rules.record import Record
from bide.engines.storage import QueueStore, StoredQueue
from bide.model import commands as cmd
from bide.model.ended import within_budget
from bide.model.message import Message, size_of
from bide.model.rank import PROMOTE, forecast_start, rank_when_ready, ready_rank
from bide.model.replies import (
    AHEAD,
    ClosedGroup,
    Counts,
    EndedPage,
    Ends,
    Explained,
    Forecasted,
    Found,
    GroupsClosed,
    Names,
    Page,
)
from bide.model.times import LIMITS


def find(store: QueueStore[Any], command: cmd.Find) -> Found:
    """Return messages by id, as many as the budget allows."""
    queue, budget = store.look(command.queue), Budget(command.max_bytes)
    messages: list[Message | None] = []
    for record in queue.read(command.ids):
        if record is not None and not budget.takes(size_of(record)):
            break
        messages.append(None if record is None else record.message(command.queue, queue.now))
    return Found(messages)


def scan(store: QueueStore[Any], command: cmd.Scan) -> Page:
    """Return a page of messages, and the cursor of the next."""
    queue, budget = store.look(command.queue), Budget(command.max_bytes)
    messages: list[Message] = []
    next_cursor = None
    for record, cursor in queue.walk(command):
        if not budget.takes(size_of(record)):
            break
        messages.append(record.message(command.queue, queue.now))
        next_cursor = cursor
        if len(messages) == command.limit:
            break
    else:  # there are no more records
        next_cursor = None
    return Page(messages, next_cursor)


def history(store: QueueStore[Any], command: cmd.History) -> Ends:
    """Return how messages with an id have ended."""
    queue = store.look(command.queue)
    record = queue.load([command.id], bodies=False).get(command.id)
    state = None if record is None else record.state_at(queue.now)
    if record is not None and record.in_transit:
        state = "delayed"  # as it will be
    return Ends(state, within_budget(queue.ends_of(command.id), command.max_bytes))


def list_ended(store: QueueStore[Any], command: cmd.ListEnded) -> EndedPage:
    """Return a page of the messages that have ended."""
    queue = store.look(command.queue)
    span = EndSpan.of(command, queue.now - queue.row.ends_kept)
    return ended_page(command, queue.last_ends(span, command.how))


def explain(store: QueueStore[Any], command: cmd.Explain) -> Explained:
    """Return the state of a message, its place among others, and the pauses of its queue."""
    queue = store.look(command.queue)
    ids = [] if command.id is None else [command.id]
    record = queue.load(ids, bodies=False).get(command.id or "")
    if record is None:
        return Explained(now=queue.now, pauses=queue.pauses())
    message = record.message(queue.row.name, queue.now)
    is_ready = message.state == "ready"
    return Explained(
        now=queue.now,
        pauses=queue.pauses(),
        state=message.state,
        due=message.due,
        planned=message.planned,
        priority=message.priority,
        attempt=message.attempt,
        attempts=message.attempts,
        failure=message.failures[-1] if message.failures else None,
        ahead=_ahead(queue, record) if is_ready else None,
        holder=message.holder,
        since=record.since,
        extended=record.extended,
        stopping=message.stopping,
        progress=message.progress,
        until=message.until,
        ended=message.ended,
        successor=None if record.successor is None else record.successor.at,
        limited=queue.lines.holds(record) if queue.row.limited and is_ready else None,
        rule=message.rule,
        run=message.run,
    )


def _ahead(queue: StoredQueue, record: Record) -> int:
    """Count the messages that are delivered before a ready record, up to `AHEAD` + 1.

    A claim makes the first delayed ones that are due ready, `PROMOTE` of them, and then takes those
    of the highest priority. So these are looked at. In a limited queue those of the same group
    count.
    """
    record_rank = ready_rank(record.due, record.priority)
    next_due = queue.next_due(PROMOTE)
    if record.state == "delayed" and (record.rank, record.seq, record.group) not in next_due:
        return AHEAD + 1  # the next claim does not even make it ready: so many are due before it
    count = queue.ready_before(record, record_rank)
    for rank, seq, group in next_due:
        competes = not queue.row.limited or group == record.group
        if competes and (rank_when_ready(rank), seq) < (record_rank, record.seq):
            count += 1
    return min(count, AHEAD + 1)


def count(store: QueueStore[Any], command: cmd.Count) -> Counts:
    """Return the number of messages in each state, and the settings."""
    queue = store.look(command.queue)
    # A stored message is ready only once a claim has seen that it is due: these count as ready.
    row, due_count = queue.row, queue.due()
    recount, strays = queue.recount(due_count) if command.recount else (None, None)
    pause = pause_of(queue)
    return Counts(
        sizes=row.sizes(due_count),
        flow=queue.flow(),
        kept=row.kept,
        closed=queue.count_closed(),
        paused=pause is not None,
        paused_until=None if pause is None else pause.until,
        keep=row.keep,
        history=row.history,
        result_ttl=row.result_ttl,
        overdue=row.overdue,
        oldest=queue.oldest(due_count),
        recount=recount,
        strays=strays,
        stored=queue.stored() if command.stored else None,
        **{name: getattr(queue.lines.limits, name) for name in LIMITS},
    )


def forecast(store: QueueStore[Any], command: cmd.ForecastCommand) -> Forecasted:
    """Count what falls due in each bucket."""
    queue = store.look(command.queue)
    start = forecast_start(queue.now, command.bucket)
    counts, later_count = queue.due_in(start, command.bucket, command.buckets)
    waiting_count = queue.row.delayed + queue.row.ready
    overdue = waiting_count - sum(counts) - later_count
    return Forecasted(start, overdue, buckets=counts, later=later_count)


def queues(store: QueueStore[Any], command: cmd.Queues) -> Names:
    """Return the names of the queues that begin with a prefix."""
    return Names(store.names(command.queue))


def closed_groups(store: QueueStore[Any], command: cmd.ClosedGroups) -> GroupsClosed:
    """Return a page of the groups that are closed now."""
    queue = store.look(command.queue)
    after = max(command.after or ClosedGroup(0, ""), ClosedGroup(queue.now + 1, ""))
    groups = queue.closed_groups(after, command.limit + 1)
    return GroupsClosed(groups[: command.limit], more=len(groups) > command.limit)
