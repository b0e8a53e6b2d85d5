"""Keep the docstrings of attributes unchanged.

Napoleon reads the text before their first colon as a type, as in `int: how many`. Our attributes
have annotations, and their sentences may have colons.
"""

from sphinx.application import Sphinx
from sphinx.ext import napoleon

EVENT = "autodoc-process-docstring"


def process(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Pass every docstring to Napoleon except those of attributes."""
    if what not in ("attribute", "data"):
        napoleon._process_docstring(app, what, name, obj, options, lines)  # type: ignore[arg-type]


def setup(app: Sphinx) -> dict[str, bool]:
    """Replace Napoleon's own listener."""
    for listener in app.events.listeners[EVENT]:
        if listener.handler is napoleon._process_docstring:
            app.disconnect(listener.id)
    app.connect(EVENT, process)
    return {"parallel_read_safe": True}
