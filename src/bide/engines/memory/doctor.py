"""What endangers a queue in memory."""

from collections.abc import Sequence
from urllib.parse import SplitResult

from bide.engines.findings import Finding


def examine(parts: SplitResult, longest: float) -> Sequence[Finding]:
    """Return the finding that nothing is stored."""
    return [
        Finding(
            "danger",
            "the store is the memory of one process",
            "all messages are lost when that process ends",
            "use it for tests; for the rest a file (sqlite:///bide.db) or a server",
        )
    ]
