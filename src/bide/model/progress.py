"""How far the handling of a message has come, as its worker reports it."""

from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

from bide.model.errors import InvalidArgument
from bide.model.times import UnixMs

MAX_TEXT = 200
"""The maximum length of the text of a report, in characters; a longer one is cut."""


class Progress(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How far a worker has come with a message.

    Example:
        >>> print(progress(40, of=100, text="rows"))
        40 of 100 rows (40 %)
        >>> print(progress(7))
        7
    """

    done: float
    """How much is done, in units of the worker's own."""
    of: float | None = None
    """How much there is to do; `None`: it is not known."""
    text: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    """What is counted, or what the worker does now."""
    moment: UnixMs = 0
    """When the store got it, in Unix milliseconds; 0: it is under way to the store."""

    @property
    def percent(self) -> int | None:
        """How much of the whole is done, 0 to 100; `None`: it is not known."""
        if not self.of or self.of < 0:
            return None
        return max(0, min(100, int(100 * self.done / self.of)))

    def __str__(self) -> str:
        whole = "" if self.of is None else f" of {self.of:,.12g}"
        text = f" {self.text}" if self.text else ""
        share = "" if self.percent is None else f" ({self.percent} %)"
        return f"{self.done:,.12g}{whole}{text}{share}"


def progress(done: float, of: float | None = None, text: str = "") -> Progress:
    """Return a report, checked.

    Raises:
        InvalidArgument: a number is none, or not finite; or the text is no text.
    """
    for name, value in (("done", done), ("of", of)):
        if name == "of" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(f"{name}={value!r} is no number")
        try:
            is_finite = isfinite(value)
        except OverflowError:  # an `int` that is too large for a `float`
            is_finite = False
        if not is_finite:
            raise InvalidArgument(f"{name} must be a finite number, as a report is JSON")
    if not isinstance(text, str):
        raise InvalidArgument(f"text takes a str, not {type(text).__name__}")
    readable = text.encode(errors="replace").decode()
    return Progress(float(done), None if of is None else float(of), readable[:MAX_TEXT])
