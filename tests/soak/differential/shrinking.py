"""Shortening a sequence: steps and arguments are left out while the same difference remains.

After Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.soak.differential.steps import Sequence, Step

__all__ = ["shortened"]

KEPT = "id"
"""The argument that is not left out: a queue makes up an id of its own, each time another one."""

Shows = Callable[[Sequence], bool]
"""Tells whether a sequence shows the difference."""


def shortened(sequence: Sequence, shows: Shows) -> Sequence:
    """Return a sequence that still shows the difference, and of which nothing can be left out.

    Args:
        sequence: one that shows it.
        shows: tells whether another one does.
    """
    while True:
        shorter = _simplified(_with_fewer_steps(_unified(sequence, shows), shows), shows)
        if shorter == sequence:
            return sequence
        sequence = shorter


def _unified(sequence: Sequence, shows: Shows) -> Sequence:
    """Let all steps be about one queue, and of one worker."""
    for field in ("queue", "worker"):
        plain = getattr(Step(""), field)
        steps = tuple(step._replace(**{field: plain}) for step in sequence.steps)
        if steps != sequence.steps and shows(sequence._replace(steps=steps)):
            sequence = sequence._replace(steps=steps)
    return sequence


def _with_fewer_steps(sequence: Sequence, shows: Shows) -> Sequence:
    """Leave out steps: halves first, then ever smaller parts, at last each step alone."""
    length = max(1, len(sequence.steps) // 2)
    while True:
        place = 0
        while place < len(sequence.steps):
            steps = sequence.steps[:place] + sequence.steps[place + length :]
            shorter = sequence._replace(steps=steps)
            if shows(shorter):
                sequence = shorter
            else:
                place += length
        if length == 1:
            return sequence
        length //= 2


def _simplified(sequence: Sequence, shows: Shows) -> Sequence:
    """Make each step as simple as it can be."""
    for place in range(len(sequence.steps)):
        is_simpler = True
        while is_simpler:
            is_simpler = False
            for step in _simpler(sequence.steps[place]):
                steps = (*sequence.steps[:place], step, *sequence.steps[place + 1 :])
                if shows(sequence._replace(steps=steps)):
                    sequence, is_simpler = sequence._replace(steps=steps), True
                    break
    return sequence


def _simpler(step: Step) -> Iterator[Step]:
    """Yield steps that are a little simpler."""
    plain = Step(step.call, step.arguments)
    for field in ("queue", "worker"):
        if getattr(step, field) != getattr(plain, field):
            yield step._replace(**{field: getattr(plain, field)})
    for arguments in _fewer(step.arguments):
        yield step._replace(arguments=arguments)


def _fewer(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield arguments of which one is left out, or has fewer elements."""
    for name, value in arguments.items():
        if name != KEPT:
            yield {each: arguments[each] for each in arguments if each != name}
        if isinstance(value, list):
            for place, element in enumerate(value):
                if len(value) > 1:
                    yield {**arguments, name: value[:place] + value[place + 1 :]}
                if isinstance(element, Mapping):
                    for fields in _fewer(element):
                        shorter = [*value[:place], fields, *value[place + 1 :]]
                        yield {**arguments, name: shorter}
