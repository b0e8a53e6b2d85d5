"""Notice that the code has changed, for `bide worker --reload`."""

import os
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}
"""Names of folders that have no code of the user's in them."""


class Sources:
    """The Python files below a folder; hidden folders and installed packages are left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = dict(self._look())
        """When each file was changed last, in nanoseconds, as of the last look."""

    def changed(self) -> list[Path]:
        """Return the files that were changed, added or removed since the last call."""
        now = dict(self._look())
        before, self._times = self._times, now
        return sorted(path for path in before | now if before.get(path) != now.get(path))

    def _look(self) -> Iterator[tuple[Path, int]]:
        """Yield each file, and when it was changed last, in nanoseconds."""
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [  # `os.walk` goes into those that are left in its list
                name
                for name in folders
                if name not in LEFT_OUT
                and not name.startswith(".")
                # Unlike `Path.exists` this is false, not an error, where one may not enter.
                and not os.path.exists(f"{folder}/{name}/pyvenv.cfg")  # noqa: PTH110
            ]
            for name in files:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    try:
                        yield path, path.stat().st_mtime_ns
                    except OSError:  # removed since the folder was read, or a link to itself
                        continue
