"""How much the tests of chance and the long runs do: less in `make test` than in `test-full`."""

import os

FULL = "BIDE_TESTS_FULL"


def effort(usual: int, full: int) -> int:
    """Return how many examples to try, or seconds to run."""
    return full if FULL in os.environ else usual
