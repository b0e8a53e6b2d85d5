"""Directives that put what the code says about itself onto a page, so that it cannot go stale."""

from collections.abc import Callable

import msgspec
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from bide.engines.memory import MemoryEngine
from bide.engines.port import Capabilities
from bide.engines.redis import RedisEngine
from bide.engines.sqlite import SqliteEngine
from bide.model import lifecycle

ENGINES = {
    "memory://": MemoryEngine.capabilities,
    "sqlite://": SqliteEngine.capabilities,
    "redis://": RedisEngine.capabilities,
}

MEANING = {
    "durable": "survives the death of every process",
    "shared": "several processes at a time",
    "caller_time": "goes by a clock that a test moves",
    "random_access": "get, scan, cancel, reschedule",
    "priorities": "priorities",
    "precision_ms": "precision of its moments, in ms",
    "resends": "finds out after a lost connection what was done",
    "overlaps": "gets many commands in halves, one while the callers of the other go on",
}


def capabilities() -> str:
    """Return what each engine can do, as a table."""
    lines = [
        f"| | {' | '.join(f'`{name}`' for name in ENGINES)} |",
        "|---" * (len(ENGINES) + 1) + "|",
    ]
    for name in Capabilities.__struct_fields__:
        cells = [_cell(msgspec.structs.asdict(can)[name]) for can in ENGINES.values()]
        lines.append(f"| {MEANING[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _directive(text: Callable[[], str]) -> type[SphinxDirective]:
    class Table(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(text())

    return Table


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directives known."""
    app.add_directive("transitions", _directive(lifecycle.as_markdown))
    app.add_directive("capabilities", _directive(capabilities))
    return {"parallel_read_safe": True}
