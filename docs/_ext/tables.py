"""Directives that generate tables from the code, so that they cannot go stale."""

import ast
from collections.abc import Callable
from pathlib import Path

import msgspec
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from bide.engines.memory import MemoryEngine
from bide.engines.postgres import PostgresEngine
from bide.engines.redis import RedisEngine
from bide.engines.sqlite import SqliteEngine
from bide.model import limits as limit_module
from bide.model.lifecycle import TRANSITIONS

ENGINES = {
    "sqlite://": SqliteEngine.capabilities,
    "postgresql://": PostgresEngine.capabilities,
    "redis://": RedisEngine.capabilities,
    "memory://": MemoryEngine.capabilities,
}

MEANING = {
    "durable": "confirmed changes survive the death of every process",
    "shared": "several processes at a time",
    "ids_ordered": "search by the beginning of an id at once",
    "priorities": "priorities",
    "precision_ms": "precision of due times, in ms",
}
"""The capabilities that matter to users."""

INTERNAL = frozenset(
    {
        "caller_time",
        "resends",
        "remembers",
        "loses_replies",
        "recovers",
        "has_server",
    }
)
"""The capabilities that only the code asks for."""


def capabilities() -> str:
    """Return a table of what each store can do; `http://` does what the store behind it does."""
    lines = [
        f"| | {' | '.join(f'`{name}`' for name in ENGINES)} | `http://` |",
        "|---" * (len(ENGINES) + 2) + "|",
    ]
    for name, meaning in MEANING.items():
        cells = [_cell(msgspec.structs.asdict(can)[name]) for can in ENGINES.values()]
        lines.append(f"| {meaning} | {' | '.join(cells)} | as the server's store |")
    return "\n".join(lines)


def transitions() -> str:
    """Return a table of all changes of state."""
    lines = ["| cause | from | to | when | counts |", "|---|---|---|---|---|"]
    for cause, before, after, when, counts in TRANSITIONS:
        cells = (cause, before or "none", after or "gone", when, ", ".join(counts))
        lines.append(" ".join(f"| {' | '.join(cells)} |".split()))
    return "\n".join(lines)


def _cell(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def limits() -> str:
    """Return a table of the limits of input: name, value, and the text below each in the module."""
    lines = ["| limit | value | of what |", "|---|---|---|"]
    names: list[str] = []
    for statement in ast.parse(Path(str(limit_module.__file__)).read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if name != "__all__":
                names.append(name)
            case ast.Expr(value=ast.Constant(value=str(text))):
                meaning = " ".join(text.split())
                lines += [
                    f"| `{name}` | {getattr(limit_module, name):,} | {meaning} |" for name in names
                ]
                names = []
    return "\n".join(lines)


def _directive(text: Callable[[], str]) -> type[SphinxDirective]:
    class Table(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(text())

    return Table


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("transitions", _directive(transitions))
    app.add_directive("capabilities", _directive(capabilities))
    app.add_directive("limits", _directive(limits))
    return {"parallel_read_safe": True}
