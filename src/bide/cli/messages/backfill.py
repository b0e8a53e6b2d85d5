"""`bide backfill`: put the runs of a message that are in a span of time."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.message_output import outcome_json, sentence_of
from bide.cli.output import DONE, NOTHING, Output, plural, warn
from bide.cli.rules import of_repeating
from bide.cli.store import CommandStore
from bide.cli.times import iso


@on_store(option.queue, option.id)
@option.moment("--after", "Runs of this time or later.")
@option.moment("--before", "Runs before this time.")
def backfill(
    store: CommandStore,
    out: Output,
    queue: str,
    id: str,
    after: float | None,
    before: float | None,
) -> bool:
    """For a message that repeats, put its runs in a time span.

    Each run is a message of its own, whose id is that of the message, "@" and the time of the run,
    so repeating the command puts none twice. It does not repeat, and is due at its time: at once if
    that has passed.

    In a pipe, each line is: id, "stored", "kept" (it was there) or "no", state, due. The exit code
    is 1 if there is no run in that span, no such message, or its group is closed.

    \b
    Example:
      bide backfill reports daily --after 2026-11-01T00:00Z \\
        --before 2026-11-08T00:00Z
    """
    if after is None or before is None:
        raise usage_error("backfill needs a span: --after and --before")
    orders = store.existing(queue)
    if orders.get(id) is None:
        warn(orders.explain(id).sentence)
        return False
    with of_repeating(queue, id):
        outcomes = orders.backfill(id, after=after, before=before)
    refused = [outcome for outcome in outcomes if outcome.state == "closed"]
    if not out.terminal:
        for outcome in outcomes:
            result = "stored" if outcome.done else "no" if outcome.state == "closed" else "kept"
            state = outcome.state or "gone"
            out.line(outcome_json(outcome), outcome.id, result, state, iso(outcome.due))
    elif not outcomes:
        out.text(NOTHING, f"no run of {id} is in that span")
    elif refused:
        warn(f"nothing was put: {sentence_of(out, refused[0], refused[0].id)}")
    else:
        count = sum(1 for outcome in outcomes if outcome.done)
        kept = len(outcomes) - count
        remark = f"; {kept:,} were there already" if kept else ""
        out.text(DONE, f"put {plural(count, 'run')} of {id}{remark}")
    return bool(outcomes) and not refused
