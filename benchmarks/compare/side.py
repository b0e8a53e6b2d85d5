"""One side of a comparison: a tree on a store, measured by a new process in each turn."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.compare.stores import PATIENCE, Unmeasurable, last_line, open_store
from benchmarks.compare.trees import environment

__all__ = ["Side"]

Measure = Callable[[str], dict[str, Any]]
"""Measures a row; returns the figures, or the error."""


class Side:
    """A tree on a store that stays until the stack ends."""

    def __init__(self, tree: Path, store: str, stack: ExitStack) -> None:
        self._tree = tree
        self._store = store
        self._url, self._problem = "", ""
        try:
            self._url = stack.enter_context(open_store(store, tree))
        except Unmeasurable as error:
            self._problem = str(error)

    @contextmanager
    def turn(self, seconds: float) -> Iterator[Measure]:
        """Provide what measures rows, each for so many seconds."""
        if self._problem:
            yield lambda _: {"error": self._problem}
            return
        command = [sys.executable, "-m", "benchmarks.compare.caller", self._store, str(seconds)]
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(
                command,
                env=environment(self._tree) | {"BIDE_URL": self._url},
                cwd=self._tree,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):

            def measure(row: str) -> dict[str, Any]:
                assert process.stdin is not None
                assert process.stdout is not None
                try:
                    process.stdin.write(f"{row}\n")
                    process.stdin.flush()
                except BrokenPipeError:  # it ended before
                    return {"error": last_line(log)}
                answer = process.stdout.readline()
                figures: dict[str, Any] = (
                    json.loads(answer) if answer else {"error": last_line(log)}
                )
                return figures

            yield measure
            process.communicate(timeout=PATIENCE)
