"""Run the blocks of one page of the documentation, in order, in one namespace.

A program of its own, so that each page has a process and a directory to itself. Reads from its
standard input, as JSON, what `test_pages.py` found on the page. Queues and apps go by a clock that
jumps to whatever is waited for, so that half an hour takes no time; on a page in real time they do
not.
"""

import doctest
import json
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from bide.queue.base import BaseQueue
from bide.testing import FakeClock
from bide.worker.app.app import App

NINE_O_CLOCK = 1_772_442_000_000  # 2026-03-02 09:00:00 UTC, a Monday
OPTIONS = doctest.ELLIPSIS


def main() -> None:
    page = json.load(sys.stdin)
    sys.path.insert(0, str(Path.cwd()))  # files of the page import each other
    namespace: dict[str, Any] = {"__name__": "__main__"}
    if not page["real_time"]:
        namespace["clock"] = FakeClock(NINE_O_CLOCK, autojump=True)
        for initialise in (BaseQueue.__init__, App.__init__):
            defaults = initialise.__kwdefaults__
            assert defaults is not None
            defaults["clock"] = namespace["clock"]
    for block in page["blocks"]:
        match block["kind"]:
            case "python":
                output = StringIO()
                with redirect_stdout(output):
                    source = "\n" * block["line"] + block["text"]
                    exec(compile(source, page["path"], "exec"), namespace)
                compare(page, block, output.getvalue())
            case "pycon":
                run_examples(page, block, namespace)
            case "file":
                Path(block["name"]).write_text(block["text"])
            case "program":
                compare(page, block, run_program(block["name"], real_time=page["real_time"]))


def run_program(name: str, *, real_time: bool) -> str:
    if real_time:
        command = [sys.executable, "-W", "error", name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    output = StringIO()
    with redirect_stdout(output):
        runpy.run_path(name, run_name="__main__")
    return output.getvalue()


def compare(page: dict[str, Any], block: dict[str, Any], got: str) -> None:
    want = block["output"] or ""
    if not doctest.OutputChecker().check_output(want, got, OPTIONS):
        sys.exit(
            f"{page['path']}:{block['line'] + 1}: the page says that this prints\n{want}\n"
            f"but it prints\n{got}"
        )


def run_examples(page: dict[str, Any], block: dict[str, Any], namespace: dict[str, Any]) -> None:
    parser = doctest.DocTestParser()
    test = parser.get_doctest(block["text"], {}, page["path"], page["path"], block["line"])
    test.globs = namespace
    runner = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS)
    if runner.run(test, clear_globs=False).failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
