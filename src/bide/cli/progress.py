"""Progress bars: on stderr, on a terminal, for what takes longer than a second."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds after which a bar appears."""


class Bar:
    """A bar that appears when its block has lasted for a second.

    Args:
        doing: its label, such as "exporting orders".
        total: how much there is to do; `None` if that is unknown, or known later: see `expect`.
        patience: seconds without a bar.
    """

    def __init__(self, doing: str, total: int | None = None, patience: float = PATIENCE) -> None:
        self._doing = doing
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._timer: threading.Timer | None = None
        self._over = False
        if sys.stderr.isatty():
            self._timer = threading.Timer(patience, self._show)
            self._timer.daemon = True

    def expect(self, total: int) -> None:
        """Set how much there is to do."""
        self._total = total
        self.advance(0)

    def advance(self, by: int = 1) -> None:
        """Count what was done; if it is more than was expected, the total grows."""
        self._done += by
        if self._total is not None:
            self._total = max(self._total, self._done)
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=self._done, total=self._total)

    def over(self, things: Iterable[T], size: Callable[[T], int] = lambda thing: 1) -> Iterator[T]:
        """Yield things, and count each, or its size."""
        for thing in things:
            yield thing
            self.advance(size(thing))

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()
            if self._progress is not None:
                self._progress.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns: list[ProgressColumn] = [BarColumn(), MofNCompleteColumn()]
        if self._total is not None:
            columns.append(TimeRemainingColumn())
        with self._lock:
            if self._over:
                return
            progress = Progress(
                "{task.description}", *columns, console=Console(stderr=True), transient=True
            )
            progress.add_task(self._doing, total=self._total, completed=self._done)
            progress.start()
            self._progress = progress
