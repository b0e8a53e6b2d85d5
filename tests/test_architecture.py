"""Imports run one way, and files stay of a size that can be read."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "bide"
FILES = sorted(SOURCE.rglob("*.py"))

ENGINES = ["http", "memory", "redis", "sqlite"]

# A part of bide, and which parts it may import beside itself. The first match counts.
MAY_IMPORT: dict[str, set[str]] = {
    "bide.model": set(),
    "bide.clock": set(),
    "bide.timing": {"bide.clock"},
    "bide.engines": {"bide.model"},
    "bide.lane": {"bide.model", "bide.engines", "bide.clock"},
    "bide.telemetry": {"bide.model"},
    "bide.queue": {"bide.model", "bide.engines", "bide.clock", "bide.lane", "bide.telemetry"},
    "bide.worker": {
        "bide.model", "bide.engines", "bide.clock", "bide.lane", "bide.queue", "bide.telemetry",
    },
    "bide.server": {
        "bide.model", "bide.engines", "bide.clock", "bide.lane", "bide.queue", "bide.telemetry",
        "bide.worker",
    },
    "bide.cli": {
        "bide", "bide.model", "bide.engines", "bide.clock", "bide.lane", "bide.queue",
        "bide.telemetry", "bide.worker", "bide.server",
    },
    "bide.__main__": {"bide.cli"},
    "bide.testing": {
        "bide", "bide.model", "bide.engines", "bide.clock", "bide.lane", "bide.queue",
        "bide.worker",
    },
    "bide": {"bide.model", "bide.clock", "bide.queue", "bide.timing", "bide.worker"},
}  # fmt: skip


def module_of(path: Path) -> str:
    parts = ("bide", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def imports_of(path: Path) -> set[str]:
    """Return the modules of bide that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else node.module for name in names}
    return {name for name in found if name == "bide" or name.startswith("bide.")}


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return name.startswith("bide.") and (path.is_dir() or path.with_suffix(".py").is_file())


every_file = pytest.mark.parametrize("path", FILES, ids=module_of)


@every_file
def test_imports_run_one_way(path: Path) -> None:
    mine = part_of(module_of(path))
    assert mine in MAY_IMPORT, f"a new part: say in MAY_IMPORT what {mine} may import"
    wrong = {name for name in imports_of(path) if part_of(name) not in MAY_IMPORT[mine] | {mine}}
    assert wrong == set()


@every_file
def test_no_import_is_relative(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        assert not (isinstance(node, ast.ImportFrom) and node.level)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_knows_no_other_engine(engine: str) -> None:
    others = [f"bide.engines.{other}" for other in ENGINES if other != engine]
    for path in (SOURCE / "engines" / engine).rglob("*.py"):
        assert [name for name in imports_of(path) if name.startswith(tuple(others))] == []


def test_what_engines_share_knows_no_engine() -> None:
    for path in (SOURCE / "engines").glob("*.py"):
        mine = [f"bide.engines.{engine}" for engine in ENGINES]
        assert [name for name in imports_of(path) if name.startswith(tuple(mine))] == []


def test_nothing_but_tests_imports_testing() -> None:
    for path in FILES:
        if not module_of(path).startswith("bide.testing"):
            assert [name for name in imports_of(path) if name.startswith("bide.testing")] == []


def test_only_the_conformance_suite_needs_the_extra() -> None:
    for path in FILES:
        if module_of(path).startswith("bide.testing.conformance"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"pytest", "hypothesis"}


@every_file
def test_a_file_is_at_most_400_lines_long(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 400


def test_the_table_has_no_part_that_is_gone() -> None:
    parts = {part_of(module_of(path)) for path in FILES}
    assert set(MAY_IMPORT) <= parts
