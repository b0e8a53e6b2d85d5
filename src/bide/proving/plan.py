"""What is to be proved, and how hard."""

from pathlib import Path
from typing import NamedTuple

from bide.model.errors import BideError

QUEUE_PREFIX = "prove-"
"""How the names of the queues begin in which stores are proved."""

MAX_DELAY = 1.0
"""The longest delay of a message of the workload, in seconds."""

LEASE = 3.0
"""The length of a lease, in seconds: what a killed process held comes back after so long."""


class ProvingPlan(NamedTuple):
    """The size of a run, and what ends it: the time or the number of kills, what comes first."""

    url: str
    queue: str
    """The name of the queue, which nobody else uses."""
    processes: int
    seconds: float | None
    """For how long processes are killed; `None`: until there were enough kills."""
    kills: int | None
    """The number of kills; `None`: as many as fit into the time."""
    kill_every: float
    """The average time between two kills, in seconds."""
    pending: int
    """How many messages are put before that are due much later."""
    fault: str | None
    """The user's own fault: a command for the shell."""
    every: float
    """How often the fault is run, in seconds."""
    seed: int


class ProvingStopped(BideError):
    """A run could not be carried out to its end."""


def last_line(log: Path) -> str:
    """Return the last line that a process has printed into a file."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing")
