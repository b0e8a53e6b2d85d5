"""Puts: from items to arguments of the schema's functions, and from their rows to outcomes."""

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Any

from bide.engines.postgres.arrays import booleans, byteas, integers, texts
from bide.engines.postgres.batch import PostgresBatch
from bide.engines.postgres.constants import OUTCOME_STATES
from bide.engines.postgres.reading import of_versions
from bide.model import commands as cmd
from bide.model.message import ATTEMPTS, Item
from bide.model.replies import Outcome, Outcomes, Reply


def only_puts(commands: Sequence[cmd.Command]) -> bool:
    """Whether all commands are puts into one queue that keep existing messages: one call."""
    queue = commands[0].queue
    return all(
        isinstance(command, cmd.Put)
        and command.on_conflict == "keep"
        and command.queue == queue
        and command.origin is None
        for command in commands
    )


def put_one(batch: PostgresBatch, commands: Sequence[cmd.Command]) -> list[Reply] | None:
    """Store one message the short way; `None`: that is not possible, and nothing was stored.

    Returns the reply of the only command.
    """
    command = commands[0]
    if len(commands) > 1 or type(command) is not cmd.Put or command.on_conflict != "keep":
        return None
    if len(command.items) != 1 or command.origin is not None:
        return None
    (item,) = command.items
    if item.died is not None or item.created is not None or item.attempt or item.failures:
        return None  # it has a past: an import or a move puts it
    rule_fields = {} if item.rule is None else {"rule": item.rule, "run": item.run}
    ((moment, lsn),) = batch.call(
        "_put_one",
        command.queue,
        batch.now,
        id=item.id,
        is_json=item.json,
        data=item.data,
        at=item.at,
        delay=item.delay,
        priority=item.priority,
        attempts=item.attempts,
        expires=item.expires,
        group=item.group,
        headers=None if item.headers is None else batch.json(item.headers),
        **batch.identity,
        **rule_fields,
    )
    if moment is None:  # the queue is new, the id exists, ...: `_put` has to decide
        return None
    batch.positions[command.queue] = int.from_bytes(lsn)
    batch.moments[command.queue] = moment
    outcome = stored(item, moment)
    return [Outcomes([outcome], outcome.due)]


def puts(batch: PostgresBatch, queue: str, commands: Sequence[cmd.Put]) -> list[Reply]:
    """Store the messages of consecutive puts into one queue.

    Puts that keep existing messages are one call. Others are a call each: their other options, such
    as a version, may differ.
    """
    replies: list[Reply] = []
    for keeps, group in groupby(commands, lambda command: command.on_conflict == "keep"):
        alike = list(group)
        for joined in [alike] if keeps else [[command] for command in alike]:
            items = [item for command in joined for item in command.items]
            outcomes = iter(_put(batch, queue, joined[0], items))
            for command in joined:
                own_outcomes = list(islice(outcomes, len(command.items)))
                replies.append(Outcomes.of(own_outcomes))
    return replies


def _put(
    batch: PostgresBatch, queue: str, command: cmd.Put, items: Sequence[Item]
) -> list[Outcome]:
    """Put messages as a command says; return the outcome of each.

    Args:
        batch: calls the function.
        queue: where they are put.
        command: its options count for all of them.
        items: the messages, perhaps also those of other commands with the same options.
    """
    only_seqs = None  # of the messages that may be replaced; `None`: all
    if command.if_version is not None:
        ids = [item.id for item in items]
        only_seqs = integers(of_versions(batch, queue, dict.fromkeys(ids, command.if_version)))
        if len(set(ids)) < len(ids):  # one after the other: the first gives another version
            return [outcome for item in items for outcome in _put(batch, queue, command, [item])]
    keeps = command.on_conflict == "keep"
    # The quick way counts all messages as pending, which dead letters are not.
    hopeful = batch.hopeful and keeps and not any(item.died for item in items)
    rows = batch.call(
        "_put",
        queue,
        batch.now,
        mode=command.on_conflict,
        hopeful=hopeful,
        only_seqs=only_seqs,
        **_columns(batch, items),
        **batch.identity,
    )
    summary = rows[-1]  # no message: see `put_outcomes`
    batch.positions[queue] = int.from_bytes(summary.lsn)
    batch.moments[queue] = summary.due
    return put_outcomes(items, rows)


