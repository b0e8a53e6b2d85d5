"""The scripts: one Lua file for each verb, behind the includes that its first lines name.

A script is called by the hash of its text, so two versions of bide on one server each run theirs.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Script", "as_script", "load_all"]


class Script(NamedTuple):
    """A script as the server knows it."""

    name: str
    text: str
    sha: bytes
    writes: bool


def as_script(name: str, text: str) -> Script:
    """Return a script of a text whose first line says by its flags whether it writes."""
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
    return Script(name, text, sha, "no-writes" not in text.partition("\n")[0])


@cache
def load_all() -> dict[str, Script]:
    """Return all scripts by name.

    A verb names its includes (`-- include: records waking`) and its flags for the server:
    `no-writes`, or `allow-oom` for what a full server still lets through, since it makes room.
    """
    folder = files("bide.engines.redis") / "lua"
    texts = {
        file.name.removesuffix(".lua"): file.read_text("utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    }
    found = {}
    for name, text in texts.items():
        if name.startswith("_"):
            continue
        flags = _words("flags", text)
        head = f"#!lua flags={','.join(flags)}" if flags else "#!lua"
        includes = ("prelude", *_words("include", text))
        parts = [head, *(texts[f"_{include}"] for include in includes), text]
        found[name] = as_script(name, "\n".join(parts))
    return found


def _words(label: str, text: str) -> list[str]:
    found = re.search(rf"^-- {label}: (.*)$", text, re.MULTILINE)
    return found[1].split() if found else []
