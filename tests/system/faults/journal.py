"""What one process did, written down by itself so that it survives the process.

A line before an action says what is tried, a line after it what came of it. Each line is one write
to the kernel, so that a kill -9 at any point loses nothing but the action itself.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Journal", "read"]

Event = Mapping[str, Any]


class Journal:
    """The journal of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def tries(self, verb: str, **facts: Any) -> None:
        """Say what is going to be tried."""
        self._write({"tries": verb, **facts})

    def did(self, verb: str, **facts: Any) -> None:
        """Say what the store has confirmed."""
        self._write({"did": verb, **facts})

    def _write(self, event: Event) -> None:
        line = json.dumps({**event, "at": time.time_ns() // 1_000_000}) + "\n"
        os.write(self._file, line.encode())


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a journal, but not a last line that was cut off."""
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
