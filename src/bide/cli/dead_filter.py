"""Which dead letters a command is about: by id, by error, and by when they died."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import click

from bide.cli.errors import usage_error
from bide.cli.options import flag, moment_option, text_option, together
from bide.model.message import Message
from bide.queue.sync import Queue

__all__ = ["DeadFilter", "all_option", "dead_filter_options"]


class DeadFilter:
    """A choice among the dead letters of a queue; all that is given must hold.

    Args:
        ids: only these; any if empty.
        error: only those whose last error begins so, with or without the module of its type.
        after: only those that died then or later, in Unix seconds.
        before: only those that died earlier.
    """

    def __init__(
        self, ids: tuple[str, ...], error: str | None, after: float | None, before: float | None
    ) -> None:
        self.ids = list(dict.fromkeys(ids))
        self.before = before
        self._error = error
        self._after = after

    @property
    def filtered(self) -> bool:
        """Whether anything but ids was given."""
        return (self._error, self._after, self.before) != (None, None, None)

    @property
    def everything(self) -> bool:
        """Whether nothing was given, so that all dead letters match."""
        return not self.ids and not self.filtered

    @property
    def by_time_alone(self) -> bool:
        """Whether all dead letters match, or all that died before a time."""
        return not self.ids and self._error is None and self._after is None

    def must_choose(self, command: str, everything: bool) -> None:
        """Refuse a command that does not say which dead letters it is about.

        Args:
            command: the name of the command.
            everything: whether `--all` was given.

        Raises:
            click.UsageError: nothing was given, or both ids and `--all`.
        """
        if (everything and self.ids) or (self.everything and not everything):
            raise usage_error(
                f"{command} takes ids, --error, --after and --before, or --all for all dead letters"
            )

    def of(self, queue: Queue) -> Iterator[Message]:
        """Return the dead letters that match, lazily; oldest first, or in the order of the ids."""
        named = (queue.get(id) for id in self.ids) if self.ids else queue.dead()
        return (message for message in named if message is not None and self._matches(message))

    def _matches(self, letter: Message) -> bool:
        died = (letter.ended or letter.due) / 1000
        return (
            letter.state == "dead"
            and (self._error is None or _begins(letter.error or "", self._error))
            and (self._after is None or died >= self._after)
            and (self.before is None or died < self.before)
        )


_TYPE = re.compile(r"[^\s:]*")


def _begins(error: str, wanted: str) -> bool:
    """Tell whether an error begins so, with or without (the first part of) its module's name."""
    word = _TYPE.match(error)
    assert word is not None
    starts = [0, *(dot.end() for dot in re.finditer(r"\.", word[0]))]
    return any(error.startswith(wanted, start) for start in starts)


all_option = flag("--all", "everything", help="All dead letters.")

_options = together(
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    text_option(
        "--error", "TYPE",
        "Only those whose last error begins so: ValueError, or shop.errors.OutOfStock, or "
        "OutOfStock without its module.",
    ),
    moment_option("--after", "Only those that died since then."),
    moment_option("--before", "Only those that died before then."),
)  # fmt: skip


def dead_filter_options(function: Callable[..., bool | None]) -> Callable[..., bool | None]:
    """Take which dead letters the command is about: ids, `--error`, `--after`, `--before`."""

    @_options
    @functools.wraps(function)
    def run(
        *args: Any, ids: tuple[str, ...], error: str | None, after: float | None,
        before: float | None, **rest: Any,
    ) -> bool | None:  # fmt: skip
        return function(*args, letters=DeadFilter(ids, error, after, before), **rest)

    run_with_options: Callable[..., bool | None] = run
    return run_with_options
