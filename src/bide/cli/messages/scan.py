"""`bide scan`: list messages by state, group or time."""

from typing import Any

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import ROW, RUN_ROW, SCREEN_ROW, SCREEN_RUN_ROW, print_messages
from bide.cli.option import MORE, SCREEN
from bide.cli.output import Output, warn
from bide.cli.rules import words_of
from bide.cli.store import CommandStore
from bide.model.ended import why_not_kept
from bide.model.message import STATES, State


@on_store(option.queue)
@option.choice("--state", STATES, "Only messages in this state, in its order.")
@option.rule
@option.flag("--repeats", help="Only messages that repeat.")
@option.limit
def scan(
    store: CommandStore,
    out: Output,
    queue: str,
    state: State | None,
    repeats: bool,
    limit: int | None,
    **rule: Any,
) -> None:
    """List messages by state, group or time.

    The queue can be in use meanwhile. In a pipe, each line is: id, state, due, priority, attempt,
    group, body. With --repeats, which reads the others, too, it is: id, state, due, time of the
    run, "held" or nothing, rule, group, body.

    \b
    Example:
      bide scan orders --state delayed --before 2026-12-01T00:00Z
      bide scan mail --group order:42 --json | jq -r .id
      bide scan mail --repeats
    """
    scanned = store.existing(queue)
    messages = scanned.scan(state, **rule)
    if repeats:
        messages = (message for message in messages if words_of(message))
    print_messages(
        out,
        messages,
        pipe=RUN_ROW if repeats else ROW,
        screen=SCREEN_RUN_ROW if repeats else SCREEN_ROW,
        most=limit or (SCREEN if out.terminal else None),
        more="" if limit else f"{MORE}, 'bide counts {queue}' counts",
    )
    if state == "acked":
        counts = scanned.counts()
        if (reason := why_not_kept(queue, state, counts.keep, counts.history)) is not None:
            warn(reason)
