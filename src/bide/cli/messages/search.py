"""`bide search`: search the messages of all queues."""

from typing import Any

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.message_output import print_messages
from bide.cli.output import Output, warn
from bide.cli.store import CommandStore
from bide.model.message import STATES
from bide.queue.search import MAX_LIMIT, MAX_READ, query_of, steps_in_store


@on_store(option.prefix, option.text("--id", "TEXT", "Only ids that start with this."), option.rule)
@option.choice("--state", STATES, "Only messages in this state.")
@option.text("--error", "TEXT", "Only messages whose last error contains this text.")
@option.text("--header", "NAME[=TEXT]", "Only messages with this header, which contains TEXT.")
@option.text("--body", "TEXT", "Only messages whose body contains this text.")
@option.flag("--repeats", help="Only messages that repeat.")
@option.count("-n", "--limit", most=MAX_LIMIT, default=100, help="The maximum number to show.")
@option.count("--read", most=MAX_READ, default=10_000, help="The maximum number to read.")
@option.text("--cursor", "TEXT", "Continue where an earlier search stopped.")
def search(
    store: CommandStore,
    out: Output,
    prefix: str,
    limit: int,
    read: int,
    cursor: str | None,
    **conditions: Any,
) -> bool:
    """Search the messages of all queues.

    All conditions must hold. With PREFIX, only in queues whose names begin with it. A group, a
    range of due times of delayed messages and, on SQLite and PostgreSQL, the beginning of an id are
    found at once. Anything else reads message by message, up to --read; then stderr says how to go
    on.

    In a pipe, each line is: queue, id, state, due, priority, group, error, body. The exit code is 1
    if nothing was found.

    \b
    Example:
      bide search --id order-42
      bide search shop- --state dead --error Timeout
      bide search --body '"customer":42' --header trace=af12
    """
    if not any(value not in (None, False) for value in conditions.values()):
        raise usage_error(
            "search needs a condition: --id, --group, --state, --after, --before, --error, "
            "--header, --body or --repeats; PREFIX only says in which queues"
        )
    query = query_of(**conditions)
    ids_ordered = store.lane.capabilities.ids_ordered
    steps = steps_in_store(prefix, query, cursor, limit, read, ids_ordered=ids_ordered)
    page = store.run(steps)
    if prefix and not page.messages and not store.names(prefix):
        raise store.no_queue(prefix, "no queue begins with")
    print_messages(
        out,
        page.messages,
        "no message matches",
        pipe="queue id state due priority group error body",
        screen="queue id state due away error group repeats body",
    )
    if page.cursor is not None:
        warn(f"{page}; go on with --cursor {page.cursor}")
    return bool(page.messages)
