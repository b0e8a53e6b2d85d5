"""The named statements of the SQL files in this folder, each as one string."""

import re
from importlib import resources

from bide.engines.sqlite.rows import columns

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_BRACES = re.compile(r"\{(\w+)\}")


class _Statements:
    """Statements as attributes: `SQL.pick`."""

    def __init__(self, text: str) -> None:
        parts, named = _NAME.split(text), columns()
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            text = " ".join(re.sub(r"--.*", "", body).split()).rstrip("; ")
            setattr(self, name, _BRACES.sub(lambda found: named[found[1]], text))

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"the SQL files have no statement of the name {name!r}")


def _text(name: str) -> str:
    return resources.files("bide.engines.sqlite").joinpath(name).read_text("utf-8")


SQL = _Statements("".join(map(_text, ("statements.sql", "reading.sql", "limits.sql"))))
