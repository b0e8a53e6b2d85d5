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
        body: the body of the message, or a `NewMessage` with its own options.
        on_conflict: as for `Queue.put`; with "keep", an id that exists is no failure.
        if_version: as for `Queue.put`.
        max_body: the maximum size of the body.
        options: other options of `Queue.put`.
    """
    has_version = if_version is not None  # that of the message as the user saw it
    if has_version:
        store.must_exist()  # the version was read there; a put would create the queue
        store.must_have(queue)
    target: Any = store.queue(queue, max_body)  # Any: the options are those of `Queue.put`
    outcome: Outcome = target.put(body, on_conflict=on_conflict, if_version=if_version, **options)
    keeps_existing = on_conflict == "keep" and outcome.state != "closed"
    _print_outcome(out, outcome, keeps_existing=keeps_existing, as_seen=has_version)
    return outcome.done or keeps_existing


def _print_outcome(out: Output, outcome: Outcome, *, keeps_existing: bool, as_seen: bool) -> None:
    """Print the outcome of a put.

    Args:
        out: where to print.
        outcome: the outcome.
        keeps_existing: whether an id that exists is no failure.
        as_seen: whether the put depended on the message being as the user saw it.
    """
    state = sentence_of(out, outcome, outcome.id, as_seen=as_seen and not outcome.done)
    result = "kept the existing message" if keeps_existing else "not replaced"
    if outcome.state == "closed":
        result = "not stored"
    reason = f"{result}: {state}"
    if out.as_json:
        out.json(outcome_json(outcome))
    elif not out.terminal:
        out.row(outcome.id)
        if not outcome.done:
            warn(reason)
    elif outcome.successor is not None:
        successor = f"the new one follows it, due {when(outcome.successor)}"
        out.text(DONE, f"{outcome.holder} holds {outcome.id}; {successor}")
    elif outcome.done:
        out.text(DONE, state)
    else:
        out.text(("= ", "yellow") if keeps_existing else NOT_DONE, reason)
