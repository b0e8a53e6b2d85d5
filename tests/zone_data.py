"""Time zones made for a test: an update of a zone, without waiting for a government."""

import struct
import zoneinfo
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bide.model.zones import forget_zones

TOWN = "Test/Town"
"""A zone that no machine has."""

WITH_SUMMER = "CET-1CEST,M3.5.0,M10.5.0/3"
"""An hour ahead of UTC, and two in summer; in the form of POSIX."""

NO_SUMMER = "CET-1"
"""An hour ahead of UTC: what was planned in summer is due an hour later."""

BEFORE = "TST-2"
"""Two hours ahead of UTC, before an update."""

LATER = "TST-1"
"""One hour ahead: what was planned by `BEFORE` is due an hour later."""

EARLIER = "TST-3"
"""Three hours ahead: what was planned by `BEFORE` is due an hour earlier."""


def compiled(posix: str) -> bytes:
    """Return a zone as a file (RFC 8536) that has no transitions but those of its last line."""
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    block = b"TZif2" + bytes(15) + counts + struct.pack(">lBB", 0, 0, 0) + b"UTC\0"
    return block + block + f"\n{posix}\n".encode()


def write_zones(folder: Path, version: str, zones: Mapping[str, str]) -> Path:
    """Write a folder of zones, with UTC; an empty version is not written."""
    for name, posix in {"UTC": "UTC0", **zones}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(compiled(posix))
    if version:
        (folder / "tzdata.zi").write_text(f"# version {version}\n# the rest is not read\n")
    return folder


@contextmanager
def machine_with(folder: Path) -> Iterator[None]:
    """Let this process have the zones of a folder, and its version, for a while."""
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(folder), *before])
    forget_zones()
    try:
        yield
    finally:
        zoneinfo.reset_tzpath(before)
        forget_zones()
