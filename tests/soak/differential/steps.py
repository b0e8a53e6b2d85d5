"""The steps of a sequence: calls of a queue as data, and how a story tells them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

__all__ = ["DueTime", "Exported", "Held", "Sequence", "Step", "UndoToken", "Version"]


class Held(NamedTuple):
    """A delivery that was claimed before."""

    id: str | None = None
    """Of which message; `None`: of any."""
    age: int = 0
    """How many of these were claimed after it."""

    def __str__(self) -> str:
        what = "the delivery" if self.id is None else f"the delivery of {self.id!r}"
        return what if self.age == 0 else f"{what} {self.age} before the last"


class Version(NamedTuple):
    """The version that a message has when the step is played."""

    id: str

    def __str__(self) -> str:
        return f"the version of {self.id!r}"


class DueTime(NamedTuple):
    """The time for which a message is due when the step is played."""

    id: str

    def __str__(self) -> str:
        return f"the due time of {self.id!r}"


class UndoToken(NamedTuple):
    """The token of a bulk change that was made before."""

    age: int = 0
    """How many were made after it."""

    def __str__(self) -> str:
        return "the last token" if self.age == 0 else f"the token {self.age} before the last"


class Exported(NamedTuple):
    """The lines of an export of a queue."""

    queue: str

    def __str__(self) -> str:
        return f"the export of {self.queue}"


class Step(NamedTuple):
    """A call, or time that passes."""

    call: str
    """A method of a queue, of a delivery ("delivery.ack"), or "wait"."""
    arguments: Mapping[str, Any] = {}
    queue: str = "q"
    worker: str = "w1"
    """Who makes it."""

    def __str__(self) -> str:
        if self.call == "wait":
            seconds, ms = divmod(self.arguments["ms"], 1_000)
            return f"{seconds} s pass" if ms == 0 else f"{seconds * 1_000 + ms} ms pass"
        arguments = ", ".join(f"{name}={_shown(value)}" for name, value in self.arguments.items())
        return f"{self.worker}: {self.queue}.{self.call}({arguments})"


class Sequence(NamedTuple):
    """Steps, and when the first one is made."""

    start: int
    """In Unix milliseconds."""
    steps: tuple[Step, ...]


def _shown(value: Any) -> str:
    """Return an argument as the story shows it."""
    match value:
        case Held() | Version() | DueTime() | UndoToken() | Exported():
            return f"<{value}>"
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case list():
            return f"[{', '.join(map(_shown, value))}]"
        case dict():
            return f"{{{', '.join(f'{name}: {_shown(each)}' for name, each in value.items())}}}"
    return repr(value)
