"""The curl examples of the service's page run against a server, and print what the page says."""

import doctest
import re
import subprocess
from pathlib import Path

from bide.server.app import App
from bide.server.routes import OPERATIONS
from bide.server.settings import Settings
from tests.docs.test_pages import ROOT, blocks
from tests.server.conftest import running

PAGE = ROOT / "docs/howto/service.md"
ELSEWHERE = {"healthz", "readyz", "metrics", "openapi", "docs"}
"""Operations that the page tells of without a call."""


def examples() -> list[tuple[str, str]]:
    """Return the commands of the page, and what they print."""
    found: list[tuple[str, str]] = []
    for block in blocks(PAGE.read_text()):
        if block.info == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append((command, output))
    return found


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    functions = [command for command, _ in examples() if "() {" in command]
    with running(App(Settings(store=f"sqlite:///{tmp_path}/bide.db"))) as port:
        for command, output in examples():
            script = "\n".join([*functions, command]).replace(":8642", f":{port}")
            done = subprocess.run(
                ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=30
            )
            got = f"{done.stdout.rstrip()}\n" if done.stdout.strip() else ""
            same = doctest.OutputChecker().check_output(output, got, doctest.ELLIPSIS)
            assert same, f"{command}\nprints\n{got}\nthe page says\n{output}{done.stderr}"


def test_every_operation_has_an_example() -> None:
    told = [command for command, _ in examples()]
    for operation in OPERATIONS:
        path = re.sub(r"\\{\w+\\}", r"[^/? ']+", re.escape(operation.path))
        calls = [c for c in told if re.search(rf"localhost:8642{path}(?=[?' ]|$)", c)]
        if operation.method not in ("GET", "POST"):
            calls = [call for call in calls if f"-X {operation.method}" in call]
        elif operation.method == "POST":
            calls = [call for call in calls if "--json" in call or "-X POST" in call]
        else:
            calls = [call for call in calls if "-X" not in call and "--json" not in call]
        assert calls or operation.name in ELSEWHERE, operation.name
