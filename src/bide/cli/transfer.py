"""`bide export` and `bide import`."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from bide.cli.errors import usage_error, warn
from bide.cli.options import (
    flag,
    max_body_option,
    on_any_store,
    on_store,
    queue_argument,
    text_option,
)
from bide.cli.output import DONE, NOTHING, Output, plural
from bide.cli.progress import Bar
from bide.cli.store import Store
from bide.engines.registry import mask
from bide.queue.sorted_set import LoadedSet, load_sorted_set
from bide.queue.sync import Queue

__all__ = ["export", "import_"]

WOULD = {"stored": "would-store", "rescheduled": "would-reschedule"}

UNSET_OPTIONS = {
    "scores": "auto", "body": "auto", "id_field": None, "remove": False, "dry_run": False,
}  # fmt: skip


@click.command()
@queue_argument
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, allow_dash=True), default="-", metavar="PATH",
    help="Write to a file, which is created when the export is complete.",
)  # fmt: skip
@on_store
def export(store: Store, out: Output, queue: str, output: str) -> None:
    """Write a queue as lines of JSON, while it is in use, in constant memory.

    Messages that a worker holds are included: they are ready again after an import.

    \b
    Example:
      bide export orders -o orders.jsonl
      bide export orders | gzip > orders.jsonl.gz
    """  # fmt: skip
    orders = store.existing(queue)
    Path(
        output
    ).parent.stat()  # raises here, where the error names the file and not a temporary one
    count = 0
    with Bar(f"exporting {queue}", orders.counts().sizes.total) as bar:
        with click.open_file(output, "w", encoding="utf-8", atomic=output != "-") as file:
            for line in bar.over(orders.export()):
                file.write(line + "\n")
                count += 1
    if output != "-":
        facts = {"exported": count, "file": output}
        out.report(facts, DONE, f"{plural(count, 'message')} of {queue} written to {output}")


@click.command("import")
@queue_argument
@click.argument("file", default="-", metavar="[FILE]")
@text_option(
    "--redis-zset", "KEY", "Import this sorted set; in place of FILE, give the URL of its Redis."
)
@click.option(
    "--scores", type=click.Choice(["auto", "s", "ms"]), default="auto",
    help="For a sorted set: whether scores are Unix seconds or milliseconds.",
)  # fmt: skip
@click.option(
    "--body", type=click.Choice(["auto", "json", "text", "bytes"]), default="auto",
    help="For a sorted set: the format of its members.",
)  # fmt: skip
@text_option(
    "--id-field",
    "NAME",
    "For a sorted set of JSON objects: the field that becomes the id.",
)
@flag(
    "--remove",
    help="For a sorted set: remove the imported members, except those whose score has changed.",
)
@flag("--dry-run", help="For a sorted set: only print what would be put.")
@max_body_option
@on_any_store
def import_(
    store: Store, out: Output, queue: str, file: str, redis_zset: str | None, max_body: int,
    **options: Any,
) -> bool:  # fmt: skip
    """Put messages from an export, or a sorted set in Redis.

    FILE, or stdin, has the lines of an export. A message whose id exists already is kept unchanged,
    so an import can be repeated. Each thousand lines are one commit. A line that is not valid stops
    the import; the error says which one.

    Each member of a sorted set becomes a message that is due at its score. Members that cannot be
    messages stay in the set; the others are imported. The exit code is 1 if there are such members
    or no members at all.

    \b
    Example:
      bide import orders orders.jsonl
      zcat orders.jsonl.gz | bide import orders --url sqlite:///other.db
      bide import orders redis://cache:6379/0 --redis-zset delayed --dry-run
      bide import orders redis://cache:6379/0 --redis-zset delayed --remove
    """  # fmt: skip
    if redis_zset is not None:
        _must_be_redis(file)
        loaded = _load_set(store, queue, file, redis_zset, max_body, **options)
        _report_set(out, loaded, queue, redis_zset, dry_run=options["dry_run"])
        return bool(loaded) and not _found_nothing(loaded)
    if options != UNSET_OPTIONS:
        raise usage_error(
            "--scores, --body, --id-field, --remove and --dry-run are for --redis-zset"
        )
    if file.startswith(("redis", "unix:")) and "://" in file:
        raise usage_error("to import a sorted set, name it with --redis-zset KEY")
    stream: IO[bytes] = click.File("rb").convert(file, None, click.get_current_context())
    with Bar(f"importing bytes into {queue}", _size(stream)) as bar:
        imported = store.queue(queue, max_body).load(_counted(stream, bar))
    facts = {"stored": imported.stored, "kept": imported.kept}
    kept = f", {imported.kept:,} were there already and stay" if imported.kept else ""
    out.report(facts, DONE, f"{_new(imported.stored, 'are')} in {queue}{kept}")
    return True


def _must_be_redis(url: str) -> None:
    if url == "-":
        raise usage_error("--redis-zset needs the URL of its Redis in place of FILE")
    if not url.startswith(("redis", "unix")):
        raise usage_error(
            f"{mask(url)} is no Redis; --redis-zset needs its URL in place of FILE: redis://, "
            "rediss://, unix://, ..."
        )


def _new(count: int, verb: str) -> str:
    verb = "is" if verb == "are" and count == 1 else verb
    return f"{plural(count, 'message')} {verb} new"


def _load_set(
    store: Store, name: str, url: str, key: str, max_body: int, *, dry_run: bool, **options: Any
) -> LoadedSet:
    with ExitStack() as stack:
        if dry_run and store.missing is not None:  # a dry run must not create a store
            queue = stack.enter_context(Queue(name, "memory://dry-run", max_body=max_body))
        else:
            queue = store.queue(name, max_body)
        bar = stack.enter_context(Bar(f"importing {key}"))
        return load_sorted_set(
            queue, url, key, dry_run=dry_run, found=bar.expect, progress=bar.advance, **options
        )


def _found_nothing(loaded: LoadedSet) -> bool:
    return not (loaded.stored or loaded.kept or loaded.refused or loaded.left)


def _report_set(out: Output, loaded: LoadedSet, queue: str, key: str, *, dry_run: bool) -> None:
    facts: dict[str, Any] = msgspec.structs.asdict(loaded)
    reasons = facts.pop("reasons")
    if out.as_json:
        facts |= {"reasons": reasons, "dry_run": dry_run}
    there = f", {loaded.kept:,} were there already" if loaded.kept else ""
    moved = f", {loaded.rescheduled:,} of these with another due time" if loaded.rescheduled else ""
    verb = "would be" if dry_run else "are"
    mark = DONE if loaded.stored or loaded.kept else NOTHING
    sentence = f"{_new(loaded.stored, verb)} in {queue}{there}{moved}"
    out.report(facts, mark, sentence, would=WOULD if dry_run else None)
    if _found_nothing(loaded):
        warn(f"there is no member, or no set {key} at all: is the key right?")
    if out.terminal and loaded.removed:
        out.text(f"  {loaded.removed:,} members were taken out of {key}")
    if out.terminal and loaded.left:
        out.text(f"  {loaded.left:,} members are in {key}")
    for member, reason in reasons.items():
        warn(f"{member}: {reason}")
    if loaded.refused > len(reasons):
        warn(f"{loaded.refused:,} members in all cannot be messages")


def _size(file: IO[bytes]) -> int | None:
    name = getattr(file, "name", None)
    return Path(name).stat().st_size if isinstance(name, str) and Path(name).is_file() else None


def _counted(file: IO[bytes], bar: Bar) -> Iterator[bytes]:
    for line in file:
        yield line
        bar.advance(len(line))
