"""How messages and outcomes are shown: to programs, in pipes, and to people."""

from collections.abc import Iterable
from typing import Any

import msgspec

from bide.cli.output import DONE, NOT_DONE, STYLES, Output, Part, escape
from bide.cli.tables import ID, TEXT, Cell, Column, grid, print_table
from bide.cli.times import iso, local, now_ms, relative, rounded
from bide.model.message import ATTEMPTS, Message
from bide.model.options import options_of
from bide.model.replies import Outcome

__all__ = [
    "as_json", "body_bytes", "body_line", "changed", "outcome_json", "print_messages",
    "print_outcomes", "print_sheet", "row", "standing", "state_and_due"
]  # fmt: skip


def as_json(message: Message, **more: Any) -> dict[str, Any]:
    """Return all fields of a message for JSON. Times are Unix milliseconds."""
    found = msgspec.structs.asdict(message)
    is_json, data = found.pop("json"), found.pop("data")
    failures = [msgspec.structs.asdict(failure) for failure in found.pop("failures")]
    found = {name: value for name, value in found.items() if value is not None}
    found |= {"version": message.version, **more}
    if failures:
        found["failures"] = failures
    # JSON goes through as it is; bytes become base64.
    found["body" if is_json else "bytes"] = msgspec.Raw(data) if is_json else data
    return found


def body_line(message: Message) -> str:
    """Return a body on one line: JSON as it is, bytes as Python writes them."""
    return escape(message.data.decode()) if message.json else repr(message.data)


def body_bytes(message: Message) -> bytes:
    """Return a body as a program reads it: bytes and strings as they are, the rest as JSON."""
    body = message.body
    return body.encode() if isinstance(body, str) else message.data


def state_and_due(state: str, due: int, now: int) -> list[Part]:
    """Return a state and when the message is due, for people."""
    return [(state, STYLES[state]), f", due {local(due, now)}", (f" ({relative(due, now)})", "dim")]


def row(message: Message) -> tuple[str, ...]:
    """Return a message as the columns of a line in a pipe."""
    attempts = f"{message.attempt}/{message.attempts}"
    return (
        message.id, message.state, iso(message.due), str(message.priority), attempts,
        message.group or "", body_line(message),
    )  # fmt: skip


def print_messages(out: Output, messages: Iterable[Message], empty: str = "no messages") -> None:
    """Print messages, in a pipe as they come."""
    if not out.terminal:
        for message in messages:
            if out.as_json:
                out.json(as_json(message))
            else:
                out.row(*row(message))
    elif listed := list(messages):
        _print_table(out, listed, now_ms())
    else:
        out.text((empty, "dim"))


