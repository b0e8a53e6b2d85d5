"""How messages and outcomes are shown: to programs, in pipes, and to people."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bide.cli import output
from bide.cli.output import ID, NAME, STYLES, TEXT, Cell, Column, Output, escape_json, first_line
from bide.cli.rules import (
    is_held,
    rule_facts,
    run_time,
    window_facts,
    words_of,
)
from bide.cli.store import CommandStore
from bide.cli.times import iso, local, relative, when
from bide.model.body import is_readable
from bide.model.errors import UnreadableBody
from bide.model.message import ATTEMPTS, Message
from bide.model.replies import Outcome

PIPE_COLUMNS: dict[str, Callable[[Message], object]] = {
    "queue": lambda message: message.queue,
    "id": lambda message: message.id,
    "state": lambda message: message.state,
    "due": lambda message: iso(message.due),
    "died": lambda message: iso(message.ended),
    "ended": lambda message: iso(message.ended),
    "priority": lambda message: message.priority,
    "attempt": lambda message: message.attempt,
    "attempts": lambda message: f"{message.attempt}/{message.attempts}",
    "group": lambda message: message.group or "",
    "error": lambda message: first_line(message.error),
    "body": lambda message: body_line(message),
    "run": run_time,
    "held": lambda message: "held" if is_held(message) else "",
    "repeats": words_of,
}
"""The columns of a message in a pipe, by name."""

ROW = "id state due priority attempts group body"

RUN_ROW = "id state due run held repeats group body"
"""The columns of a message that repeats, where only such messages are listed."""

SCREEN_COLUMNS: dict[str, tuple[Column, Callable[[Message], Cell]]] = {
    "queue": (Column("queue", least=NAME), lambda message: (message.queue, "bold")),
    "id": (Column("id", least=ID), lambda message: message.id),
    "state": (Column("state"), lambda message: _state(message)),
    "due": (Column("due"), lambda message: "" if is_held(message) else local(message.due)),
    "away": (
        Column("", right=True, extra=True),
        lambda message: "" if is_held(message) else (relative(message.due), "dim"),
    ),
    "died": (Column("died", extra=True), lambda message: when(message.ended or message.due)),
    "ended": (Column("ended"), lambda message: when(message.ended or message.due)),
    "prio": (Column("prio", right=True, extra=True), lambda message: str(message.priority or "")),
    "attempt": (
        Column("attempt", right=True, extra=True),
        lambda message: (
            attempts_of(message, "/") if message.attempt or message.attempts != ATTEMPTS else ""
        ),
    ),
    "attempts": (Column("attempts", right=True, extra=True), lambda message: str(message.attempt)),
    "group": (Column("group", extra=True), lambda message: message.group or ""),
    "error": (Column("error", TEXT, extra=True), lambda message: first_line(message.error)[:100]),
    "last-error": (Column("last error", TEXT), lambda message: (first_line(message.error), "red")),
    "repeats": (Column("repeats", TEXT, extra=True), words_of),
    "body": (Column("body", TEXT, extra=True), lambda message: body_line(message)[:500]),
}
"""The columns of a message in a table on a terminal, by name."""

SCREEN_ROW = "id state due away prio attempt group repeats body"

SCREEN_RUN_ROW = "id state due repeats group body"
"""As `RUN_ROW`."""


def as_json(message: Message, **more: Any) -> dict[str, Any]:
    """Return all fields of a message for JSON. Times are Unix milliseconds."""
    facts = {
        name: value for name, value in msgspec.structs.asdict(message).items() if value is not None
    }
    data = facts.pop("data")
    is_withheld = facts.pop("json") and not data  # by a server: the body is a part of it
    for name in ("secret", "rule", "run"):
        facts.pop(name, None)
    if message.successor is not None:
        facts["successor"] = message.successor.due(0)
    failures = [msgspec.structs.asdict(failure) for failure in facts.pop("failures")]
    facts |= {**rule_facts(message), **window_facts(message)}
    if (version := seen_version(message)) is not None:
        facts["version"] = version
    facts |= more
    if failures:
        facts["failures"] = failures
    if message.json and is_readable(data):
        facts["body"] = msgspec.Raw(data)  # as it is, digit by digit
    elif not is_withheld:  # bytes, or JSON that no program can read
        facts["bytes"] = data  # as base64
    return facts


def seen_version(message: Message) -> str | None:
    """Return the version of a message; `None`: a server withholds the body, a part of it."""
    return None if message.json and not message.data else message.version


def body_line(message: Message) -> str:
    """Return a body on one line: as JSON, safe for a terminal; bytes as Python writes them."""
    return (
        escape_json(message.data.decode(errors="backslashreplace"))
        if message.json
        else repr(message.data)
    )


def body_bytes(message: Message) -> bytes:
    """Return a body for programs: bytes and strings unchanged, anything else as JSON."""
    try:
        body = message.body
    except UnreadableBody:
        return message.data
    return body.encode() if isinstance(body, str) else message.data


def row(message: Message, names: str = ROW) -> list[object]:
    """Return a message as the columns of a line in a pipe."""
    return [PIPE_COLUMNS[name](message) for name in names.split()]


def print_messages(
    out: Output,
    messages: Iterable[Message],
    empty: str = "no messages",
    *,
    pipe: str = ROW,
    screen: str = SCREEN_ROW,
    **limit: Any,
) -> None:
    """Print messages, in a pipe as they come.

    Args:
        out: where to print.
        messages: what to print.
        empty: what a terminal says when there is none.
        pipe: the names of columns in `PIPE_COLUMNS`.
        screen: the names of columns in `SCREEN_COLUMNS`.
        limit: `most` and `more` of `Output.items`.
    """
    columns, cells = zip(*[SCREEN_COLUMNS[name] for name in screen.split()], strict=True)
    out.items(
        messages,
        columns,
        facts=as_json,
        line=lambda message: row(message, pipe),
        cells=lambda message: [cell(message) for cell in cells],
        empty=empty,
        **limit,
    )


def _state(message: Message) -> Cell:
    """Return the state of a message, and how far its worker has come."""
    percent = None if message.progress is None else message.progress.percent
    if is_held(message):
        return ("held", "yellow")
    state = message.state if message.stopping is None else "stopping"
    state_part = (state, STYLES[state])
    return state_part if percent is None else [state_part, (f" {percent} %", "dim")]


def attempts_of(message: Message, of: str) -> str:
    """Return the number of deliveries and their maximum.

    For a dead message only the number: its handler or subscription may have had a lower maximum.
    """
    deliveries = str(message.attempt)
    return deliveries if message.state == "dead" else f"{deliveries}{of}{message.attempts}"


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a command on one message, for JSON."""
    facts = msgspec.structs.asdict(outcome)
    return {name: value for name, value in facts.items() if value is not None or name == "state"}


