"""`bide import --from`: take over the pending messages of other libraries."""

from typing import Any

import msgspec

from bide.cli.output import DONE, NOTHING, Output, plural, warn
from bide.cli.progress import Bar
from bide.cli.store import Store
from bide.queue.takeover import take_over

WOULD = {"stored": "would-store", "finished": "would-finish"}


def import_from(
    store: Store, out: Output, queue: str, url: str, library: str, max_body: int, *, dry_run: bool,
    **options: Any,
) -> bool:  # fmt: skip
    """Take over the messages of a library, and print them; return whether nothing is left there.

    Args:
        store: the store.
        out: where to print.
        queue: into which queue.
        url: of the Redis of the library.
        library: its name.
        max_body: the maximum size of a body, in bytes.
        dry_run: only print what would be done.
        options: for `take_over`.
    """
    target = store.trial(queue, max_body, dry_run=dry_run)
    with Bar(f"importing from {library}") as bar:
        done = take_over(
            target, library, url, dry_run=dry_run, progress=bar.advance, **options  # type: ignore[arg-type]
        )  # fmt: skip
    facts: dict[str, Any] = msgspec.structs.asdict(done)
    details = {key: facts.pop(key) for key in ("reasons", "held_examples", "source_queue")}
    if out.as_json:
        facts |= details | {"dry_run": dry_run}
    verb = "would be moved" if dry_run else "moved"
    sentence = f"{plural(done.stored, 'message')} of {library} {verb} into {queue}"
    if done.finished:
        sentence += f", {done.finished:,} of them from an interrupted run"
    code = DONE if done.stored else NOTHING
    out.report(facts, code, sentence, would=WOULD if dry_run else None)
    if done and not (done.stored or done.waiting or done.expired):
        warn(
            f"nothing is pending in the queue {done.source_queue!r} of {library}; "
            "--source-queue names another"
        )
    if done.waiting and out.terminal:
        out.text(f"  {plural(done.waiting, 'message')} without a due time left")
    if done.expired:
        warn(
            f"{plural(done.expired, 'message')} expired in {library} and left; its workers would "
            "not run them either"
        )
    if done.pickled:
        warn(
            f"{plural(done.pickled, 'pickled message')} left; to move them, too: --allow-pickle "
            "(no code in them is run)"
        )
    if done.held:
        warn(
            f"{plural(done.held, 'message')} held by workers of {library} and left; stop the "
            "workers, so that they return what they hold, and run this again"
        )
    for id, what in done.held_examples.items():
        warn(f"held: {id}: {what}")
    for message, reason in done.reasons.items():
        warn(f"left: {message}: {reason}")
    if done.refused > len(done.reasons):
        warn(f"{done.refused:,} messages in all cannot be moved")
    return bool(done)
