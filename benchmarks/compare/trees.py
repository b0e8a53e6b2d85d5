"""The trees that are compared: this one, and an older one in a folder of its own."""

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ROOT", "check_out", "environment"]

ROOT = Path(__file__).parents[2]


@contextmanager
def check_out(revision: str, repository: Path = ROOT) -> Iterator[Path]:
    """Provide a folder with the `src` of a revision."""
    command = ["git", "-C", str(repository), "archive", revision, "src"]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory(prefix="bide-tree-") as path:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(path, filter="data")
        yield Path(path)


def environment(tree: Path) -> dict[str, str]:
    """Return an environment in which programs import the bide of a tree, and these benchmarks."""
    return os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}"}
