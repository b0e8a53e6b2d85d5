"""The command line. A file has a few commands, and is imported when one of them is called."""

from bide.cli.program import main

__all__ = ["main"]
