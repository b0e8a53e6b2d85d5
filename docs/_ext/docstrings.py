"""Leaves the words under an attribute as they are.

Napoleon takes what stands before their first colon for a type, as in `int: how many`. Ours have
annotations for that, and colons where a sentence has them.
"""

from sphinx.application import Sphinx
from sphinx.ext import napoleon

EVENT = "autodoc-process-docstring"


def process(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Have Napoleon read the docstrings of everything but attributes."""
    if what not in ("attribute", "data"):
        napoleon._process_docstring(app, what, name, obj, options, lines)  # type: ignore[arg-type]


def setup(app: Sphinx) -> dict[str, bool]:
    """Stand in for Napoleon's own listener."""
    for listener in app.events.listeners[EVENT]:
        if listener.handler is napoleon._process_docstring:
            app.disconnect(listener.id)
    app.connect(EVENT, process)
    return {"parallel_read_safe": True}
