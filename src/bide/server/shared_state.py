"""What the processes of a server know together."""

from collections.abc import Sequence

from bide.server.login_throttle import LoginThrottle
from bide.server.quota_usage import QuotaUsage
from bide.server.shared_files import make_file
from bide.server.shared_stats import SharedStats


def make_files() -> list[int]:
    """Return the descriptors of files for a `SharedState`, to be inherited by each process."""
    return [make_file(f"bide-{name}") for name in ("usage", "stats", "logins")]


class SharedState:
    """What the processes of a server know together.

    Args:
        descriptors: see `make_files`; without them it is of this process alone.
    """

    def __init__(self, descriptors: Sequence[int | None] = (None, None, None)) -> None:
        usage, stats, logins = descriptors
        self.usage = QuotaUsage(usage)
        """What namespaces have used of their quotas."""
        self.stats = SharedStats(stats)
        """What each process has done."""
        self.logins = LoginThrottle(logins)
        """Which addresses have sent wrong tokens."""

    def close(self) -> None:
        """Close the files."""
        for file in (self.usage, self.stats, self.logins):
            file.close()
