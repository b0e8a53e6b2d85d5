"""The lane: who may touch an engine, and when. The only place in bide with threads."""

from bide.lane.lane import Lane
from bide.lane.shared import open_lane

__all__ = ["Lane", "open_lane"]
