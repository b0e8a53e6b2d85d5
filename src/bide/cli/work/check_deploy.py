"""`bide check-deploy`: which pending messages the new code of an app would refuse."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import Bar, Output, warn
from bide.cli.store import CommandStore
from bide.model.commands import Count
from bide.model.message import Message
from bide.model.replies import Counts

PENDING = ("delayed", "ready", "leased")


@on_store(option.app)
@option.many(
    "--skip", "skipped", "QUEUE", "Leave out a queue of another app, or all that match a glob"
)
def check_deploy(store: CommandStore, out: Output, target: str, skipped: tuple[str, ...]) -> bool:
    """Say which pending messages the new code of an app would refuse.

    Run it with the new code, on the store of the old one, before you deploy. It reads the messages
    that are delayed, ready or leased, and changes nothing. It names those whose arguments or bodies
    do not fit, and those of tasks and jobs that the app does not have, also in queues that it does
    not handle. Exit code 1 means that some would be refused.

    The store is the one of --url, else the one of the app. Leave out the queues of other apps in it
    with --skip. A message that is put meanwhile may be missed.

    In a pipe, each line is: queue, task (or job, or function), what does not fit (argument, missing
    argument, unknown argument, body, no task, no job), number of messages, reason, the first ids
    with commas between them, fix; the verdict is on stderr.

    \b
    Example:
      bide check-deploy shop:app
      bide check-deploy shop:app --url redis://prod/0 --skip 'mail-*'
      bide check-deploy shop:app --json | jq '.refusals[].reason'
    """
    from bide.cli.work.deploy_report import DeployReport
    from bide.consuming.refusals import refusal_of
    from bide.worker.app.loading import load

    app = load(target)
    store_of_app = store.of_app(app._url)
    store_of_app.must_exist("name the store of the running app with --url")
    names = store_of_app.names()
    for pattern in skipped:
        if not any(fnmatchcase(name, pattern) for name in names):
            warn(f"--skip {pattern} names no queue in {store_of_app.shown}")
    names = [name for name in names if not any(fnmatchcase(name, glob) for glob in skipped)]
    report = DeployReport()
    queues = app.queue_handlers  # that of a framework is made anew by each look-up
    with Bar("reading pending messages", _pending(store_of_app, names)) as bar:
        for queue, message in bar.over(_messages(store_of_app, names)):
            refusal = refusal_of(message, queue, queues)
            if refusal is not None:
                report.refuse(refusal, message.id)
            elif queue in queues:
                report.fitting += 1
            else:
                report.unhandled[queue] += 1
    report.print(out, target)
    return not report.refused


def _pending(store: CommandStore, names: list[str]) -> int:
    """Return how many messages are pending in queues."""
    sizes = [store.ask(Counts, Count(name)).sizes for name in names]
    return sum(getattr(size, state) for size in sizes for state in PENDING)


def _messages(store: CommandStore, names: list[str]) -> Iterator[tuple[str, Message]]:
    """Yield the pending messages with their queues.

    One scan reads all states, because of several a message could slip through that changes its
    state between them.
    """
    for name in names:
        for message in store.queue(name).scan():
            if message.state in PENDING:
                yield name, message
            if (successor := message.successor) is not None:  # it will be delivered afterwards
                changes = {
                    "data": successor.data,
                    "json": successor.json,
                    "headers": successor.headers,
                }
                yield name, msgspec.structs.replace(message, **changes)