def _print_table(out: Output, messages: list[Message], now: int) -> None:
    # A column that says the same of every message says nothing.
    weighed = any(message.priority for message in messages)
    tried = any(message.attempt or message.attempts != ATTEMPTS for message in messages)
    grouped = any(message.group for message in messages)
    chosen = (
        (Column("id", least=ID), True), (Column("state"), True), (Column("due"), True),
        (Column("", falls=5, right=True), True), (Column("prio", falls=3, right=True), weighed),
        (Column("attempt", falls=4, right=True), tried), (Column("group", falls=2), grouped),
        (Column("body", least=TEXT, falls=1), True),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for message in messages:
        cells: list[Cell] = [
            message.id, (message.state, STYLES[message.state]), local(message.due, now),
            (relative(message.due, now), "dim"), str(message.priority), _attempts(message, "/"),
            message.group or "", body_line(message)[:500],
        ]  # fmt: skip
        rows.append([cell for cell, (_, wanted) in zip(cells, chosen, strict=True) if wanted])
    print_table(out, [column for column, wanted in chosen if wanted], rows)


def _attempts(message: Message, of: str) -> str:
    """Return how often a message was handed out, and of how many times at most.

    Of a dead one the first alone: its handler, or its subscription, may have allowed fewer.
    """
    made = str(message.attempt)
    return made if message.state == "dead" else f"{made}{of}{message.attempts}"


def print_sheet(out: Output, message: Message) -> None:
    """Print all fields of one message, for people."""
    now = now_ms()

    def moment(ms: int) -> Cell:
        return [local(ms, now), (f"  {relative(ms, now)}", "dim")]

    rows: list[tuple[str, Cell]] = [
        ("id", (message.id, "bold")),
        ("state", (message.state, STYLES[message.state])),
        ("due", moment(message.due)),
    ]
    if message.expires is not None:
        rows.append(("expires", moment(message.due + message.expires)))
    rows.append(("attempt", _attempts(message, " of ")))
    rows += [
        (name, str(value))
        for name, value in options_of(message).items()
        if name != "attempts" and value is not None
    ]
    rows.append(("version", message.version))
    if message.holder is not None:
        rows.append(("held by", message.holder))
    if message.until is not None:
        rows.append(("held until", moment(message.until)))
    if message.ended is not None:
        rows.append((f"{message.state} since", moment(message.ended)))
    rows += [("header", f"{name}: {text}") for name, text in (message.headers or {}).items()]
    for failure in message.failures:
        told = f"attempt {failure.attempt}, {local(failure.moment, now)}, {failure.holder}: "
        reason = "\n".join(failure.reason.splitlines())
        rows.append(("failed", [(told, "dim"), (reason, "red")]))
    rows.append(("body", body_line(message)))
    out.console.print(grid([[(name, "dim"), cell] for name, cell in rows], "rl"))


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return what became of a message for JSON."""
    found: dict[str, Any] = {"id": outcome.id, "done": outcome.done, "state": outcome.state}
    more = {name: getattr(outcome, name) for name in ("due", "until", "holder")}
    return found | {name: value for name, value in more.items() if value is not None}


def print_outcomes(
    out: Output, outcomes: Iterable[Outcome], verb: str, *, as_seen: bool = False
) -> bool:
    """Print what became of messages; return whether all of it was done.

    In a pipe, each line is: id, the verb or "no", the state of the message, and what that means.

    Args:
        out: where to print.
        outcomes: what the store answered.
        verb: what was to be done.
        as_seen: whether it depended on the messages being as the user saw them.
    """
    all_done = True
    for outcome in outcomes:
        all_done = all_done and outcome.done
        if out.as_json:
            out.json(outcome_json(outcome))
        elif not out.terminal:
            where = "" if outcome.done else standing(outcome, as_seen=as_seen)
            out.row(outcome.id, verb if outcome.done else "no", outcome.state or "gone", where)
        elif outcome.done:
            out.text(DONE, f"{outcome.id} {verb}", *_then(outcome))
        else:
            why = standing(outcome, as_seen=as_seen)
            out.text(NOT_DONE, f"{outcome.id} not {verb}: {why}")
    return all_done


def _then(outcome: Outcome) -> list[Part]:
    now = now_ms()
    if outcome.state == "leased" and outcome.until is not None:
        away = relative(outcome.until, now)
        return [f": held until {local(outcome.until, now)}", (f" ({away})", "dim")]
    if outcome.state not in ("delayed", "ready") or outcome.due is None:
        return []
    return [": ", *state_and_due(outcome.state, outcome.due, now)]


def standing(outcome: Outcome, name: str = "it", *, as_seen: bool = False) -> str:
    """Return the state of a message as a sentence, with times in the local zone.

    Args:
        outcome: what the store answered.
        name: how the sentence names the message.
        as_seen: whether the change depended on the message being as the user saw it.
    """
    now = now_ms()
    if outcome.state is None:
        return "there is no such message in the queue (it never was, or is gone)"
    if outcome.state == "leased" and outcome.until is not None:
        left = rounded(max(0, outcome.until - now))
        return f"{outcome.holder} holds {name} until {local(outcome.until, now)} ({left} left)"
    if outcome.state in ("delayed", "ready") and outcome.due is not None:
        other = changed(outcome) if as_seen else ""
        return f"{name} is {outcome.state}, due {local(outcome.due, now)}{other}"
    return f"{name} is {outcome.state}"


def changed(outcome: Outcome) -> str:
    """Return why a conditional change was not made, if no worker holds the message."""
    return ", and no longer as you saw it" if outcome.state in ("delayed", "ready") else ""
