"""Wait for what other threads and processes do."""

import time
from collections.abc import Callable

PATIENCE = 60.0


def until(condition: Callable[[], object]) -> None:
    """Block until a condition holds; fail after a minute."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.002)