def print_outcomes(
    store: CommandStore,
    out: Output,
    queue: str,
    outcomes: Iterable[Outcome],
    verb: str,
    *,
    as_seen: bool = False,
    waited: bool = False,
    then: str = "",
) -> bool:
    """Print the outcome for each message; return whether all of it was done.

    In a pipe, each line is: id, the verb or "no", the state of the message, and a sentence about it
    if nothing was done. A message whose worker was asked to stop has the verb "stopping", one whose
    last run a worker holds has "ending".

    Args:
        store: the store.
        out: where to print.
        queue: the name of the queue.
        outcomes: what the store answered.
        verb: what the command does, such as "acked".
        as_seen: whether the change depended on the message being as the user saw it.
        waited: whether what is stopping should have ended by now; else to stop it is enough.
        then: what a terminal says of a message that was changed, instead of its state.

    Raises:
        click.ClickException: there is no such queue.
    """
    all_done = True
    for outcome in outcomes:
        if all_done and not (outcome.done or outcome.state):
            store.must_have(queue)  # only now, so that the usual case needs no extra request
        is_stopping = outcome.state == "stopping"
        all_done = all_done and (outcome.done or (is_stopping and not waited))
        reason = ""
        if is_stopping or not outcome.done:
            reason = sentence_of(out, outcome, as_seen=as_seen)
        is_ending = outcome.state == "ending"
        if not out.terminal:
            result = "stopping" if is_stopping else "ending" if is_ending else "no"
            if outcome.done:
                result = verb
            state = "leased" if is_stopping or is_ending else outcome.state or "gone"
            out.line(outcome_json(outcome), outcome.id, result, state, reason)
        elif is_stopping and not outcome.done:
            out.text(output.WARNING, f"{outcome.id} is stopping: {reason}")
        elif is_ending:
            out.text(output.WARNING, f"{outcome.id} is ending: {reason}")
        elif not outcome.done:
            out.text(output.NOT_DONE, f"{outcome.id} not {verb}: {reason}")
        else:
            new_state = then or (sentence_of(out, outcome) if outcome.state else "")
            new_state = f": {new_state}" if new_state else ""
            out.text(output.DONE, f"{outcome.id} {verb}{new_state}")
    return all_done


def sentence_of(out: Output, outcome: Outcome, name: str = "it", *, as_seen: bool = False) -> str:
    """Return the state of a message as a sentence.

    Args:
        out: says how to write times.
        outcome: what the store answered.
        name: how the sentence names the message.
        as_seen: whether the change depended on the message being as the user saw it.
    """
    time_text = when if out.terminal else iso
    if outcome.state is None:
        return "there is no such message in the queue (it never was, or is gone)"
    if outcome.state == "stopping" and outcome.done:
        return f"{name} was cancelled: stop working on it, and release it"
    if outcome.state == "stopping" and outcome.until is not None:
        lease_end = time_text(outcome.until)
        return (
            f"{outcome.holder} was asked to stop, and holds {name} until {lease_end}; "
            "unless it still acks, the message counts as cancelled"
        )
    if outcome.state == "ending" and outcome.until is not None:
        lease_end = time_text(outcome.until)
        return (
            f"{outcome.holder} holds {name} until {lease_end}; that run is its last one, it "
            "repeats no longer"
        )
    if outcome.state == "settling":
        return f"{outcome.holder} settles {name} in a transaction that is still open"
    if outcome.state == "closed" and outcome.until is not None:
        return f"the group of {name} is closed until {time_text(outcome.until)}"
    if outcome.state == "leased" and outcome.until is not None:
        return f"{outcome.holder} holds {name} until {time_text(outcome.until)}"
    if outcome.state in ("delayed", "ready") and outcome.due is not None:
        other = ", and no longer as you saw it" if as_seen else ""
        return f"{name} is {outcome.state}, due {time_text(outcome.due)}{other}"
    since = "" if outcome.until is None else f" since {time_text(outcome.until)}"
    return f"{name} is {outcome.state}{since}"
