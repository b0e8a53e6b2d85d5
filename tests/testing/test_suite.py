import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_without_the_extra_the_suite_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pytest'] = None; import bide.testing.conformance"
    done = run("-c", code, folder=tmp_path)
    assert "needs pytest; install it with: pip install 'bide[testing]'" in done.stderr


ENGINES = """
import pytest
from bide.engines.memory import MemoryEngine
from bide.testing.conformance import EngineConformance

class Early(MemoryEngine):
    def execute(self, commands, now=None):
        claims = any(type(command).__name__ == "Claim" for command in commands)
        return super().execute(commands, now + 1 if claims and now else now)

class TestEarly(EngineConformance):
    @pytest.fixture
    def make_engine(self):
        return Early

class TestUnsaid(EngineConformance):
    pass
"""


def test_an_engine_of_somebody_else_is_held_to_the_promises(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(ENGINES)
    done = run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_mine.py",
        "-k",
        "never_one_tick_early or as_durable or any_script_is",
        folder=tmp_path,
    )
    assert "TestEarly::test_never_one_tick_early" in done.stdout
    assert "claim led from delayed to leased: not in the lifecycle" in done.stdout
    assert "assert None is not None" in done.stdout, "a failing case does not tell what it compared"
    assert "TestEarly::test_any_script_is_answered_as_the_memory_engine" in done.stdout
    assert "has another reply to Claim(queue='q'" in done.stdout
    (script,) = re.findall(r"The script of seed \d+, shortened: (.+)", done.stdout)
    assert script.count("'command':") <= 3, "it is not short"
    assert "TestUnsaid has no fixture `make_engine`: a function without arguments" in done.stdout
    assert "TestEarly has no fixture `reopen`: a function that takes an engine" in done.stdout


def test_the_lists_of_mutants_fit_the_sources() -> None:
    root = Path(__file__).parents[2]
    done = run("tools/mutants", "--list", folder=root)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(".lua" in line or ".sql" in line for line in done.stdout.splitlines()) >= 60
