"""`bide put`."""

from typing import Any, cast

import click

from bide.cli import body as bodies
from bide.cli.errors import usage_error, warn
from bide.cli.messages import changed, outcome_json, standing, state_and_due
from bide.cli.options import (
    flag,
    max_body_option,
    message_options,
    on_any_store,
    queue_argument,
    text_option,
    time_option,
    version_option,
    when_options,
)
from bide.cli.output import DONE, NOT_DONE, Output, plural
from bide.cli.progress import Bar
from bide.cli.store import Store, refuse_own
from bide.cli.times import now_ms
from bide.model.replies import Outcome
from bide.queue.sync import Queue

__all__ = ["put"]

APART = ("id", "headers", "if_version")
"""What each of many messages would need for itself."""


def _headers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str] | None:
    headers = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} must be NAME=VALUE", ctx, param)
        headers[name] = text
    return headers or None


@click.command()
@queue_argument
@click.argument("body", required=False)
@when_options
@text_option("--id", "ID", "A name of your own; made up when missing.")
@time_option("--expires", "How long after its due moment it is still worth delivering.")
@message_options
@click.option(
    "--header", "headers", multiple=True, metavar="K=V", callback=_headers,
    help="Text that travels beside the body; may be repeated.",
)  # fmt: skip
@click.option(
    "--on-conflict", type=click.Choice(["keep", "replace", "raise"]), default="keep",
    show_default=True, help="What to do when the id is there already.",
)  # fmt: skip
@version_option("With --on-conflict replace: only if")
@click.option("--text", "form", flag_value="text", help="The body is text, not JSON.")
@click.option("--bytes", "form", flag_value="bytes", help="The body is bytes, stored as they are.")
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False), metavar="PATH",
    help="Read the body (or, with --lines, the lines) from a file.",
)  # fmt: skip
@flag("--lines", help="Each line of stdin (or of --file) is a message.")
@max_body_option
@on_any_store
def put(
    store: Store, out: Output, queue: str, body: str | None, form: str | None, file: str | None,
    lines: bool, max_body: int, **options: Any,
) -> bool:  # fmt: skip
    """Store a message until it is due.

    BODY must be JSON, unless --text or --bytes says what else it is; '-' reads it from stdin. With
    neither --delay nor --at the message is due at once. In a pipe, prints the id; stderr says when
    nothing was stored.

    A message whose id is there already is kept as it is, which is no failure: a put can be
    repeated. With --on-conflict replace the new message takes its place, unless a worker holds the
    old one: every option that you do not repeat gets its default (priority, attempts, expiry,
    group, headers, due now), and earlier attempts and failures are forgotten, also those of a dead
    letter. To deliver a dead letter again as it is, use `bide revive`. With --on-conflict raise the
    old message stays. Both end with exit code 1 when nothing was stored. With --if-version it is
    replaced only while it is as you saw it, and nothing new is stored.

    \b
    Example:
      bide put orders '{"order": 42}' --delay 30m --id order-42
      bide put mail "good morning" --text --at 2026-12-01T09:00+01:00
      producer | bide put events --lines --delay 10s
    """  # fmt: skip
    refuse_own(queue)
    chosen = cast("bodies.Form", form or "json")
    if lines:
        _refuse_with_lines(body, options)
        _put_lines(store.queue(queue, max_body), out, chosen, file, options)
        return True
    value = bodies.decode(bodies.read(body, file), chosen)
    if as_seen := options["if_version"] is not None:
        store.must_stand()  # as was what somebody saw; a put would make the queue
        store.must_have(queue)
    outcome = store.queue(queue, max_body).put(value, **options)
    _print(out, outcome, options["on_conflict"], as_seen=as_seen)
    return outcome.done or options["on_conflict"] == "keep"


def _print(out: Output, outcome: Outcome, on_conflict: str, *, as_seen: bool) -> None:
    if out.as_json:
        out.json(outcome_json(outcome))
    elif not out.terminal:
        out.row(outcome.id)
        if not outcome.done:
            verb = "kept what was there" if on_conflict == "keep" else "not replaced"
            warn(f"{verb}: {outcome}{changed(outcome) if as_seen else ''}")
    elif outcome.done and outcome.state is not None and outcome.due is not None:
        told = state_and_due(outcome.state, outcome.due, now_ms())
        out.text(DONE, (outcome.id, "bold"), " ", *told)
    elif on_conflict == "keep":
        out.text(("= ", "yellow"), f"kept what was there: {standing(outcome, outcome.id)}")
    else:
        out.text(NOT_DONE, f"not replaced: {standing(outcome, outcome.id, as_seen=as_seen)}")


def _refuse_with_lines(body: str | None, options: dict[str, Any]) -> None:
    if body not in (None, "-"):
        raise usage_error("with --lines the bodies come from stdin or --file")
    if options["id"] is not None:
        raise usage_error("--id names one message; with --lines ids are made up")
    for name, given in (
        ("--header", options["headers"] is not None),
        ("--if-version", options["if_version"] is not None),
        ("--on-conflict raise", options["on_conflict"] == "raise"),
    ):
        if given:
            raise usage_error(f"{name} and --lines do not go together")


def _values(burst: list[tuple[int, bytes]], form: bodies.Form, *, begun: bool) -> list[Any]:
    """Return the bodies of lines that are put together, or not at all."""
    try:
        return [bodies.decode(line, form, f"line {number}") for number, line in burst]
    except click.UsageError as error:
        before = f"what stands before line {burst[0][0]} was put, and nothing from there on"
        told = before if begun else "nothing was put"
        raise click.UsageError(f"{error.message}; {told}", error.ctx) from error


def _put_lines(
    queue: Queue, out: Output, form: bodies.Form, file: str | None, options: dict[str, Any]
) -> None:
    shared = {name: value for name, value in options.items() if name not in APART}
    stored, begun = 0, False
    with Bar(f"putting into {queue.name}") as bar:
        with click.open_file(file or "-", "rb") as stream:
            for burst in bodies.lines_in_bursts(stream):
                values = _values(burst, form, begun=begun)
                begun = True
                stored += sum(outcome.done for outcome in queue.put_many(values, **shared))
                bar.advance(len(burst))
    out.report({"stored": stored}, DONE, f"put {plural(stored, 'message')} into {queue.name}")
