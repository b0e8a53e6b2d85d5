"""`bide import`: put messages from an export, a sorted set in Redis, or another library."""

from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.errors import raise_on_termination, usage_error
from bide.cli.input import export_lines
from bide.cli.output import DONE, NOTHING, Bar, Output, plural, warn
from bide.cli.store import CommandStore
from bide.engines.registry import mask
from bide.importing import take_over
from bide.importing.redis_sorted_set import load_sorted_set
from bide.queue.sync import Queue

OPTIONS_BY_SOURCE = {
    "--from": {"source_queue", "allow_pickle", "delayed_only", "dry_run"},
    "--redis-zset": {"scores", "body", "id_field", "remove", "dry_run"},
}
"""The options of an import from elsewhere; an export has none of them."""


@on_any_store(option.queue, click.argument("file", default="-", metavar="[FILE]"), name="import")
@option.text("--redis-zset", "KEY", "Import this sorted set; FILE is the URL of its Redis.")
@option.choice("--scores", ["auto", "s", "ms"], "For a sorted set: the unit of its scores.", "auto")
@option.choice("--body", ["auto", "json", "text", "bytes"], "For a sorted set: its format.", "auto")
@option.text("--id-field", "NAME", "For a sorted set of JSON objects: the field with the id.")
@option.flag("--remove", help="For a sorted set: remove imported members whose score is the same.")
@option.choice(
    "--from",
    ["celery", "rq", "arq", "huey", "bullmq"],
    "Move the pending messages of this library; in place of FILE, give the URL of its Redis.",
)
@option.text("--source-queue", "NAME", "With --from: the queue there; by default the usual one.")
@option.flag("--allow-pickle", help="With --from: move pickled messages too; no code in them runs.")
@option.flag("--delayed-only", help="With --from: move only messages with a due time.")
@option.flag("--dry-run", help="For a sorted set and with --from: only print what would be put.")
@option.max_body
def import_(
    store: CommandStore,
    out: Output,
    queue: str,
    file: str,
    redis_zset: str | None,
    max_body: int,
    **options: Any,
) -> bool:
    """Put messages from an export, a sorted set in Redis, or another library.

    FILE, or stdin, has the lines of an export. A message whose id exists already is kept unchanged,
    so an import can be repeated. Each thousand lines, or 8 MiB, are one commit. A line that is not
    valid stops the import; the error says which one. The exit code is 1 if messages are not stored
    because their groups are closed.

    Each member of a sorted set becomes a message that is due at its score. Members that cannot be
    messages stay in the set; the others are imported. The exit code is 1 if there are such members
    or no members at all.

    With --from, the waiting and delayed messages of a queue of Celery, RQ, arq, Huey or BullMQ on
    Redis move: each leaves its queue before bide delivers it. A run that is interrupted is
    continued by the next one. Pickled messages stay unless --allow-pickle is given. Stop the
    library's workers first; what they hold is counted and stays.

    \b
    In a pipe and in JSON:
      stored       new messages
      kept         messages whose id exists already; they stay as they are
      refused      messages whose group is closed
    and for a sorted set:
      rescheduled  kept messages whose score, so their due time, has changed
      removed      members that were removed from the set (--remove)
      refused      members that cannot be messages
      left         members that are still in the set
    (in a dry run, would-store and would-reschedule in a pipe); with --from:
      finished     stored messages that an interrupted run had in transit
      waiting      messages without a due time, which stay (--delayed-only)
      expired      messages that have expired in the library, which stay
      pickled      pickled messages, which stay
      refused      messages that stay for another reason
      held         messages that workers of the library have

    \b
    Example:
      bide import orders orders.jsonl
      zcat orders.jsonl.gz | bide import orders --url sqlite:///other.db
      bide import orders redis://cache:6379/0 --redis-zset delayed --dry-run
      bide import orders redis://cache:6379/0 --redis-zset delayed --remove
      bide import celery redis://cache:6379/0 --from celery --dry-run
      bide import mails redis://cache:6379/0 --from bullmq --source-queue mails
    """
    library = options.pop("from")
    if library is not None and redis_zset is not None:
        raise usage_error("--from and --redis-zset cannot be used together")
    source_option = None
    if library is not None:
        source_option = "--from"
    elif redis_zset is not None:
        source_option = "--redis-zset"
    _check_options(source_option, options)
    if source_option is None:
        return _import_export(out, store.queue(queue, max_body), file, max_body)
    if file == "-":
        raise usage_error(f"{source_option} needs the URL of its Redis in place of FILE")
    target = store.trial(queue, max_body, dry_run=options["dry_run"])
    own_options = {name: options[name] for name in OPTIONS_BY_SOURCE[source_option]}
    if redis_zset is None:
        return _import_from(out, target, file, library, **own_options)
    return _import_set(out, target, file, redis_zset, **own_options)


