"""Time zones: the data of this machine, their version, and those of another version.

The versions are those of IANA: "2026b" is the second one of 2026. Where a process does not know
the version of its data, nothing is planned anew by them.
"""

import re
import zoneinfo
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from bide.model.errors import InvalidArgument

_VERSION = re.compile("[0-9]{4}[a-z]{1,3}")

_HEAD = 64
"""How many bytes of a file are read for its version."""

_PROBES = ("UTC", "Etc/UTC", "Europe/London")
"""A folder that has one of these zones is one from which zones are read."""


class ZoneData(NamedTuple):
    """Data of time zones."""

    version: str
    """The version; empty: it is not known."""
    zone: Callable[[str], ZoneInfo]
    """Returns the zone of a name, or raises `InvalidArgument`: it has none."""


def is_version(text: str) -> bool:
    """Return whether a text is a version of IANA.

    Example:
        >>> is_version("2026b"), is_version("2026.2"), is_version("")
        (True, False, False)
    """
    return _VERSION.fullmatch(text) is not None


def is_newer(version: str, than: str) -> bool:
    """Return whether a version is greater than another one; one that is unknown is the smallest.

    Example:
        >>> is_newer("2026b", "2025z"), is_newer("2026za", "2026z"), is_newer("2026b", "2026b")
        (True, True, False)
        >>> is_newer("", "2026b"), is_newer("2026b", "")
        (False, True)
    """
    return version > than  # a year has four digits, and the letter after "z" is "za"


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of a name.

    Raises:
        InvalidArgument: it is not known here.
    """
    own_version()  # before the first zone is read: an update later on may not pass for these data
    try:
        return ZoneInfo(name)
    except Exception as error:  # a wrong name raises one of many types
        raise InvalidArgument(
            f"timezone={name!r} is not known here; write a name as 'Europe/Berlin', or 'UTC'. If "
            "this machine has no time zones: pip install 'bide[schedules]'"
        ) from error


@lru_cache(maxsize=1)
def own_version() -> str:
    """Return the version of the data of this process; empty if it is not known."""
    for folder in map(Path, zoneinfo.TZPATH):
        if any((folder / probe).exists() for probe in _PROBES):
            return version_in(folder)
    try:
        version: object = import_module("tzdata").IANA_VERSION
    except (ImportError, AttributeError):
        return ""
    return version if isinstance(version, str) and is_version(version) else ""


def own_zones() -> ZoneData:
    """Return the data of this process."""
    return ZoneData(own_version(), zone_of)


def forget_zones() -> None:
    """Read zones and version again when they are needed next, as after an update in a test."""
    own_version.cache_clear()
    ZoneInfo.clear_cache()
    for forget in _forgetful:
        forget()


_forgetful: list[Callable[[], None]] = []


def remembers_zones(forget: Callable[[], None]) -> None:
    """Register what forgets values that were computed from zones."""
    _forgetful.append(forget)


def version_in(folder: Path) -> str:
    """Return the version of a folder of compiled zones; empty if it does not say."""
    for name, prefix in (("tzdata.zi", "# version "), ("+VERSION", ""), ("version", "")):
        try:
            with (folder / name).open("rb") as file:
                head = file.read(_HEAD).decode("ascii", "replace")
        except OSError:
            continue
        first_line = head.partition("\n")[0].strip()
        version = first_line.removeprefix(prefix)
        if first_line.startswith(prefix) and is_version(version):
            return version
    return ""
