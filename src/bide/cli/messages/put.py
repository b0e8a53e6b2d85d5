"""`bide put`: store a message until it is due."""

from collections.abc import Iterator
from typing import IO, Any

import click

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.errors import usage_error
from bide.cli.input import CHUNK_BYTES, Form, check_size, decode_body, read_body
from bide.cli.output import DONE, NOTHING, Bar, Output, plural, warn
from bide.cli.putting import put_one
from bide.cli.rules import set_rule, set_window
from bide.cli.store import CommandStore, refuse_internal
from bide.model.body import encode
from bide.model.errors import InvalidArgument, StoreError
from bide.model.replies import Outcome
from bide.queue.sync import Queue

SINGLE_OPTIONS = ("id", "headers", "if_version", "latest")
"""The options that cannot be shared by many messages."""

BATCH_LINES = 1_000
"""The maximum number of lines that one commit puts."""


@on_any_store(option.queue, click.argument("body", required=False))
@option.put_options(option.message)
@option.body_form
@option.body_file
@option.flag("--lines", help="Each line of stdin (or of --file) is a message.")
@option.max_body
def put(
    store: CommandStore,
    out: Output,
    queue: str,
    body: str | None,
    form: Form | None,
    file: str | None,
    lines: bool,
    max_body: int,
    **options: Any,
) -> bool:
    """Store a message until it is due.

    BODY must be JSON, unless you use --text or --bytes; '-' reads it from stdin. Without --delay
    and --at, the message is due at once. In a pipe, it prints the id; stderr says if nothing was
    stored.

    If the id exists already, the existing message is kept. This is not a failure: a put can be
    repeated. With --on-conflict replace, the new message replaces the existing one, unless a worker
    holds it: every option that you do not repeat gets its default (priority, attempts, expiry,
    group, headers, due now), and earlier attempts and failures are forgotten, also those of a dead
    letter. To deliver a dead letter again unchanged, use `bide revive`. With --on-conflict raise,
    the existing message stays. With replace and raise, the exit code is 1 if nothing was stored.
    With --if-version, the message is replaced only if it is unchanged since you read it; if it does
    not exist, nothing is stored.

    What is put into a closed group is not stored: then the exit code is 1.

    With --latest, each put of the id moves its due time to --delay from now, but not past that
    time (debounce). If a worker holds the message, the new one follows it when the lease ends.

    With --timezone, --at is a local date: the message keeps date and zone, and moves if the rules
    of the zone change before then.

    With --cron or --every, the message repeats: each run ends as a message does, and the next one
    takes its place under the same id. It is first due at the first time of the rule, unless --delay
    or --at says when.

    With --window, the message is delivered in these hours of the week only, in the time zone of
    --timezone. A time without a day applies to every day, and a day without a time is the whole
    day; "Mon-Fri 09:00-12:00, 13:00-18:00; Sat 10:00-14:00" has several. What is due outside waits
    for the next opening.

    \b
    Example:
      bide put orders '{"order": 42}' --delay 30m --id order-42
      bide put mail "good morning" --text --at 2026-12-01T09:00+01:00
      bide put mail '"hello"' --at "2027-03-28 09:00" --timezone Europe/Paris
      producer | bide put events --lines --delay 10s
      bide put mail '"weekly"' --id ann/weekly --cron "0 9 * * MON" \\
        --timezone Europe/Berlin
      bide put calls '"ann"' --window "Mon-Fri 09:00-18:00" \\
        --timezone Europe/Berlin --holidays holidays.ics
    """
    refuse_internal(queue)
    set_window(options)
    set_rule(options)
    form = form or "json"
    if lines:
        has_single_option = any(options[name] is not None for name in SINGLE_OPTIONS)
        if has_single_option or body not in (None, "-") or options["on_conflict"] == "raise":
            raise usage_error(
                "--lines takes many bodies, from stdin or --file, and what they share: no --id, "
                "--header, --if-version, --latest or --on-conflict raise"
            )
        return _put_lines(store.queue(queue, max_body), out, form, file, max_body, options)
    value = decode_body(read_body(body, file, form, max_body), form)
    return put_one(store, out, queue, value, max_body=max_body, **options)


def _put_lines(
    queue: Queue,
    out: Output,
    form: Form,
    file: str | None,
    max_body: int,
    options: dict[str, Any],
) -> bool:
    """Put each line of a file or stdin, and print how many messages were stored.

    If a batch fails, stderr says up to which line all were put.

    Returns:
        Whether all were stored: none was refused, since its group is closed.
    """
    shared = {name: value for name, value in options.items() if name not in SINGLE_OPTIONS}
    stored = refused = 0
    progress = "no line is known to be put"
    with Bar(f"putting into {queue.name}") as bar, click.open_file(file or "-", "rb") as stream:
        try:
            for batch in _batches(stream, form, max_body):
                values = [decode_body(line, form, f"line {number}") for number, line in batch]
                outcomes = _put_batch(queue, batch, values, max_body, shared)
                stored += sum(1 for outcome in outcomes if outcome.done)
                refused += sum(1 for outcome in outcomes if outcome.state == "closed")
                last_number, _line = batch[-1]
                progress = f"the lines up to line {last_number} were put"
                bar.advance(len(batch))
        except (click.UsageError, InvalidArgument, StoreError, KeyboardInterrupt):
            warn(progress)
            raise
    sentence = f"put {plural(stored, 'message')} into {queue.name}"
    facts = {"stored": stored, "refused": refused}
    out.report(facts, DONE if stored or not refused else NOTHING, sentence)
    if refused:
        warn(f"not stored: {plural(refused, 'message')}, whose group {shared['group']} is closed")
    return not refused


def _put_batch(
    queue: Queue,
    batch: list[tuple[int, bytes]],
    values: list[Any],
    max_body: int,
    shared: dict[str, Any],
) -> list[Outcome]:
    """Put the bodies of a batch of lines.

    Raises:
        InvalidArgument: an option, or the body of a line, which the error then names.
    """
    try:
        return queue.put_many(values, **shared)
    except InvalidArgument:
        for (number, _line), value in zip(batch, values, strict=True):
            try:
                encode(value, max_body)
            except InvalidArgument as error:
                raise InvalidArgument(f"line {number}: {error}") from error
        raise


def _batches(stream: IO[bytes], form: Form, max_body: int) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the lines of a stream with their numbers, in batches that are put in one commit.

    A batch does not wait to be full, so lines of a slow producer are put as they come.
    """
    line_count, unfinished_line = 0, b""
    read = getattr(stream, "read1", stream.read)  # `read1` returns what there is
    while True:
        chunk = read(CHUNK_BYTES)
        whole_lines = (unfinished_line + chunk).split(b"\n")
        unfinished_line = whole_lines.pop() if chunk else b""  # at the end, the last one is whole
        numbered_lines = [
            (number, line.removesuffix(b"\r"))
            for number, line in enumerate(whole_lines, line_count + 1)
            if line.strip()
        ]
        line_count += len(whole_lines)
        for start in range(0, len(numbered_lines), BATCH_LINES):
            yield numbered_lines[start : start + BATCH_LINES]
        if not chunk:
            return
        check_size(len(unfinished_line), form, max_body, f"line {line_count + 1}")
