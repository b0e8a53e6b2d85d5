"""Put one message, and print the outcome."""

from typing import Any

from bide.cli.message_output import outcome_json, sentence_of
from bide.cli.output import DONE, NOT_DONE, Output, warn
from bide.cli.store import CommandStore
from bide.cli.times import when
from bide.model.limits import MAX_BODY
from bide.model.replies import Outcome


def put_one(
    store: CommandStore,
    out: Output,
    queue: str,
    body: Any,
    *,
    on_conflict: str,
    if_version: str | None,
    max_body: int = MAX_BODY,
    **options: Any,
) -> bool:
    """Put a message, and print the outcome; return whether it is what was asked for.

    Args:
        store: the store.
        out: where to print.
        queue: the name of the queue.
        body: of the message, or a `NewMessage` with its own options.
        on_conflict: as for `Queue.put`; with "keep", an id that exists is no failure.
        if_version: as for `Queue.put`.
        max_body: the maximum size of the body.
        options: more of them for `Queue.put`.
    """
    if as_seen := if_version is not None:
        store.must_exist()  # the version was read there; a put would create the queue
        store.must_have(queue)
    place: Any = store.queue(queue, max_body)
    outcome: Outcome = place.put(body, on_conflict=on_conflict, if_version=if_version, **options)
    kept = on_conflict == "keep"
    _print(out, outcome, kept=kept, as_seen=as_seen)
    return outcome.done or kept


def _print(out: Output, outcome: Outcome, *, kept: bool, as_seen: bool) -> None:
    state = sentence_of(out, outcome, outcome.id, as_seen=as_seen and not outcome.done)
    why = f"{'kept the existing message' if kept else 'not replaced'}: {state}"
    if out.as_json:
        out.json(outcome_json(outcome))
    elif not out.terminal:
        out.row(outcome.id)
        if not outcome.done:
            warn(why)
    elif outcome.successor is not None:
        follows = f"the new one follows it, due {when(outcome.successor)}"
        out.text(DONE, f"{outcome.holder} holds {outcome.id}; {follows}")
    elif outcome.done:
        out.text(DONE, state)
    else:
        out.text(("= ", "yellow") if kept else NOT_DONE, why)
