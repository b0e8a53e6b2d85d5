"""The SQLite engine: one file, many processes, no server."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import SplitResult, unquote

from bide.engines.registry import options, seconds
from bide.engines.sqlite.connection import Durability
from bide.engines.sqlite.engine import SqliteEngine
from bide.model.errors import InvalidArgument

__all__ = ["SqliteEngine", "file_of", "from_url"]

_MODES = {"0600": 0o600, "0660": 0o660}
"""A process that reads a store writes its log too, so there is no read-only mode."""


def from_url(parts: SplitResult) -> Callable[[], SqliteEngine]:
    """Return what opens `sqlite:///file.db` (relative) or `sqlite:////path/file.db` (absolute).

    Options: `durability=full|normal`, `timeout=30s`, `mode=0600|0660`.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    file = file_of(parts)
    chosen = options(parts, "durability", "timeout", "mode")
    durability = chosen.get("durability", "full")
    if durability not in ("full", "normal"):
        raise InvalidArgument(f"durability={durability!r} must be full or normal")
    timeout = seconds(chosen.get("timeout", "30s"), "timeout")
    mode = chosen.get("mode", "0600")
    if mode not in _MODES:
        raise InvalidArgument(
            f"mode={mode!r} must be 0600 (the store is for one user) or 0660 (for a group as well)"
        )
    return partial(
        SqliteEngine,
        file,
        durability=cast("Durability", durability),
        timeout=timeout,
        mode=_MODES[mode],
    )


def file_of(parts: SplitResult) -> Path:
    """Return the file that a URL names.

    Raises:
        InvalidArgument: the URL names a host, or no file.
    """
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc:
        raise InvalidArgument(
            f"sqlite:// takes three slashes before a relative path and four before an absolute one:"
            f" sqlite:///{parts.netloc}{parts.path}"
        )
    if parts.fragment:
        raise InvalidArgument(f"#{parts.fragment} would not be part of the file: write # as %23")
    if path == ":memory:":
        raise InvalidArgument("for a queue in memory use the URL memory://")
    if not path or path.endswith("/") or "\0" in path:
        raise InvalidArgument("sqlite:// needs the name of a file: sqlite:///bide.db")
    # Opened now or later, or again after a fork: a program that went elsewhere means the same file.
    return Path(path).absolute()
