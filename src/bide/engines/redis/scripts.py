"""The library: all functions that the server runs, in one text made of the files in `lua`.

Its name has the hash of its text in it, so two versions of bide on one server each call their own.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_SHARED = ("prelude", "ends", "records", "ranges", "limits", "waking", "leasing", "forwarded")
"""Files of what several functions use, in the order in which they use each other."""


class Library(NamedTuple):
    """The library as the server knows it."""

    text: str
    functions: dict[str, bytes]
    """By the names of the verbs: what they are called on the server."""
    writing: frozenset[str]
    """The verbs that may change something."""


def as_library(text: str) -> Library:
    """Return a library of a text, whose functions say by their flags whether they write."""
    name = f"bide_{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]}"
    flags = dict(re.findall(r"^define\('(\w+)', \{(.*?)\}", text, re.MULTILINE))
    return Library(
        f"#!lua name={name}\nlocal NAME = '{name}'\n{text}",
        {verb: f"{name}_{verb}".encode() for verb in flags},
        frozenset(verb for verb, flag in flags.items() if "no-writes" not in flag),
    )


@cache
def load_library() -> Library:
    """Return the library of this version."""
    folder = files("bide.engines.redis") / "lua"
    names = sorted(
        file.name for file in folder.iterdir() if re.fullmatch(r"[a-z]+\.lua", file.name)
    )
    texts = [(folder / f"_{name}.lua").read_text("utf-8") for name in _SHARED]
    # A function has room for so many local variables: those of a file are its own.
    texts += [f"do\n{(folder / name).read_text('utf-8')}end\n" for name in names]
    return as_library("".join(texts))
