"""The service: one process of `bide serve`, and a load program in another."""

from benchmarks.server.figures import run

__all__ = ["run"]
