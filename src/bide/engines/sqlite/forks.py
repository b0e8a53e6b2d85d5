"""Refuse a file that another thread used while this process was forked.

SQLite keeps the locks of a file once per process, for all connections to it. The child of a fork
inherits that list but not the locks: it would write beside other processes and break the file.
Engines leave their files before a fork; one in the middle of a long transaction cannot.
"""

import os
import weakref
from pathlib import Path

from bide.engines.sqlite.files import Identity
from bide.model.errors import StoreUnavailable

_open: weakref.WeakKeyDictionary[object, Identity] = weakref.WeakKeyDictionary()
"""The files that engines of this process have open."""

_inherited: set[Identity] = set()


def opened(engine: object, file: Identity | None) -> None:
    """Note which file an engine has open; `None`: it has closed its file."""
    if file is None:
        _open.pop(engine, None)
    else:
        _open[engine] = file


def refuse_inherited(path: Path, file: Identity | None) -> None:
    """Refuse a file that was open during the fork that made this process.

    Raises:
        StoreUnavailable: it was.
    """
    if file in _inherited:
        raise StoreUnavailable(
            f"{path} was in use by another thread while this process was forked: SQLite's locks "
            "do not work here. Start this process again, or fork before the first command"
        )


def _after_fork_in_child() -> None:
    _inherited.update(_open.values())
    _open.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
