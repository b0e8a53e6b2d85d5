"""Data of time zones in a file or folder: those of an update that is not installed yet."""

import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path, PurePosixPath
from shutil import which
from zipfile import BadZipFile, ZipFile
from zoneinfo import ZoneInfo

from bide.model.errors import InvalidArgument
from bide.model.zones import ZoneData, is_version, version_in

SOURCES = (
    "africa",
    "antarctica",
    "asia",
    "australasia",
    "europe",
    "northamerica",
    "southamerica",
    "etcetera",
    "factory",
    "backward",
)
"""The files of IANA's source that the zones are compiled from."""

IN_WHEEL = "tzdata/zoneinfo/"
"""Where the package tzdata has its zones."""

_WHEEL_VERSION = re.compile(rb'^IANA_VERSION = "([^"]*)"', re.MULTILINE)

_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
"""The name of a zone; it names no file elsewhere."""


def zones_in(path: Path, stack: ExitStack) -> ZoneData:
    """Return the data of time zones in a file or a folder.

    Args:
        path: a wheel of the package tzdata, a folder of compiled zones, or IANA's source: a folder,
            or tzdataVERSION.tar.gz.
        stack: closes and removes at its end what this opens and makes.

    Raises:
        InvalidArgument: it has none, or the program zic is missing that compiles the source.
    """
    try:
        if path.is_dir():
            if any((path / name).is_file() for name in ("UTC", "Etc/UTC")):
                return _compiled(path, version_in(path))
            return _from_source(path, stack)
        if tarfile.is_tarfile(path):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bide-zones-")))
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
            inner = next((file.parent for file in sorted(folder.rglob("europe"))), folder)
            return _from_source(inner, stack)
        return _in_wheel(stack.enter_context(ZipFile(path)))
    except (OSError, BadZipFile, tarfile.TarError) as error:
        raise _refusal(path, str(error)) from error


def _refusal(path: Path, why: str) -> InvalidArgument:
    """Return the error for what has no time zones."""
    return InvalidArgument(
        f"{path} has no time zones that can be read ({why}); give a wheel, as `pip download "
        "--no-deps tzdata` brings it, a folder such as /usr/share/zoneinfo of a machine with the "
        "update, or tzdataVERSION.tar.gz of IANA"
    )


def _compiled(folder: Path, version: str) -> ZoneData:
    """Return the data in a folder of compiled zones."""
    return ZoneData(version, _reader(lambda name: (folder / name).read_bytes()))


def _in_wheel(wheel: ZipFile) -> ZoneData:
    """Return the data in a wheel of the package tzdata."""
    names = set(wheel.namelist())
    if f"{IN_WHEEL}UTC" not in names:
        raise BadZipFile(f"it has no {IN_WHEEL}UTC")
    match = _WHEEL_VERSION.search(wheel.read("tzdata/__init__.py"))
    version = "" if match is None else match[1].decode()

    def read(name: str) -> bytes:
        try:
            return wheel.read(IN_WHEEL + name)
        except KeyError as error:
            raise FileNotFoundError(name) from error

    return ZoneData(version if is_version(version) else "", _reader(read))


def _from_source(folder: Path, stack: ExitStack) -> ZoneData:
    """Return the data in a folder with IANA's source, compiled."""
    sources = [folder / name for name in SOURCES if (folder / name).is_file()]
    if not sources and (folder / "tzdata.zi").is_file():
        sources = [folder / "tzdata.zi"]
    if not sources:
        raise _refusal(folder, "there are neither compiled zones nor their source")
    zic = which("zic", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
    if zic is None:
        raise InvalidArgument(
            "to compile the source of time zones needs the program zic, which is not here; give a "
            "wheel of the package tzdata instead: pip download --no-deps tzdata"
        )
    compiled = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bide-zones-")))
    done = subprocess.run(
        [zic, "-d", str(compiled), *map(str, sources)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise _refusal(folder, f"zic: {done.stderr.strip()}")
    return _compiled(compiled, version_in(folder))


def _reader(read: Callable[[str], bytes]) -> Callable[[str], ZoneInfo]:
    """Return what reads zones once each, by their names."""
    known: dict[str, ZoneInfo] = {}

    def zone(name: str) -> ZoneInfo:
        if name not in known:
            try:
                if _NAME.fullmatch(str(PurePosixPath(name))) is None:
                    raise FileNotFoundError(name)
                known[name] = ZoneInfo.from_file(BytesIO(read(name)), key=name)
            except (OSError, ValueError) as error:
                raise InvalidArgument(f"timezone={name!r} is not in these data") from error
        return known[name]

    return zone
