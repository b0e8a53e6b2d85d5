"""How much the tests of chance and the long runs do: less in `make test` than in `test-full`."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

FULL = "BIDE_TESTS_FULL"


def effort(usual: int, full: int) -> int:
    """Return how many examples to try, or seconds to run."""
    return full if FULL in os.environ else usual


def one_in(count: int, parameters: Iterable[Any]) -> list[Any]:
    """Return parameters of a test; all but the first of each so many are for `test-full` alone.

    A tuple has the values of several arguments.
    """
    values = [each if type(each) is tuple else (each,) for each in parameters]
    return [
        pytest.param(*each, marks=pytest.mark.full if place % count else ())
        for place, each in enumerate(values)
    ]
