"""`bide check-deploy`: which pending messages the new code of an app would refuse."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click
import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import DONE, NOT_DONE, Bar, Output, plural, warn
from bide.cli.store import CommandStore
from bide.model.commands import Count
from bide.model.message import Message
from bide.model.replies import Counts

if TYPE_CHECKING:
    from bide.consuming.refusals import MessageRefusal

PENDING = ("delayed", "ready", "leased")

EXAMPLE_IDS = 3
"""How many ids are shown of the messages with the same fault."""

MOST_REASONS = 20
"""How many reasons are kept apart for one task: errors of validators may have values in them."""

OTHER_REASONS = "other reasons"

MOST_NAMED_QUEUES = 8
"""How many queues without a handler are named."""


@on_store(click.argument("target", metavar="MODULE:APP"))
@option.many(
    "--skip", "skipped", "QUEUE", "Leave out a queue of another app, or all that fit a glob."
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
    with Bar("reading pending messages", _pending(store_of_app, names)) as bar:
        for queue, message in bar.over(_messages(store_of_app, names)):
            refusal = refusal_of(message, queue, app.queue_handlers)
            if refusal is not None:
                report.refuse(refusal, message.id)
            elif queue in app.queue_handlers:
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


class DeployReport:
    """The messages that fit, those that an app would refuse, and those that are not the app's."""

    def __init__(self) -> None:
        self.fitting = 0
        """The number of messages that fit."""
        self.refused = 0
        """The number of messages that the app would refuse."""
        self.unhandled: Counter[str] = Counter()
        """The number of messages in each queue that the app does not handle."""
        self._ids: dict[MessageRefusal, list[str]] = {}
        """The first ids of each refusal."""
        self._counts: Counter[MessageRefusal] = Counter()
        """The number of messages of each refusal."""
        self._reasons: Counter[tuple[str, str]] = Counter()
        """The number of different refusals by queue and name."""

    def refuse(self, refusal: "MessageRefusal", id: str) -> None:
        """Count a message that the app would refuse, with others of the same fault."""
        self.refused += 1
        key = refusal.queue, refusal.name
        if refusal not in self._counts and self._reasons[key] >= MOST_REASONS:
            refusal = dataclasses.replace(refusal, reason=OTHER_REASONS)
        if refusal not in self._counts:
            self._reasons[key] += 1
            self._ids[refusal] = []
        self._counts[refusal] += 1
        if len(self._ids[refusal]) < EXAMPLE_IDS:
            self._ids[refusal].append(id)

    def print(self, out: Output, target: str) -> None:
        """Print the refusals, most messages first, and the verdict."""
        total = self.fitting + self.refused
        if out.as_json:
            out.json(
                {
                    "fits": not self.refused,
                    "pending": total,
                    "refused": self.refused,
                    "refusals": [
                        {
                            **dataclasses.asdict(refusal),
                            "messages": count,
                            "ids": self._ids[refusal],
                        }
                        for refusal, count in self._counts.most_common()
                    ],
                    "unhandled": dict(self.unhandled),
                }
            )
            return
        for refusal, count in self._counts.most_common():
            self._print_refusal(out, refusal, count)
        verdict = f"all {plural(total, 'pending message')} fit {target}"
        if self.refused:
            of_all = f"{self.refused:,} of {plural(total, 'pending message')}"
            verdict = f"{target} would refuse {of_all}"
        elif not total:
            verdict = f"no message is pending for {target}"
        remark = self._remark(target)
        if out.terminal:
            out.text(NOT_DONE if self.refused else DONE, verdict)
            if remark:
                out.text((remark, "dim"))
        else:
            warn(verdict)
            if remark:
                warn(remark)

    def _remark(self, target: str) -> str:
        """Return what was not checked; "" if all was."""
        if not self.unhandled:
            return ""
        queues = sorted(self.unhandled)
        ellipsis = ", ..." if len(queues) > MOST_NAMED_QUEUES else ""
        names = ", ".join(queues[:MOST_NAMED_QUEUES]) + ellipsis
        messages = plural(self.unhandled.total(), "message")
        return f"not checked, {target} has no handler for them: {messages} in {names}"

    def _print_refusal(self, out: Output, refusal: "MessageRefusal", count: int) -> None:
        ids = self._ids[refusal]
        if not out.terminal:
            facts = refusal.queue, refusal.name, refusal.kind, count, refusal.reason
            out.row(*facts, ",".join(ids), refusal.fix)
            return
        summary = f": {plural(count, 'message')}, {refusal.kind}"
        out.text(NOT_DONE, (refusal.queue, "bold"), summary)
        out.text(f"  {refusal.reason}")
        out.text(("  ids: ", "dim"), ", ".join(ids) + (", ..." if count > len(ids) else ""))
        out.text(("  fix: ", "dim"), refusal.fix)
