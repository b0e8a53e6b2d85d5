"""docs/install.md: what it tells to run installs bide, and what errors tell to run exists."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT
from tests.system.deploy.images import own_wheel, run

PAGE = ROOT / "docs/install.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def extras_in(text: str) -> set[str]:
    """Return the extras that a text tells to install."""
    named = re.findall(r"(?:'bide|'\.)\[([\w,]+)\]", text)
    return {extra for names in named for extra in names.split(",")}


def test_every_extra_that_is_named_exists() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = {extra for path in sources for extra in extras_in(path.read_text())}
    assert {"redis", "postgres", "server", "schedules"} <= named
    assert named <= PROJECT["optional-dependencies"].keys()


def test_the_page_names_every_extra() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w]+)`", row.split("|")[1])}
    assert named == PROJECT["optional-dependencies"].keys()


def test_urls_are_left_to_the_maintainer_in_both_places() -> None:
    assert "urls" not in PROJECT
    assert "# [project.urls]" in (ROOT / "pyproject.toml").read_text()
    for name in ("README.md", "README.zh-CN.md"):
        [line] = [line for line in (ROOT / name).read_text().splitlines() if "project.urls" in line]
        assert line.startswith("<!-- ")


def pip_of(folder: Path) -> list[object]:
    """Return the pip of a new environment, which has nothing else."""
    run(sys.executable, "-m", "venv", folder)
    return [folder / "bin/python", "-m", "pip", "--quiet", "install", "--no-deps"]


def version_in(folder: Path) -> str:
    code = "from importlib.metadata import version; print(version('bide'))"
    return run(folder / "bin/python", "-c", code).strip()


@pytest.mark.full
@pytest.mark.process
def test_the_wheel_is_enough_and_extras_need_no_wheel_later(tmp_path: Path) -> None:
    own_wheel(tmp_path / "wheels")
    pip = pip_of(tmp_path / "new")
    without = subprocess.run(
        [str(word) for word in (*pip, "--no-index", "bide[redis]")],
        capture_output=True,
        check=False,
    )
    assert without.returncode != 0
    run(*pip, "--no-index", "--find-links", tmp_path / "wheels", "bide[postgres,server]")
    assert version_in(tmp_path / "new") == PROJECT["version"]
    run(*pip, "--no-index", "bide[redis]")  # as errors say it: bide itself is there


@pytest.mark.full
@pytest.mark.process
def test_a_tag_is_enough(tmp_path: Path) -> None:
    tag = f"v{PROJECT['version']}"
    assert tag in PAGE.read_text()
    run("git", "clone", "--quiet", "--no-local", ROOT, tmp_path / "clone")
    run("git", "-C", tmp_path / "clone", "tag", "--force", tag)
    run(*pip_of(tmp_path / "new"), f"bide[postgres] @ git+file://localhost{tmp_path}/clone@{tag}")
    assert version_in(tmp_path / "new") == PROJECT["version"]
