"""One message: `bide get`, `explain`, `history` and `result`."""

import click
import msgspec

from bide.cli import option
from bide.cli.errors import flush_output
from bide.cli.message_output import as_json, body_bytes, print_sheet, row
from bide.cli.output import STYLES, Output, escape, warn
from bide.cli.store import Store, on_store
from bide.cli.times import iso, local, span
from bide.model.errors import NotAcked, NotEnded, NotRemembered


@on_store(option.queue, click.argument("ids", nargs=-1, required=True, metavar="ID..."))
@option.flag("--body", "only_body", help="Print only the body; text and bytes are unchanged.")
def get(store: Store, out: Output, queue: str, ids: tuple[str, ...], only_body: bool) -> bool:
    """Show messages by id.

    The exit code is 1 if one of them does not exist.

    \b
    Example:
      bide get orders order-42
      bide get orders order-42 --body | jq .total
    """
    orders = store.existing(queue)
    all_there = True
    for id in ids:
        message = orders.get(id)
        if message is None:
            all_there = False
            warn(orders.explain(id).sentence)
        elif only_body:
            out.body(body_bytes(message), is_json=message.json)
            flush_output()
        elif out.terminal:
            print_sheet(out, message, orders.explain(id).sentence)
            if len(ids) > 1:
                out.text("")
        else:
            out.line(as_json(message), *row(message))
    return all_there


@on_store(option.queue, click.argument("ids", nargs=-1, required=True, metavar="ID..."))
@option.choice("--language", ("en", "zh"), "Of the sentence: English or Simplified Chinese.")
def explain(
    store: Store, out: Output, queue: str, ids: tuple[str, ...], language: str | None
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
    all_there = True
    for id in ids:
        explanation = orders.explain(id)
        sentence = explanation.in_language(language or "en")
        all_there = all_there and explanation.state is not None
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
    return all_there


@on_store(option.queue, option.id)
def history(store: Store, out: Output, queue: str, id: str) -> bool:
    """Show how messages with an id have ended, the newest first.

    The queue remembers it for the time of `bide set --history`. In a pipe, each line is: how, when,
    by whom, attempts. The exit code is 1 if nothing is remembered.

    \b
    Example:
      bide history orders order-42
      bide history orders order-42 --json | jq .attempts
    """
    ends = store.existing(queue).history(id)
    for end in ends:
        if out.terminal:
            by = f" by {end.by}" if end.by else ""
            times = f", delivered {end.attempt} time{'s' * (end.attempt != 1)}"
            out.text((end.how, STYLES[end.how]), f" {local(end.moment)}{by}{times}")
            for attempt in end.attempts:
                lasted = span(attempt.start, attempt.end)
                heading = f"  attempt {attempt.number}, {lasted}, {attempt.holder}: "
                out.text((heading, "dim"), (attempt.error or attempt.outcome).splitlines()[0])
        else:
            facts = {
                "id": id,
                "queue": queue,
                "how": end.how,
                "moment": end.moment,
                "by": end.by,
                "due": end.due,
                "attempt": end.attempt,
                "attempts": end.attempts,
            }
            if end.result:
                facts["result"] = msgspec.Raw(end.result)
            out.line(facts, end.how, iso(end.moment), end.by or "", end.attempt)
    if not ends:
        warn(f"nothing is remembered of {id} in {queue}; 'bide set {queue} --history 7d' remembers")
    return bool(ends)


@on_store(option.queue, option.id)
@option.time("--wait", "How long to wait for the end of the message; by default not at all.")
def result(store: Store, out: Output, queue: str, id: str, wait: float | None) -> bool:
    """Print the result of a message: what its handler returned, as JSON.

    The queue remembers it for the time of `bide set --result-ttl`. The exit code is 1 if there is
    none: the message has not ended, it died, expired, was cancelled, or nothing is remembered.

    \b
    Example:
      bide result orders order-42 --wait 30s
    """
    try:
        value = store.existing(queue).result(id, wait=wait)
    except (NotEnded, NotAcked, NotRemembered) as error:
        warn(escape(str(error)))
        return False
    out.json(value)
    return True
