"""Searching a difference: sequence after sequence, and the story of what is found."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from tests.soak.differential.playing import Difference, difference
from tests.soak.differential.sequences import drawn
from tests.soak.differential.shrinking import shortened
from tests.soak.differential.steps import Sequence
from tests.soak.differential.store import Store

__all__ = ["search", "short_story", "story"]

LONGEST_LINE = 2_000
"""Characters of a line of a story."""

MOST_PLACES = 10
"""How many differences between two replies are named."""

LONGEST_SHRINKING = 120.0
"""Seconds after which a sequence is short enough."""


def search(
    stores: list[Store], seed: int, length: int, is_over: Callable[[int], bool]
) -> tuple[int, Sequence, Difference] | None:
    """Play sequence after sequence; return the first one that shows a difference, and its seed.

    Args:
        stores: are compared with the memory engine.
        seed: of the first sequence; each one after it has the next number.
        length: the number of steps of each.
        is_over: is asked before each sequence, with the number of those that were played.
    """
    played = 0
    while not is_over(played):
        sequence = drawn(seed + played, length)
        shown = difference(sequence, stores)
        if shown is not None:
            return seed + played, sequence, shown
        played += 1
    return None


def short_story(sequence: Sequence, shown: Difference, stores: list[Store]) -> str:
    """Shorten a sequence that shows a difference, and tell it.

    Args:
        sequence: the sequence.
        shown: the difference.
        stores: those that were compared.
    """
    compared = [store for store in stores if store.name == shown.store]
    deadline = time.monotonic() + LONGEST_SHRINKING

    def shows(shorter: Sequence) -> bool:
        if time.monotonic() > deadline:
            return False
        other = difference(shorter, compared)
        return other is not None and other.kind == shown.kind

    # What comes after the step that differs plays no part.
    shorter = shortened(sequence._replace(steps=sequence.steps[: shown.number + 1]), shows)
    # Played again: it is the difference of the shorter sequence that is told.
    return story(shorter, difference(shorter, compared) or shown)


def story(sequence: Sequence, shown: Difference) -> str:
    """Tell a sequence, a line for each step, and both replies to the last one."""
    steps = list(sequence.steps[: shown.number + 1])
    if shown.number >= len(sequence.steps):
        steps.append(shown.step)
    lines = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    replies = {"memory": shown.expected, shown.store: shown.actual}
    lines += [f"     {f'{name}:':9} {reply}" for name, reply in replies.items()]
    places = islice(_places(shown.expected, shown.actual, ""), MOST_PLACES)
    lines += [f"     differs: {place}" for place in places]
    return "\n".join(line[:LONGEST_LINE] for line in lines)


def _places(expected: Any, actual: Any, place: str) -> Iterator[str]:
    """Yield where two replies differ, with both values."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in sorted({*expected, *actual}):
            yield from _places(expected.get(name), actual.get(name), f"{place}.{name}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from _places(one, other, f"{place}[{number}]")
    elif expected != actual:
        yield f"{place.removeprefix('.') or 'all'}: {expected!r}, {actual!r}"
