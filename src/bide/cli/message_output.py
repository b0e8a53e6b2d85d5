"""How messages and outcomes are shown: to programs, in pipes, and to people."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bide.cli.output import DONE, NOT_DONE, STYLES, Output, Part, escape
from bide.cli.tables import ID, TEXT, Cell, Column, grid
from bide.cli.times import iso, local, now_ms, relative, rounded, span
from bide.model.message import ATTEMPTS, Message
from bide.model.options import options_of
from bide.model.replies import Outcome

COLUMNS = (
    Column("id", least=ID), Column("state"), Column("due"), Column("", falls=5, right=True),
    Column("prio", falls=3, right=True, unless="0"),
    Column("attempt", falls=4, right=True, unless=f"0/{ATTEMPTS}"),
    Column("group", falls=2, unless=""), Column("body", least=TEXT, falls=1),
)  # fmt: skip


def as_json(message: Message, **more: Any) -> dict[str, Any]:
    """Return all fields of a message for JSON. Times are Unix milliseconds."""
    found = msgspec.structs.asdict(message)
    is_json, data = found.pop("json"), found.pop("data")
    del found["secret"]
    if (successor := found.pop("successor")) is not None:
        found["successor"] = successor.due(0)
    failures = [msgspec.structs.asdict(failure) for failure in found.pop("failures")]
    found = {name: value for name, value in found.items() if value is not None}
    found |= {"version": message.version, **more}
    if failures:
        found["failures"] = failures
    if is_json and not data:
        return found  # the server withholds the body
    # JSON goes through as it is; bytes become base64.
    found["body" if is_json else "bytes"] = msgspec.Raw(data) if is_json else data
    return found


def body_line(message: Message) -> str:
    """Return a body on one line: JSON as it is, bytes as Python writes them."""
    return escape(message.data.decode()) if message.json else repr(message.data)


def body_bytes(message: Message) -> bytes:
    """Return a body for programs: bytes and strings unchanged, anything else as JSON."""
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


def print_messages(
    out: Output, messages: Iterable[Message], empty: str = "no messages", **limit: Any
) -> None:
    """Print messages, in a pipe as they come; `limit` is that of `Output.items`."""
    out.items(
        messages, COLUMNS, facts=as_json, line=row, cells=lambda message: _cells(message, now_ms()),
        empty=lambda: empty, **limit,
    )  # fmt: skip


def _cells(message: Message, now: int) -> Sequence[Cell]:
    return (
        message.id, (message.state, STYLES[message.state]), local(message.due, now),
        (relative(message.due, now), "dim"), str(message.priority), _attempts(message, "/"),
        message.group or "", body_line(message)[:500],
    )  # fmt: skip


def _attempts(message: Message, of: str) -> str:
    """Return the number of deliveries and their maximum.

    For a dead message only the number: its handler or subscription may have had a lower maximum.
    """
    made = str(message.attempt)
    return made if message.state == "dead" else f"{made}{of}{message.attempts}"


def print_sheet(out: Output, message: Message, why: str | None = None) -> None:
    """Print all fields of one message for people, and why it is where it is."""
    now = now_ms()

    def moment(ms: int) -> Cell:
        return [local(ms, now), (f"  {relative(ms, now)}", "dim")]

    rows: list[tuple[str, Cell]] = [
        ("id", (message.id, "bold")),
        ("state", (message.state, STYLES[message.state])),
        ("due", moment(message.due)),
    ]
    if why is not None:
        rows.insert(2, ("why", why))
    if message.created is not None:
        rows.insert(-1, ("created", moment(message.created)))
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
    if message.successor is not None:
        rows.append(("then due", moment(message.successor.due(0))))
    if message.ended is not None:
        rows.append((f"{message.state} since", moment(message.ended)))
    rows += [("header", f"{name}: {text}") for name, text in (message.headers or {}).items()]
    for failure in message.failures:
        lasted = span(failure.started, failure.moment, now)
        told = f"attempt {failure.attempt}, {lasted}, {failure.holder}: "
        reason = "\n".join(failure.reason.splitlines())
        rows.append(("failed", [(told, "dim"), (reason, "red")]))
    rows.append(("body", body_line(message)))
    out.console.print(grid([[(name, "dim"), cell] for name, cell in rows], "rl"))


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a command on one message, for JSON."""
    found: dict[str, Any] = {"id": outcome.id, "done": outcome.done, "state": outcome.state}
    more = {name: getattr(outcome, name) for name in ("due", "until", "holder", "successor")}
    return found | {name: value for name, value in more.items() if value is not None}


def print_outcomes(
    out: Output, outcomes: Iterable[Outcome], verb: str, *, as_seen: bool = False
) -> bool:
    """Print the outcome for each message; return whether all of it was done.

    In a pipe, each line is: id, the verb or "no", the state of the message, and a sentence about it
    if nothing was done.

    Args:
        out: where to print.
        outcomes: what the store answered.
        verb: what the command does, such as "acked".
        as_seen: whether the change depended on the message being as the user saw it.
    """
    all_done = True
    for outcome in outcomes:
        all_done = all_done and outcome.done
        why = "" if outcome.done else standing(out, outcome, as_seen=as_seen)
        if not out.terminal:
            columns = verb if outcome.done else "no", outcome.state or "gone", why
            out.line(outcome_json(outcome), outcome.id, *columns)
        elif outcome.done:
            out.text(DONE, f"{outcome.id} {verb}", *_then(outcome))
        else:
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


def moment_of(out: Output, ms: int) -> str:
    """Return a time for a sentence: in the local zone on a terminal, else in UTC."""
    return local(ms, now_ms()) if out.terminal else iso(ms)


def standing(out: Output, outcome: Outcome, name: str = "it", *, as_seen: bool = False) -> str:
    """Return the state of a message as a sentence.

    Args:
        out: times are in the local zone on a terminal, else in UTC.
        outcome: what the store answered.
        name: how the sentence names the message.
        as_seen: whether the change depended on the message being as the user saw it.
    """
    if outcome.state is None:
        return "there is no such message in the queue (it never was, or is gone)"
    if outcome.state == "leased" and outcome.until is not None:
        when, left = moment_of(out, outcome.until), rounded(max(0, outcome.until - now_ms()))
        return f"{outcome.holder} holds {name} until {when} ({left} left)"
    if outcome.state in ("delayed", "ready") and outcome.due is not None:
        other = ", and no longer as you saw it" if as_seen else ""
        return f"{name} is {outcome.state}, due {moment_of(out, outcome.due)}{other}"
    since = "" if outcome.until is None else f" since {moment_of(out, outcome.until)}"
    return f"{name} is {outcome.state}{since}"