def _check_options(source_option: str | None, options: dict[str, Any]) -> None:
    """Refuse options that the source has no use for; `None`: an export."""
    own_names = OPTIONS_BY_SOURCE[source_option] if source_option else set()
    context = click.get_current_context()
    for name in options.keys() - own_names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            sources = [source for source, names in OPTIONS_BY_SOURCE.items() if name in names]
            raise usage_error(f"--{name.replace('_', '-')} needs {' or '.join(sources)}")


def _import_export(out: Output, queue: Queue, file: str, max_body: int) -> bool:
    """Put the messages of an export, and print how many; return whether none was refused."""
    if "://" in file:
        raise usage_error(
            f"{mask(file)} is no file; to import a sorted set, name it with --redis-zset KEY; to "
            "take over the messages of Celery and others, use --from; bide move moves queues"
        )
    stream: IO[bytes] = click.File("rb").convert(file, None, click.get_current_context())
    size = Path(file).stat().st_size if Path(file).is_file() else None
    lines = export_lines(stream, max_body)
    with Bar(f"importing bytes into {queue.name}", size) as bar:
        imported = queue.load(bar.over(lines, len))
    facts = {"stored": imported.stored, "kept": imported.kept, "refused": imported.refused}
    sentence = _sentence(imported.stored, imported.kept, queue.name, "imported")
    is_done = imported.stored or imported.kept or not imported.refused
    out.report(facts, DONE if is_done else NOTHING, sentence)
    if imported.refused:
        warn(f"not stored: {plural(imported.refused, 'message')}, whose groups are closed")
    return not imported.refused


def _sentence(stored: int, kept: int, queue: str, verb: str) -> str:
    """Return the result of an import for people."""
    unchanged = f"; {kept:,} kept unchanged, their ids exist already" if kept else ""
    return f"{plural(stored, 'new message')} {verb} into {queue}{unchanged}"


def _import_set(
    out: Output, queue: Queue, url: str, key: str, *, dry_run: bool, **options: Any
) -> bool:
    """Import a sorted set, and print the result; return whether all members were imported."""
    with Bar(f"importing {key}") as bar:
        loaded = load_sorted_set(
            queue, url, key, dry_run=dry_run, found=bar.expect, progress=bar.advance, **options
        )
    imported = loaded.stored or loaded.kept
    verb = "would be imported" if dry_run else "imported"
    sentence = _sentence(loaded.stored, loaded.kept, queue.name, verb)
    if loaded.rescheduled:
        sentence += f", {loaded.rescheduled:,} of them rescheduled"
    out.report_run(loaded, ["reasons"], DONE if imported else NOTHING, sentence, dry_run=dry_run)
    is_empty = not (imported or loaded.refused or loaded.left)
    if is_empty:
        warn(f"there is no member, or no set {key} at all: is the key right?")
    for count, verb in ((loaded.removed, "removed from"), (loaded.left, "left in")):
        if out.terminal and count:
            out.text(f"  {plural(count, 'member')} {verb} {key}")
    for member, reason in loaded.reasons.items():
        warn(f"{member}: {reason}")
    if loaded.refused > len(loaded.reasons):
        warn(f"{loaded.refused:,} members in all cannot be messages")
    return bool(loaded) and not is_empty


def _import_from(
    out: Output, queue: Queue, url: str, library: Any, *, dry_run: bool, **options: Any
) -> bool:
    """Take over the messages of a library, and print them; return whether nothing is left there."""
    with Bar(f"importing from {library}") as bar, raise_on_termination():
        takeover = take_over(queue, library, url, dry_run=dry_run, progress=bar.advance, **options)
    verb = "would be moved" if dry_run else "moved"
    sentence = f"{plural(takeover.stored, 'message')} of {library} {verb} into {queue.name}"
    if takeover.finished:
        sentence += f", {takeover.finished:,} of them from an interrupted run"
    details = ["reasons", "held_examples", "source_queue"]
    out.report_run(
        takeover, details, DONE if takeover.stored else NOTHING, sentence, dry_run=dry_run
    )
    if takeover and not (takeover.stored or takeover.waiting or takeover.expired):
        warn(
            f"nothing is pending in the queue {takeover.source_queue!r} of {library}; "
            "--source-queue names another"
        )
    if takeover.waiting and out.terminal:
        undated = plural(takeover.waiting, "message")
        out.text(f"  left in {library}: {undated} without a due time (--delayed-only)")
    for count, noun, reason in (
        (
            takeover.expired,
            "message",
            f"expired in {library} and left; its workers would not run them either",
        ),
        (
            takeover.pickled,
            "pickled message",
            "left; to move them, too: --allow-pickle (no code in them is run)",
        ),
        (
            takeover.held,
            "message",
            f"held by workers of {library} and left; stop the workers, so that they return what "
            "they hold, and run this again",
        ),
    ):
        if count:
            warn(f"{plural(count, noun)} {reason}")
    for id, description in takeover.held_examples.items():
        warn(f"held: {id}: {description}")
    for message, reason in takeover.reasons.items():
        warn(f"left: {message}: {reason}")
    if takeover.refused > len(takeover.reasons):
        warn(f"{takeover.refused:,} messages in all cannot be moved")
    return bool(takeover)
