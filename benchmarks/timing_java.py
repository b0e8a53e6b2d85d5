"""The timers of one process beside Java's: `python -m benchmarks timing-java` (needs a JDK)."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import timing
from benchmarks.figure import Figure

__all__ = ["run"]

SOURCE = Path(__file__).with_name("timing") / "JavaTimers.java"


def run(only: str = "") -> Iterator[Figure]:
    """Yield Java's figures, then ours of the same run; leave with a word where there is no JDK."""
    javac, java = shutil.which("javac"), shutil.which("java")
    if javac is None or java is None:
        sys.exit(
            "timing-java compares with Java, and there is no JDK here: neither javac nor java may "
            "be missing from PATH (11 or later); `python -m benchmarks timing` needs none"
        )
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([javac, "-d", folder, str(SOURCE)], check=True)
        command = [java, "-Xmx2g", "-cp", folder, "JavaTimers"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        name, value, unit = line.split("\t")
        yield Figure(f"Java {name}", float(value), unit)
    yield from (figure for figure in timing.run(only) if _ours(figure))


def _ours(figure: Figure) -> bool:
    return figure.name.startswith(("TimingWheel", "DelayQueue", "ScheduledExecutor"))


if __name__ == "__main__":
    for figure in run(*sys.argv[1:2]):
        print(f"{figure.name:50} {figure.value:12,.3f} {figure.unit}")
