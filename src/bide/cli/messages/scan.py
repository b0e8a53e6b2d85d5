"""`bide scan`: list messages by state, group or time."""

from typing import Any

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_messages
from bide.cli.option import MORE, SCREEN
from bide.cli.output import Output
from bide.cli.store import CommandStore
from bide.model.message import STATES, State


@on_store(option.queue)
@option.choice("--state", STATES, "Only messages in this state, in its order.")
@option.rule
@option.limit
def scan(
    store: CommandStore,
    out: Output,
    queue: str,
    state: State | None,
    limit: int | None,
    **rule: Any,
) -> None:
    """List messages by state, group or time.

    The queue can be in use meanwhile. In a pipe, each line is: id, state, due, priority, attempt,
    group, body.

    \b
    Example:
      bide scan orders --state delayed --before 2026-12-01T00:00Z
      bide scan mail --group order:42 --json | jq -r .id
    """
    messages = store.existing(queue).scan(state, **rule)
    print_messages(
        out,
        messages,
        most=limit or (SCREEN if out.terminal else None),
        more="" if limit else f"{MORE}, 'bide counts {queue}' counts",
    )
