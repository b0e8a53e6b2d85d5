"""`bide export` and `bide import`."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from bide.cli.exits import NOT_DONE, warn
from bide.cli.options import max_body_option, on_any_store, on_store, queue_argument
from bide.cli.output import Output, printable
from bide.cli.progress import Bar
from bide.cli.store import Store
from bide.engines.registry import mask
from bide.queue.sorted_set import Bodies, LoadedSet, Scores, load_sorted_set
from bide.queue.sync import Queue

__all__ = ["export", "import_"]

WOULD = {"stored": "would-store", "rescheduled": "would-reschedule"}


@click.command()
@queue_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    metavar="PATH",
    help="Write to a file, which appears when it is whole.",
)
@on_store
def export(store: Store, out: Output, queue: str, output: str) -> None:
    """Write a queue as lines of JSON, while it is in use, in flat memory.

    A message that somebody holds is written as well: it is ready again after an import.

    \b
    Example:
      bide export orders -o orders.jsonl
      bide export orders | gzip > orders.jsonl.gz
    """  # fmt: skip
    orders = store.existing(queue)
    Path(output).parent.stat()  # else the error names a file of which nobody has heard
    count = 0
    with Bar(f"exporting {queue}", orders.counts().sizes.total) as bar:
        with click.open_file(output, "w", encoding="utf-8", atomic=output != "-") as file:
            for line in bar.over(orders.export()):
                file.write(line + "\n")
                count += 1
    if output != "-":
        facts = {"exported": count, "file": output}
        out.report(facts, ("✓ ", "green"), f"{count:,} messages of {queue} written to {output}")


@click.command("import")
@queue_argument
@click.argument("file", default="-", metavar="[FILE]")
@click.option(
    "--redis-zset", metavar="KEY",
    help="Take over this sorted set of the Redis whose URL stands in place of FILE.",
)  # fmt: skip
@click.option(
    "--scores", type=click.Choice(["auto", "s", "ms"]), default="auto",
    help="Of a sorted set: whether scores are Unix seconds or milliseconds.",
)  # fmt: skip
@click.option(
    "--body", type=click.Choice(["auto", "json", "text", "bytes"]), default="auto",
    help="Of a sorted set: what its members are.",
)  # fmt: skip
@click.option(
    "--id-field", metavar="NAME",
    help="Of a sorted set: the field of members that are JSON objects which becomes the id.",
)  # fmt: skip
@click.option(
    "--remove", is_flag=True,
    help="Of a sorted set: take out what was put, unless its score has changed meanwhile.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Of a sorted set: only say what would be put.")
@max_body_option
@on_any_store
@click.pass_context
def import_(
    ctx: click.Context, store: Store, out: Output, queue: str, file: str, redis_zset: str | None,
    scores: Scores, body: Bodies, id_field: str | None, remove: bool, dry_run: bool, max_body: int,
) -> None:  # fmt: skip
    """Put messages from an export, or a sorted set in Redis.

    FILE, or stdin, has the lines of an export. What is there already, by its id, is kept as it is,
    so an import can be repeated. Each thousand lines are a commit; a line that is none stops the
    import, and the error says which it was.

    Of a sorted set each member becomes a message that is due at its score. Exit code 1 when there
    is no member, or when members cannot be messages; they stay, and the others are taken.

    \b
    Example:
      bide import orders orders.jsonl
      zcat orders.jsonl.gz | bide import orders --url sqlite:///other.db
      bide import orders redis://cache:6379/0 --redis-zset delayed --dry-run
      bide import orders redis://cache:6379/0 --redis-zset delayed --remove
    """  # fmt: skip
    if redis_zset is not None:
        if file == "-":
            raise click.UsageError("--redis-zset needs the URL of its Redis in place of FILE", ctx)
        if not file.startswith(("redis", "unix")):
            raise click.UsageError(
                f"{mask(file)} is no Redis; --redis-zset needs its URL in place of FILE: redis://, "
                "rediss://, unix://, ...", ctx,
            )  # fmt: skip
        loaded = _load_set(
            store, queue, file, redis_zset, max_body=max_body, scores=scores, body=body,
            id_field=id_field, remove=remove, dry_run=dry_run,
        )  # fmt: skip
        _report_set(out, loaded, queue, redis_zset, dry_run=dry_run)
        if not loaded or _found_nothing(loaded):
            ctx.exit(NOT_DONE)
        return
    given = (scores, body, id_field, remove, dry_run)
    if given != ("auto", "auto", None, False, False):
        raise click.UsageError(
            "--scores, --body, --id-field, --remove and --dry-run are for --redis-zset", ctx
        )
    if file.startswith(("redis", "unix:")) and "://" in file:
        raise click.UsageError("to take over a sorted set name it with --redis-zset KEY", ctx)
    stream: IO[bytes] = click.File("rb").convert(file, None, ctx)
    with Bar(f"importing bytes into {queue}", _size(stream)) as bar:
        imported = store.queue(queue, max_body).load(_counted(stream, bar))
    facts = {"stored": imported.stored, "kept": imported.kept}
    kept = f", {imported.kept:,} were there already and stay" if imported.kept else ""
    out.report(facts, ("✓ ", "green"), f"{imported.stored:,} messages are new in {queue}{kept}")


def _load_set(
    store: Store, name: str, url: str, key: str, *, max_body: int, dry_run: bool, **options: Any
) -> LoadedSet:
    with ExitStack() as stack:
        if dry_run and store.missing is not None:  # looking must not make a store
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
    moved = f", {loaded.rescheduled:,} of these at another moment" if loaded.rescheduled else ""
    verb = "would be" if dry_run else "are"
    mark = ("✓ ", "green") if loaded.stored or loaded.kept else ("= ", "dim")
    out.report(facts, mark, f"{loaded.stored:,} messages {verb} new in {queue}{there}{moved}",
               would=WOULD if dry_run else None)  # fmt: skip
    if _found_nothing(loaded):
        warn(f"there is no member, or no set {key} at all: is the key right?")
    if out.terminal and loaded.removed:
        out.text(f"  {loaded.removed:,} members were taken out of {key}")
    if out.terminal and loaded.left:
        out.text(f"  {loaded.left:,} members are in {key}")
    for member, reason in reasons.items():
        warn(printable(f"{member}: {reason}"))
    if loaded.refused > len(reasons):
        warn(f"{loaded.refused:,} members in all cannot be messages")


def _size(file: IO[bytes]) -> int | None:
    name = getattr(file, "name", None)
    return Path(name).stat().st_size if isinstance(name, str) and Path(name).is_file() else None


def _counted(file: IO[bytes], bar: Bar) -> Iterator[bytes]:
    for line in file:
        yield line
        bar.advance(len(line))
