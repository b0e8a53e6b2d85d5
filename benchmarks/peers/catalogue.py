"""Which peers there are: what is installed for each, on which stores, and its tuned settings."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Peer", "peers"]

FILE = Path(__file__).with_name("peers.toml")


@dataclass(frozen=True)
class Peer:
    """A queue that is measured, as `peers.toml` has it.

    Args:
        name: of its program, and of its folder in the cache.
        title: what the table calls it.
        stores: what it keeps messages in; each has a row.
        python: requirements of pip with their versions; none for bide itself.
        node: requirements of npm with their versions; its program is a module of JavaScript.
        apt: the package of a server that it needs.
        tuned: settings of a second row, which measures what they change; none without one.
        tuning: these settings, in words.
        remark: what the table says about the peer.
        has_own_worker: whether its worker is a process beside the client.
    """

    name: str
    title: str
    stores: tuple[str, ...]
    python: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    apt: str = ""
    tuned: dict[str, Any] = field(default_factory=dict)
    tuning: str = ""
    remark: str = ""
    has_own_worker: bool = True

    @property
    def versions(self) -> str:
        """What is installed, without its extras."""
        python = (re.sub(r"\[.*\]", "", text).replace("==", " ") for text in self.python)
        return ", ".join((*python, *(text.replace("@", " ") for text in self.node)))


def peers(file: Path = FILE) -> dict[str, Peer]:
    """Return the peers by name."""
    with file.open("rb") as stream:
        tables = tomllib.load(stream)
    return {name: _peer(name, table) for name, table in tables.items()}


def _peer(name: str, table: dict[str, Any]) -> Peer:
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    options: dict[str, Any] = table | lists
    return Peer(name, **options)
