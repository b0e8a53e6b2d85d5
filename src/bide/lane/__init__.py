"""The lane: batches the commands of threads and tasks for one engine, and has the threads."""

from bide.lane.lane import Lane
from bide.lane.shared import open_lane

__all__ = ["Lane", "open_lane"]
