"""What each process of the demo writes down for itself, to be held against the store afterwards."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

__all__ = ["Handling", "Journal", "Records", "Tail"]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode_lines

Row = list[str | int]


class Journal:
    """A file that one process appends to. What was written survives the writer's kill -9.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows, handed to the system in one piece before this returns."""
        if data := _encode(rows):
            os.write(self._file, data)


class Tail:
    """Reads what is appended to a journal, as it comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def rows(self) -> Iterator[Row]:
        """Return the rows since the last call. A last line that is torn is left out."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                yield _decode(line)


@dataclass(frozen=True)
class Handling:
    """One order in the hands of one worker."""

    worker: str
    id: str
    attempt: int
    late: int
    """Milliseconds from the order's due moment to the start of its handling."""


@dataclass
class Records:
    """All that the processes have written down."""

    put: list[str] = field(default_factory=list)
    paid: list[str] = field(default_factory=list)
    """Cancels that were answered with true."""
    too_late: list[str] = field(default_factory=list)
    """Cancels that were answered with false."""
    handled: list[Handling] = field(default_factory=list)
    """Written before the ack, so that a handling is known whatever happens to its worker."""
    acked: list[str] = field(default_factory=list)
    """Acks that were answered with true."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the journals of a demo's folder."""
        records = cls()
        for path in sorted(folder.glob("*.jsonl")):
            for row in Tail(path).rows():
                records.add(path.stem, row)
        return records

    def add(self, writer: str, row: Row) -> None:
        """Take in one row."""
        match row:
            case ["put", str(id), *_]:
                self.put.append(id)
            case ["paid", str(id)]:
                self.paid.append(id)
            case ["too late", str(id)]:
                self.too_late.append(id)
            case ["handled", str(id), int(attempt), int(late)]:
                self.handled.append(Handling(writer, id, attempt, late))
            case ["acked", str(id)]:
                self.acked.append(id)

    @property
    def first_lateness(self) -> list[int]:
        """How late each order's first handling was, sorted. A redelivery is late by its lease."""
        return sorted(handling.late for handling in self.handled if handling.attempt == 1)
