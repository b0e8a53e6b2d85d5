"""Container files: their instructions, and images of them without a container engine.

An image is a folder: the instructions are carried out in a copy of a bare Debian. What is started
in it is process 1 of a PID namespace, as the user of the image. That needs root.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.docs.test_pages import ROOT

BOUND = 600.0

SUITE = "bookworm"
PYTHON = "3.11"
"""Of that suite."""

PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
"""As in the image of Python."""

INDEX = "/index"
"""The folder in an image that stands for the package index."""


class Instruction(NamedTuple):
    """One line of a container file."""

    name: str
    text: str


def instructions(path: Path) -> list[Instruction]:
    """Return the instructions of a container file."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    return [
        Instruction(line.partition(" ")[0], line.partition(" ")[2])
        for line in text.splitlines()
        if line.strip()
    ]


def health_check(path: Path) -> list[str]:
    """Return the words of the health check of a container file."""
    text = dict(instructions(path))["HEALTHCHECK"]
    words: list[str] = json.loads(text.partition("CMD ")[2])
    return words


def command(path: Path) -> list[str]:
    """Return the words that a container file starts."""
    last = dict(instructions(path))
    return [*json.loads(last.get("ENTRYPOINT", "[]")), *json.loads(last["CMD"])]


def run(*words: object, **environment: str) -> str:
    """Run a program of the machine; return what it says."""
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """Provide a folder for whole systems: they are too large for memory, and have devices."""
    folder = Path(tempfile.mkdtemp(prefix="bide-images-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def bare_system(folder: Path) -> Path:
    """Make what stands for the image `python:VERSION-slim`: a Debian with python and pip."""
    assert os.geteuid() == 0, "images are built in a Debian of their own: run this as root"
    root = folder / "base"
    packages = "python3,python3-venv,ca-certificates"
    run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, root)
    run("chroot", root, "python3", "-m", "venv", "/usr/local")
    return root


def wheels_of_index(folder: Path, *requirements: str) -> Path:
    """Download wheels for the system's Python: what builds and runs bide, and not bide."""
    index = folder / "index"
    machine = sysconfig.get_platform().rpartition("-")[2]
    platforms = [
        f"--platform=manylinux_2_{minor}_{machine}" for minor in (17, 24, 26, 27, 28, 31, 34)
    ]
    pip = [sys.executable, "-m", "pip"]
    wheel = own_wheel(folder / "own")
    run(
        *pip,
        "download",
        "--quiet",
        "--only-binary=:all:",
        f"--python-version={PYTHON}",
        *platforms,
        f"--platform=manylinux2014_{machine}",
        f"--platform=linux_{machine}",
        f"--dest={index}",
        *(requirement.replace("bide", str(wheel), 1) for requirement in requirements),
        "hatchling",
        "async-timeout",  # pip looks at the patch version of its own Python, not of the system's
    )
    (index / wheel.name).unlink()
    return index


def own_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout, as the documentation says."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", ROOT)
    [wheel] = folder.glob("bide-*.whl")
    return wheel


class Image:
    """A folder in which the instructions of a container file were carried out."""

    def __init__(self, root: Path, base: Path, index: Path, path: Path, context: Path) -> None:
        self.root = root
        self.environment = {"PATH": PATH}
        self.user = "0"
        self.folder = "/"
        run("cp", "--archive", "--reflink=auto", base, root)
        shutil.copytree(index, root / INDEX.strip("/"))
        for name, text in instructions(path):
            step = getattr(self, f"_{name.lower()}", None)
            if step is not None:
                step(text, context)
        self.start = command(path)
        self.health = health_check(path)
        shutil.rmtree(root / INDEX.strip("/"))

    def words(self, words: Sequence[str], **environment: str) -> list[str]:
        """Return the command line that starts a program in the image, as process 1."""
        values = [f"{name}={value}" for name, value in (self.environment | environment).items()]
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
            f"--mount-proc={self.root}/proc",
            *("chroot", f"--userspec={self.user}:{self.user}", str(self.root)),
            *("env", "--ignore-environment", f"--chdir={self.folder}", *values, *words),
        ]

    def _workdir(self, text: str, context: Path) -> None:
        self.folder = text
        (self.root / text.strip("/")).mkdir(parents=True, exist_ok=True)

    def _env(self, text: str, context: Path) -> None:
        self.environment |= dict(word.split("=", 1) for word in shlex.split(text))

    def _user(self, text: str, context: Path) -> None:
        self.user = text

    def _copy(self, text: str, context: Path) -> None:
        *sources, target = shlex.split(text)
        place = self.root / (Path(self.folder) / target).as_posix().strip("/")
        place.mkdir(parents=True, exist_ok=True)
        for source in sources:
            for path in (context / source).rglob("*") if (context / source).is_dir() else ():
                below = path.relative_to(context / source)
                if path.is_file() and is_let_in(path.relative_to(context).as_posix(), context):
                    (place / below).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, place / below)
            if (context / source).is_file():
                shutil.copy2(context / source, place)

    def _run(self, text: str, context: Path) -> None:
        environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": INDEX}
        words = self.words(["sh", "-c", text], **environment)
        done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def is_let_in(name: str, context: Path) -> bool:
    """Tell whether the .dockerignore of a context lets a file in."""
    ignored = False
    for line in (context / ".dockerignore").read_text().splitlines():
        if line and line[0] != "#":
            pattern = line.lstrip("!").removeprefix("**/")
            parts = Path(name).parts
            places = range(len(parts)) if "**/" in line else (0,)
            if any(fnmatch(parts[place], pattern) for place in places):
                ignored = line[0] != "!"
    return not ignored
