"""Which dead letters a command is about: by id, error, and when they died."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import click

from bide.cli.options import MOMENT
from bide.model.message import Message
from bide.queue.sync import Queue

__all__ = ["Letters", "all_option", "letters_options"]


class Letters:
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
        """Whether something else than ids was given."""
        return (self._error, self._after, self.before) != (None, None, None)

    @property
    def everything(self) -> bool:
        """Whether nothing was given, and all are meant."""
        return not self.ids and not self.filtered

    def must_choose(self, verb: str, everything: bool) -> None:
        """Refuse what changes dead letters and does not say which.

        Args:
            verb: the command.
            everything: whether `--all` was given.

        Raises:
            click.UsageError: nothing was given, or both ids and `--all`.
        """
        if (everything and self.ids) or (self.everything and not everything):
            raise click.UsageError(
                f"{verb} takes ids, --error, --after and --before, or --all for all dead letters",
                click.get_current_context(),
            )

    @property
    def by_time_alone(self) -> bool:
        """Whether all are meant, or all that died before a moment."""
        return not self.ids and self._error is None and self._after is None

    def of(self, queue: Queue) -> Iterator[Message]:
        """Return the letters that are meant, lazily; oldest first, or in the order of the ids."""
        named = (queue.get(id) for id in self.ids) if self.ids else queue.dead()
        return (message for message in named if message is not None and self._meant(message))

    def _meant(self, letter: Message) -> bool:
        died = (letter.ended or letter.due) / 1000
        return (
            letter.state == "dead"
            and (self._error is None or _begins(letter.error or "", self._error))
            and (self._after is None or died >= self._after)
            and (self.before is None or died < self.before)
        )


all_option = click.option("--all", "everything", is_flag=True, help="All dead letters.")

_TYPE = re.compile(r"[^\s:]*")


def _begins(error: str, wanted: str) -> bool:
    """Tell whether an error begins so, or would without (the first part of) its module's name."""
    word = _TYPE.match(error)
    assert word is not None
    starts = [0, *(dot.end() for dot in re.finditer(r"\.", word[0]))]
    return any(error.startswith(wanted, start) for start in starts)


def letters_options(function: Callable[..., bool | None]) -> Callable[..., bool | None]:
    """Take which dead letters are meant: ids, `--error`, `--after`, `--before`."""

    @click.argument("ids", nargs=-1, metavar="[ID]...")
    @click.option(
        "--error",
        metavar="TYPE",
        help="Only those whose last error begins so: ValueError, or shop.errors.OutOfStock, or "
        "OutOfStock without its module.",
    )
    @click.option("--after", type=MOMENT, metavar="MOMENT", help="Only those that died since then.")
    @click.option(
        "--before", type=MOMENT, metavar="MOMENT", help="Only those that died before then."
    )
    @functools.wraps(function)
    def run(
        *args: Any,
        ids: tuple[str, ...],
        error: str | None,
        after: float | None,
        before: float | None,
        **rest: Any,
    ) -> bool | None:
        return function(*args, letters=Letters(ids, error, after, before), **rest)

    return run
