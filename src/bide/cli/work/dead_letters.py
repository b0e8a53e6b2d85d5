"""Which dead letters a command selects, and how it changes them."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

from bide.cli import option
from bide.cli.bulk import change_many, confirm
from bide.cli.errors import usage_error
from bide.cli.output import Output, plural
from bide.cli.store import CommandStore
from bide.model.message import Message
from bide.queue.sync import Queue

LETTER = "dead letter"

all_option = option.flag("--all", "everything", help="All dead letters.")

dry_run_option = option.flag(
    "--dry-run", help="Only count the dead letters, and show the first ones."
)


class DeadFilter(NamedTuple):
    """Which dead letters a command selects: all given conditions must hold."""

    ids: tuple[str, ...] = ()
    """Only these; any if empty."""
    error: str | None = None
    """Only those whose last error starts with this, with or without the module of its type."""
    after: float | None = None
    """Only those that died then or later, in Unix seconds."""
    before: float | None = None
    """Only those that died earlier."""

    def must_choose(self, command: str, everything: bool) -> None:
        """Refuse a command that does not say which dead letters it selects.

        Args:
            command: the name of the command.
            everything: whether `--all` was given.

        Raises:
            click.UsageError: nothing was given, or both ids and `--all`.
        """
        has_no_condition = self._replace(error=self.error or None) == DeadFilter()  # "" fits all
        if (everything and self.ids) or (has_no_condition and not everything):
            raise usage_error(
                f"{command} takes ids, --error, --after and --before, or --all for all dead letters"
            )

    def of(self, queue: Queue) -> Iterator[Message]:
        """Return the dead letters that match, lazily; oldest first, or in the order of the ids."""
        candidates = map(queue.get, self.ids) if self.ids else queue.dead()
        return (message for message in candidates if message is not None and self._matches(message))

    def _matches(self, letter: Message) -> bool:
        died = (letter.ended or letter.due) / 1000  # in Unix seconds, as the conditions are
        return (
            letter.state == "dead"
            and (self.error is None or _begins(letter.error or "", self.error))
            and (self.after is None or died >= self.after)
            and (self.before is None or died < self.before)
        )


def _begins(error: str, wanted: str) -> bool:
    """Tell whether an error starts with a text, with or without (the first part of) its module."""
    return re.match(rf"(?:[^\s:.]+\.)*{re.escape(wanted)}", error) is not None


filter_options = option.together(
    click.argument(
        "ids",
        nargs=-1,
        metavar="[ID]...",
        callback=lambda ctx, param, ids: tuple(dict.fromkeys(ids)),
    ),
    option.text(
        "--error",
        "TYPE",
        "Only those whose last error starts with this: ValueError, or shop.errors.OutOfStock, "
        "or OutOfStock without its module.",
    ),
    option.moment("--after", "Only those that died since then."),
    option.moment("--before", "Only those that died before then."),
)
"""Take which dead letters the command selects."""


def change_letters(
    store: CommandStore,
    out: Output,
    queue: Queue,
    letters: DeadFilter,
    verb: str,
    change: Callable[[list[str]], int],
    change_undoably: Callable[[list[str]], int],
    *,
    dry_run: bool,
    undoable: bool,
    yes: bool = True,
) -> bool:
    """Change dead letters; return whether any was changed, or would be.

    Args:
        store: the store.
        out: where to print the result.
        queue: their queue.
        letters: which ones.
        verb: what is done to them, such as "revived".
        change: changes letters by their ids, and returns how many.
        change_undoably: the same, so that it can be taken back.
        dry_run: only count them, and show the first.
        undoable: use `change_undoably`.
        yes: do not ask whether to delete them; only a purge asks.
    """
    # Read before any change: a letter that is revived and dies again counts once.
    ids = [letter.id for letter in letters.of(queue)]
    if not (dry_run or undoable or yes):
        confirm(f"Delete {plural(len(ids), LETTER)} of {queue.name} permanently?", len(ids))

    def run(*, dry_run: bool, undo: bool) -> int:
        if dry_run:
            return len(ids)
        return change_undoably(ids) if undo else change(ids)

    return change_many(
        store,
        out,
        queue.name,
        verb,
        run,
        dry_run=dry_run,
        undoable=undoable,
        preview=lambda: letters.of(queue),
        what=LETTER,
        where=f" of {queue.name}",
    )
