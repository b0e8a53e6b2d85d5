"""The command line. One file a family of commands, imported only when one of them is called."""

from bide.cli.program import main

__all__ = ["main"]
