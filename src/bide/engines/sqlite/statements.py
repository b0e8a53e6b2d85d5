"""The named statements of `statements.sql`, each as one string."""

import re
from importlib import resources

__all__ = ["SQL", "migrations"]

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class _Statements:
    """Statements as attributes: `SQL.pick`."""

    def __init__(self, text: str) -> None:
        parts = _NAME.split(text)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            setattr(self, name, " ".join(re.sub(r"--.*", "", body).split()).rstrip("; "))

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"statements.sql has no statement of the name {name!r}")


def _text(*path: str) -> str:
    return resources.files("bide.engines.sqlite").joinpath(*path).read_text("utf-8")


def migrations() -> list[str]:
    """Return the scripts that lead from version 0 to 1, from 1 to 2, and so on."""
    folder = resources.files("bide.engines.sqlite").joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [_text("migrations", name) for name in names]


SQL = _Statements(_text("statements.sql"))
