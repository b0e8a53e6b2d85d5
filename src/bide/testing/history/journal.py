"""What one process did, written down by itself so that it survives the process.

A line before an action says what is tried, a line after it what came of it. Each line is one write
to the kernel, so that a kill -9 at any point loses nothing but the action itself.

An event is a line of JSON. It has `tries`, `did` or `unknown` with the verb, and facts by the verb:
docs/reference/testing.md has the table. `unknown` says that the store answered with an error, so
that nobody knows whether it was done.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

Event = Mapping[str, Any]
"""One event: `tries`, `did` or `unknown`, facts, and when it was written."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

END = ".journal"
"""How the name of a journal ends."""


class Journal:
    """The journal of one process.

    Every event has the time `at`, Unix milliseconds of the machine, and `elapsed`, milliseconds of
    a clock that nobody sets.

    Args:
        path: the file; it is appended to if it exists.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def tries(self, verb: str, **facts: Any) -> None:
        """Say what is going to be tried."""
        self._write("tries", verb, facts)

    def did(self, verb: str, **facts: Any) -> None:
        """Say what the store has confirmed, or what has happened."""
        self._write("did", verb, facts)

    def unknown(self, verb: str, **facts: Any) -> None:
        """Say what was tried, and ended with an error: it was done, or was not."""
        self._write("unknown", verb, facts)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, kind: str, verb: str, facts: dict[str, Any]) -> None:
        event = {
            kind: verb,
            **facts,
            "at": time.time_ns() // 1_000_000,
            "elapsed": time.monotonic_ns() // 1_000_000,
        }
        os.write(self._file, _encode(event) + b"\n")


class JournalFile:
    """A journal to be read, as often as needed.

    Iterating yields its events, but not a last line that was cut off.

    Args:
        path: the file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The name of the process: that of the file."""
        return self.path.stem

    @property
    def size(self) -> int:
        """The size of the file, in bytes."""
        return self.path.stat().st_size

    def __iter__(self) -> Iterator[Event]:
        with self.path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield _decode(line)


def journals_in(folder: Path | str) -> list[JournalFile]:
    """Return the journals in a folder: the files whose names end with `.journal`."""
    return [JournalFile(path) for path in sorted(Path(folder).glob(f"*{END}"))]
