"""The log that the handlers of a peer write: one line for each message."""

from pathlib import Path
from typing import NamedTuple

__all__ = ["PROBE", "Handled", "HandledLog"]

PROBE = -1
"""The number of a message that only shows that a worker works."""


class Handled(NamedTuple):
    """A message that was handled: when it was due, and when its handler was at its end."""

    number: int
    due: float
    at: float

    @property
    def late(self) -> float:
        """Milliseconds after the due time; below zero if it was early."""
        return (self.at - self.due) * 1000


class HandledLog:
    """Reads what was appended since the last look, so that a look costs little."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._first: dict[int, Handled] = {}
        self.again = 0

    def read(self) -> list[Handled]:
        """Return the first handling of each message, in the order of handling."""
        return [handled for handled in self._read().values() if handled.number != PROBE]

    def count(self) -> int:
        """Return how many messages were handled."""
        return len(self._read()) - self.has_probe()

    def has_probe(self) -> bool:
        """Tell whether the message was handled that shows that a worker works."""
        return PROBE in self._read()

    def _read(self) -> dict[int, Handled]:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
            self._offset += len(text)
            *lines, self._rest = (self._rest + text).split(b"\n")
            for line in lines:
                number, due, at = line.split()
                if int(number) in self._first:
                    self.again += 1
                else:
                    self._first[int(number)] = Handled(int(number), float(due), float(at))
        return self._first