def unless_default(
    values: list[Any], default: Any, as_array: Callable[[list[Any]], bytes]
) -> bytes | None:
    """Return values as an array; `None` if all are the default, which then need not be sent."""
    return None if values.count(default) == len(values) else as_array(values)


def _columns(batch: PostgresBatch, items: Sequence[Item]) -> dict[str, bytes | None]:
    """Return items as the arguments of `_put`: an array for each field.

    An array is `None` if all items have the default of the field. If all delays are equal, their
    array has only one. If no item has a rule, there are no arrays of rules and runs.
    """

    def objects(values: Sequence[Any]) -> bytes:
        return texts([None if value is None else batch.json(value) for value in values])

    delays = [item.delay for item in items]
    rules = [item.rule for item in items]
    rule_columns: dict[str, bytes | None] = {}
    if rules.count(None) < len(rules):
        rule_columns = {"rule": texts(rules), "run": texts([item.run for item in items])}

    return {
        "ids": texts([item.id for item in items]),
        "is_json": unless_default([item.json for item in items], True, booleans),
        "data": byteas([item.data for item in items]),
        "at": unless_default([item.at for item in items], None, integers),
        "delay": integers(delays[:1] if len(set(delays)) == 1 else delays),
        "priority": unless_default([item.priority for item in items], 0, integers),
        "attempts": unless_default([item.attempts for item in items], ATTEMPTS, integers),
        "expires": unless_default([item.expires for item in items], None, integers),
        "group": unless_default([item.group for item in items], None, texts),
        "headers": unless_default([item.headers for item in items], None, objects),
        "latest": unless_default([item.latest for item in items], None, integers),
        "attempt": unless_default([item.attempt for item in items], 0, integers),
        "failures": unless_default([item.failures or None for item in items], None, objects),
        "died": unless_default([item.died for item in items], None, integers),
        "created": unless_default([item.created for item in items], None, integers),
        **rule_columns,
    }


def put_outcomes(items: Sequence[Item], rows: list[Any]) -> list[Outcome]:
    """Return the outcomes of a put from the rows that the function `_put` returns.

    The last row is a summary: its `due` is when the messages were stored. The rows before it are of
    messages whose id existed, or that have `latest`: `number` is the place of the message among the
    items, from 1. A message without a row was stored as it is.

    Args:
        items: the messages.
        rows: those rows; without any, there is no outcome.
    """
    if not rows:
        return []
    *message_rows, summary = rows
    put_at = summary.due
    if not message_rows:  # most puts
        return [stored(item, put_at) for item in items]
    rows_by_number = {row.number: row for row in message_rows}
    outcomes: list[Outcome] = []
    for number, item in enumerate(items, 1):
        row = rows_by_number.get(number)
        if row is None:
            outcomes.append(stored(item, put_at))
        else:
            outcomes.append(outcome(item.id, row.done, row))
    return outcomes


def stored(item: Item, moment: int) -> Outcome:
    """Return the outcome of a new message that was stored at a time, in Unix milliseconds."""
    due = moment + item.delay if item.at is None else item.at
    if item.died is not None:
        return Outcome(item.id, True, "dead", due, item.died)
    return Outcome(item.id, True, "ready" if due <= moment else "delayed", due)


def outcome(id: str, done: bool, row: Any) -> Outcome:
    """Return the outcome of a command for a message.

    Args:
        id: of the message.
        done: whether it was done as asked.
        row: where the message is now, with columns from `state` to `holder`; one without a state
            is not in the queue.
    """
    state = None if row.state is None else OUTCOME_STATES[row.state]
    successor = getattr(row, "successor", None)  # only rows of a put or a change have it
    return Outcome(id, done, state, row.due, row.until, row.holder, successor)
