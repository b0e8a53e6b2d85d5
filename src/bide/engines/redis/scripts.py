"""The scripts: one Lua file a verb, each behind the parts that it needs, whose names begin with _.

A script is called by the hash of its text. So two versions of bide beside each other on one server
each run their own, and neither has to know of the other's.

What each call pays for is mostly the making of its functions. What they share with their
surroundings Lua looks for among all that is shared, unless it is shared by the function around them
already; so all but the frame stands in one function, and what is seldom needed in others, of which
`L()`, `R()`, `O()` and `W()` make the contents when they are.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from bide.engines.redis.records import Arg

__all__ = ["FETCHES", "SCRIPTS", "Fetch", "Script", "as_script", "load_all"]

_CHANGES: Final = ("_frame", "_tags", "_leases", "_records", "_order", "_gone")
_LOOKS: Final = ("_frame", "_tags", "_leases", "_records")
_WAKES: Final = (*_CHANGES, "_waking")
_PUTS: Final = (*_WAKES, "_room")
_LEASES: Final = (*_WAKES, "_leasing")

# What a server that is full still lets through: that which makes room, and what only looks.
_FLAGS: Final = {
    "put": "",
    "put_one": "",
    "replace": "",
    "reschedule": "",
    "release": "allow-oom",
    "revive": "",
    "configure": "",
    "shards": "",
    "cancel": "allow-oom",
    "cancel_one": "allow-oom",
    "sweep": "allow-oom",
    "claim": "allow-oom",
    "survey": "allow-oom",
    "take": "allow-oom",
    "extend": "allow-oom",
    "ack": "allow-oom",
    "retry": "allow-oom",
    "bury": "allow-oom",
    "set_aside": "allow-oom",
    "discard": "allow-oom",
    "decline": "allow-oom",
    "recover": "no-writes",
    "find": "no-writes",
    "scan": "no-writes",
    "count": "no-writes",
    "audit": "no-writes",
    "forecast": "no-writes",
}

_PARTS: Final = {
    "put": _PUTS,
    "put_one": (),
    "cancel_one": ("_tags",),
    "replace": _PUTS,
    "shards": (*_CHANGES, "_room"),
    "claim": _LEASES,
    "survey": _LEASES,
    "take": _LEASES,
    "configure": _WAKES,
    "reschedule": _WAKES,
    "retry": _WAKES,
    "release": _WAKES,
    "revive": _WAKES,
    "decline": ("_frame", "_waking"),
    "recover": _LOOKS,
    "find": _LOOKS,
    "scan": (*_LOOKS, "_order"),
    "count": _LOOKS,
    "audit": _LOOKS,
    "forecast": _LOOKS,
}
"""What stands in front of a verb, where that is not `_CHANGES`."""


class Script(NamedTuple):
    """A script as the server knows it."""

    name: str
    text: str
    sha: bytes
    writes: bool

    def command(self, keys: Sequence[bytes], *args: Arg) -> tuple[Arg, ...]:
        """Return the command that runs it: with now, mark, lane, label, and what it is about."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)


class Fetch(NamedTuple):
    """What is called as a script and is none: a command about one key, which only reads.

    A script would make texts of its own of all that it tells.
    """

    name: str
    writes: bool = False

    def command(
        self, keys: Sequence[bytes], now: Arg, mark: Arg, lane: Arg, label: Arg, *args: Arg
    ) -> tuple[Arg, ...]:
        """Return the command, with what it is about."""
        return (self.name, keys[0], *args)


FETCHES: Final = {"records": Fetch("HMGET"), "lease": Fetch("HGET")}
"""The records of ids, and how many messages a lease still holds."""

SCRIPTS: Final = tuple(_FLAGS)
"""The names of all scripts."""


def as_script(name: str, text: str) -> Script:
    """Return a script of a text, which says by its flags whether it writes."""
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
    return Script(name, text, sha, _FLAGS[name] != "no-writes")


@cache
def load_all() -> dict[str, Script]:
    """Return all scripts by name."""
    folder = files("bide.engines.redis") / "lua"
    read = cache(lambda name: (folder / f"{name}.lua").read_text("utf-8"))
    found = {}
    for name, flags in _FLAGS.items():
        head = f"#!lua flags={flags}" if flags else "#!lua"
        parts = [*_PARTS.get(name, _CHANGES), name]
        frame = parts[:1] if parts[0] == "_frame" else []
        inner = ["return (function()", *map(read, parts[len(frame) :]), "end)()"]
        text = "\n".join([head, *map(read, ("_mark", *frame)), *inner])
        found[name] = as_script(name, text)
    return found
