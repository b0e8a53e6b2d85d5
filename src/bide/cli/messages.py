"""How messages and outcomes are shown: to programs, in pipes, and to people."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bide.cli.moments import iso, local, now_ms, relative, rounded
from bide.cli.output import STYLES, Output, printable
from bide.cli.tables import ID, TEXT, Column, print_table
from bide.model.message import ATTEMPTS, Message
from bide.model.replies import Outcome

__all__ = [
    "as_json",
    "body_bytes",
    "body_line",
    "changed",
    "outcome_json",
    "print_messages",
    "print_outcomes",
    "print_sheet",
    "row",
    "standing",
    "state_and_due",
]


def as_json(message: Message, **more: Any) -> dict[str, Any]:
    """Return what there is to say of a message. Moments are Unix milliseconds."""
    found: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "state": message.state,
        "due": message.due,
        "priority": message.priority,
        "attempt": message.attempt,
        "attempts": message.attempts,
        "version": message.version,
        **more,
    }
    for name in ("expires", "group", "headers", "holder", "until", "ended"):
        if (value := getattr(message, name)) is not None:
            found[name] = value
    if message.failures:
        found["failures"] = [
            {name: getattr(failure, name) for name in failure.__struct_fields__}
            for failure in message.failures
        ]
    # JSON goes through as it is; bytes become base64.
    found["body" if message.json else "bytes"] = (
        msgspec.Raw(message.data) if message.json else message.data
    )
    return found


def body_line(message: Message) -> str:
    """Return a body on one line: JSON as it is, bytes as Python writes them."""
    return printable(message.data.decode()) if message.json else repr(message.data)


def body_bytes(message: Message) -> bytes:
    """Return a body as a program reads it: bytes and strings as they are, the rest as JSON."""
    body = message.body
    return body.encode() if isinstance(body, str) else message.data


def state_and_due(state: str, due: int, now: int) -> list[tuple[str, str]]:
    """Return a state and a moment, fit for `Output.text`."""
    return [
        (state, STYLES[state]),
        (f", due {local(due, now)}", ""),
        (f" ({relative(due, now)})", "dim"),
    ]


def row(message: Message) -> tuple[str, ...]:
    """Return a message as the columns of a line in a pipe."""
    attempts = f"{message.attempt}/{message.attempts}"
    return (
        message.id, message.state, iso(message.due), str(message.priority), attempts,
        message.group or "", body_line(message),
    )  # fmt: skip


def print_messages(out: Output, messages: Iterable[Message], empty: str = "no messages") -> int:
    """Print messages, in a pipe as they come; return how many there were."""
    if out.terminal:
        listed = list(messages)
        if listed:
            _print_table(out, listed, now_ms())
        else:
            out.text((empty, "dim"))
        return len(listed)
    count = 0
    for message in messages:
        count += 1
        if out.as_json:
            out.json(as_json(message))
        else:
            out.row(*row(message))
    return count


def _print_table(out: Output, messages: Sequence[Message], now: int) -> None:
    from rich.text import Text

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
    columns = [column for column, wanted in chosen if wanted]
    rows = []
    for message in messages:
        cells = {
            "id": Text(message.id),
            "state": Text(message.state, STYLES[message.state]),
            "due": Text(local(message.due, now)),
            "": Text(relative(message.due, now), "dim"),
            "prio": Text(str(message.priority)),
            "attempt": Text(_attempts(message, "/")),
            "group": Text(message.group or ""),
            "body": Text(body_line(message)[:500]),
        }
        rows.append([cells[column.name] for column in columns])
    print_table(out, columns, rows)


def _attempts(message: Message, of: str) -> str:
    """Return how often a message was handed out, and of how many times at most.

    Of a dead one the first alone: its handler, or its subscription, may have allowed fewer.
    """
    made = str(message.attempt)
    return made if message.state == "dead" else f"{made}{of}{message.attempts}"


def print_sheet(out: Output, message: Message) -> None:
    """Print all there is to say of one message, for people."""
    from rich.table import Table
    from rich.text import Text

    now = now_ms()
    sheet = Table.grid(padding=(0, 2))
    sheet.add_column(style="dim", justify="right")
    sheet.add_column(overflow="fold")

    def moment(ms: int) -> Text:
        return Text.assemble(local(ms, now), (f"  {relative(ms, now)}", "dim"))

    sheet.add_row("id", Text(message.id, "bold"))
    sheet.add_row("state", Text(message.state, STYLES[message.state]))
    sheet.add_row("due", moment(message.due))
    if message.expires is not None:
        sheet.add_row("expires", moment(message.due + message.expires))
    sheet.add_row("priority", str(message.priority))
    sheet.add_row("attempt", _attempts(message, " of "))
    sheet.add_row("version", message.version)
    if message.group is not None:
        sheet.add_row("group", Text(message.group))
    if message.holder is not None:
        sheet.add_row("held by", Text(printable(message.holder)))
    if message.until is not None:
        sheet.add_row("held until", moment(message.until))
    if message.ended is not None:
        sheet.add_row(f"{message.state} since", moment(message.ended))
    for name, value in (message.headers or {}).items():
        sheet.add_row("header", Text(printable(f"{name}: {value}")))
    for failure in message.failures:
        told = f"attempt {failure.attempt}, {local(failure.moment, now)}, {failure.holder}: "
        lines = [printable(line) for line in failure.reason.splitlines()]
        sheet.add_row("failed", Text.assemble((printable(told), "dim"), ("\n".join(lines), "red")))
    sheet.add_row("body", Text(body_line(message)))
    out.console.print(sheet)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return what became of a message, for programs."""
    found: dict[str, Any] = {"id": outcome.id, "done": outcome.done, "state": outcome.state}
    for name in ("due", "until", "holder"):
        if (value := getattr(outcome, name)) is not None:
            found[name] = value
    return found


def print_outcomes(
    out: Output, outcomes: Iterable[Outcome], verb: str, *, as_seen: bool = False
) -> bool:
    """Print what became of messages; return whether all was done.

    In a pipe a line is: id, the verb or "no", the state it is in, and what that means.

    Args:
        out: where.
        outcomes: what became of them.
        verb: what was to become of them.
        as_seen: whether that was only if they still are as somebody saw them.
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
            out.text(("✓ ", "green"), f"{outcome.id} {verb}", *_then(outcome))
        else:
            out.text(
                ("✗ ", "red"), f"{outcome.id} not {verb}: {standing(outcome, as_seen=as_seen)}"
            )
    return all_done


def _then(outcome: Outcome) -> list[tuple[str, str]]:
    now = now_ms()
    if outcome.state == "leased" and outcome.until is not None:
        return [(f": held until {local(outcome.until, now)}", ""),
                (f" ({relative(outcome.until, now)})", "dim")]  # fmt: skip
    if outcome.state not in ("delayed", "ready") or outcome.due is None:
        return []
    return [(": ", ""), *state_and_due(outcome.state, outcome.due, now)]


def standing(outcome: Outcome, name: str = "it", *, as_seen: bool = False) -> str:
    """Return where a message stands, for people, with moments in their own zone.

    Args:
        outcome: what is known of it.
        name: what it is called.
        as_seen: whether it was to be changed only if it still is as somebody saw it.
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
    """Return why a message that nobody holds is as it was, where it had to be as it was seen."""
    return ", and no longer as you saw it" if outcome.state in ("delayed", "ready") else ""
