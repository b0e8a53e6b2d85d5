"""`bide explain`: tell why messages are where they are."""

import click
import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import Output
from bide.cli.store import CommandStore


@on_store(option.queue, click.argument("ids", nargs=-1, required=True, metavar="ID..."))
@option.choice(
    "--language", ("en", "zh"), "The language of the sentence: English or Simplified Chinese."
)
def explain(
    store: CommandStore, out: Output, queue: str, ids: tuple[str, ...], language: str | None
) -> bool:
    """Tell why messages are where they are.

    When a message is due, who holds it and since when, or why no worker has taken it: the queue is
    paused, a limit is reached, no worker serves it, all workers are busy, other messages go first.
    In a pipe, each line is: id, state, reasons with commas between them, sentence. The exit code is
    1 if a message does not exist.

    \b
    Example:
      bide explain orders order-42
      bide explain orders order-42 --json | jq .facts
    """
    orders = store.existing(queue)
    all_exist = True
    for id in ids:
        explanation = orders.explain(id)
        sentence = explanation.in_language(language or "en")
        all_exist = all_exist and explanation.state is not None
        if out.terminal:
            out.text(sentence)
            continue
        facts = {
            "id": id,
            "queue": queue,
            "state": explanation.state,
            "reasons": explanation.reasons,
            "sentence": sentence,
            "facts": msgspec.structs.asdict(explanation.facts),
        }
        out.line(facts, id, explanation.state or "gone", ",".join(explanation.reasons), sentence)
    return all_exist
