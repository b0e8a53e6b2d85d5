"""Imports run one way, files can be read in one sitting, and their names tell them apart."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import bide

SOURCE = Path(__file__).parent.parent / "src" / "bide"
FILES = sorted(SOURCE.rglob("*.py"))

VAGUE = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}

# A part of bide, and which parts it may import beside itself.
MAY_IMPORT: dict[str, set[str]] = {
    "bide.model": set(),
    "bide.clock": set(),
    "bide.logs": set(),
    "bide.threads": {"bide.clock", "bide.logs"},
    "bide.tasks": {"bide.logs", "bide.threads"},
    "bide.timing": {"bide.model", "bide.clock", "bide.logs", "bide.threads"},
    "bide.engines": {"bide.model", "bide.logs", "bide.threads"},
    "bide.lane": {"bide.model", "bide.engines", "bide.clock", "bide.logs", "bide.threads"},
    "bide.undoing": {"bide.model", "bide.lane"},
    "bide.observing": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.undoing",
        "bide.logs",
    },
    "bide.within": {"bide.model", "bide.engines", "bide.logs", "bide.threads"},
    "bide.outbox": {"bide.model", "bide.engines", "bide.lane", "bide.logs"},
    "bide.exports": {"bide.model", "bide.lane"},
    "bide.queue": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.undoing",
        "bide.exports",
        "bide.observing",
        "bide.within",
        "bide.outbox",
        "bide.logs",
        "bide.threads",
    },
    "bide.importing": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.logs",
    },
    "bide.moving": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.logs",
    },
    "bide.consuming": {
        "bide.model",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.undoing",
        "bide.observing",
        "bide.logs",
        "bide.tasks",
    },
    "bide.worker": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.observing",
        "bide.consuming",
        "bide.targets",
        "bide.outbox",
        "bide.logs",
        "bide.tasks",
        "bide.threads",
    },
    "bide.targets": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.observing",
        "bide.consuming",
        "bide.logs",
        "bide.tasks",
    },
    "bide.server": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.undoing",
        "bide.observing",
        "bide.consuming",
        "bide.worker",
        "bide.targets",
        "bide.logs",
        "bide.tasks",
        "bide.threads",
    },
    "bide.proving": {
        "bide.model",
        "bide.engines",
        "bide.queue",
        "bide.testing",
    },
    "bide.cli": {
        "bide",
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.importing",
        "bide.moving",
        "bide.undoing",
        "bide.observing",
        "bide.consuming",
        "bide.worker",
        "bide.targets",
        "bide.server",
        "bide.dashboard",
        "bide.outbox",
        "bide.proving",
        "bide.logs",
        "bide.tasks",
        "bide.threads",
    },
    "bide.dashboard": {
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.undoing",
        "bide.observing",
        "bide.worker",
        "bide.targets",
        "bide.tasks",
        "bide.server",
        "bide.logs",
        "bide.threads",
    },
    "bide.contrib": {  # kits for frameworks: they use all, and nothing uses them
        "bide",
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.importing",
        "bide.exports",
        "bide.observing",
        "bide.within",
        "bide.outbox",
        "bide.consuming",
        "bide.worker",
        "bide.targets",
        "bide.server",
        "bide.dashboard",
        "bide.cli",
        "bide.testing",
        "bide.undoing",
        "bide.logs",
    },
    "bide.__main__": {"bide.cli"},
    "bide.testing": {
        "bide",
        "bide.model",
        "bide.engines",
        "bide.clock",
        "bide.lane",
        "bide.queue",
        "bide.observing",
        "bide.consuming",
        "bide.worker",
        "bide.logs",
        "bide.tasks",
    },
    "bide": {
        "bide.model",
        "bide.clock",
        "bide.queue",
        "bide.timing",
        "bide.consuming",
        "bide.worker",
        "bide.targets",
        "bide.observing",
        "bide.server",
        "bide.undoing",
        "bide.exports",
        "bide.importing",
        "bide.moving",
    },
}


def module_of(path: Path) -> str:
    parts = ("bide", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def engine_of(module: str) -> str | None:
    """Return which engine a module belongs to; `None` for what engines share, and all else."""
    parts = module.split(".")
    in_folder = parts[:2] == ["bide", "engines"] and len(parts) > 2
    return (
        parts[2] if in_folder and (SOURCE / "engines" / parts[2] / "engine.py").exists() else None
    )


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else node.module for name in names}
    return found


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return name.startswith("bide.") and (path.is_dir() or path.with_suffix(".py").is_file())


@cache
def imports() -> list[tuple[str, str]]:
    """Return each module of bide with each of those that it imports."""
    return [
        (module_of(path), name)
        for path in FILES
        for name in sorted(imports_of(path))
        if name.partition(".")[0] == "bide"
    ]


def test_imports_run_one_way() -> None:
    unknown = {part_of(module_of(path)) for path in FILES} - MAY_IMPORT.keys()
    assert unknown == set(), "new parts: say in MAY_IMPORT what they may import"
    wrong = [
        f"{module} imports {name}"
        for module, name in imports()
        if part_of(name) not in MAY_IMPORT[part_of(module)] | {part_of(module)}
    ]
    assert wrong == []


def test_the_table_has_no_part_that_is_gone() -> None:
    assert MAY_IMPORT.keys() <= {part_of(module_of(path)) for path in FILES}


def test_the_table_has_no_circle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


def test_no_import_is_relative() -> None:
    relative = [
        f"{module_of(path)}, line {node.lineno}"
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_an_engine_knows_no_other_engine_and_what_they_share_knows_none() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, name in imports()
        if module.startswith("bide.engines") and engine_of(name) not in (None, engine_of(module))
    ]
    assert wrong == []


def test_push_knows_nothing_of_rabbitmq() -> None:
    """`bide.targets.pusher` knows both."""
    wrong = [
        f"{module} imports {name}"
        for module, name in imports()
        if module.startswith("bide.targets.http") and name.startswith("bide.targets.rabbitmq")
    ]
    assert wrong == []


def test_nothing_but_tests_and_proofs_imports_testing() -> None:
    parts = [
        (part_of(module), part_of(name))
        for module, name in imports()
        if module != "bide.contrib.django.testing"
    ]
    importing = {module for module, name in parts if name == "bide.testing"}
    assert importing == {"bide.testing", "bide.proving"}


def test_only_the_conformance_suite_needs_the_extra() -> None:
    needing = {
        module_of(path)
        for path in FILES
        if {name.partition(".")[0] for name in imports_of(path)} & {"pytest", "hypothesis"}
    }
    assert needing
    assert {name for name in needing if not name.startswith("bide.testing.conformance")} == set()


def test_a_file_is_named_after_what_is_in_it() -> None:
    assert [module_of(path) for path in FILES if path.stem in VAGUE] == []


def test_the_formatter_formats_every_line() -> None:
    root = Path(__file__).parents[1]
    marks = re.compile(r"# fmt: (?:skip|off)$", re.MULTILINE)
    folders = ("src", "tests", "benchmarks", "tools", "examples")
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert [str(path) for path in files if marks.search(path.read_text("utf-8"))] == []


def test_no_two_files_of_a_package_have_the_same_name() -> None:
    """Those of two engines may: they do the same for two stores."""
    found: dict[str, int] = defaultdict(int)
    for path in FILES:
        module = module_of(path)
        engine = engine_of(module)
        package = f"engines/{engine}" if engine else part_of(module).removeprefix("bide.")
        if module.startswith("bide.contrib."):
            package = "/".join(module.split(".")[1:-1])  # frameworks say how files are called
        if path.stem not in ("__init__", "__main__"):
            found[f"{package}/{path.name}"] += 1
    assert {name for name, count in found.items() if count > 1} == set()


PUT = "bide.Queue('orders', 'sqlite:///bide.db').put(42, delay=60)"

LOADED_BY_IMPORT = """
clock engines engines.port engines.registry lane lane.executor lane.inbox lane.lane
lane.lane_thread lane.shared lane.steps lane.waiting_claims logs model model.body
model.command_parts model.commands model.ended model.errors model.forks model.identity
model.limits model.message model.options model.replies model.times queue queue.arguments
queue.base queue.command_builder queue.delivery queue.results queue.spans queue.steps
queue.sync threads
"""
LOADED_BY_PUT = """
engines.constants engines.queue_row engines.rules engines.rules.change engines.rules.record
engines.sqlite engines.sqlite.connection engines.sqlite.engine engines.sqlite.files
engines.sqlite.hints engines.sqlite.put engines.sqlite.queue_state engines.sqlite.reading
engines.sqlite.schema engines.sqlite.session engines.sqlite.tables engines.sqlite.transaction
model.rank
"""
"""The modules of bide that `import bide` loads, and what the first put on SQLite adds."""

ROOMS = (
    "cli consuming contrib dashboard importing moving outbox server targets undoing within worker"
)
"""What a program that only puts loads nothing of."""


@pytest.mark.parametrize(
    ("program", "known", "most"),
    [("", LOADED_BY_IMPORT, 37), (PUT, LOADED_BY_IMPORT + LOADED_BY_PUT, 55)],
    ids=["import", "put"],
)
def test_a_program_loads_what_it_uses(program: str, known: str, most: int, tmp_path: Path) -> None:
    """After `import bide`, and after the first put on SQLite."""
    code = f"import sys, bide\n{program}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] == "bide"}
    new = loaded - {"bide", *(f"bide.{name}" for name in known.split())}
    assert len(loaded) <= most, f"new: {sorted(new)}"
    assert {part_of(name).removeprefix("bide.") for name in loaded} & set(ROOMS.split()) == set()


def test_every_public_name_is_offered() -> None:
    """Those that are imported when they are used, too."""
    assert [name for name in bide.__all__ if not hasattr(bide, name)] == []
    assert set(bide.__all__) <= set(dir(bide))
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        bide.nosuch  # type: ignore[attr-defined]  # noqa: B018


def test_names_that_are_imported_when_used_are_those_that_types_are_checked_with() -> None:
    (branches,) = (
        node
        for node in tree_of(SOURCE / "__init__.py").body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    declared = {
        alias.name: node.module
        for node in branches.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == bide._MODULES  # type: ignore[attr-defined]
