"""Show what a method of a delivery returns, where both forms share the method.

It is written once, with a type variable for the result: in `AsyncDelivery` a coroutine. Its page
says `async`, so the result is shown alike in both.
"""

import re
from typing import Any, get_args, get_origin

from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

import bide

FORMS: dict[str, type] = {
    "bide.Delivery": bide.Delivery,
    "bide.AsyncDelivery": bide.Delivery,
}


def results(kind: type) -> dict[str, str]:
    """Return the values of the type variables of the classes above."""
    found: dict[str, str] = {}
    for base in getattr(kind, "__orig_bases__", ()):
        names = getattr(get_origin(base), "__parameters__", ())
        for name, given in zip(names, get_args(base), strict=True):
            found[stringify_annotation(name, "smart")] = stringify_annotation(given, "smart")
    return found


def show(
    app: Sphinx, what: str, name: str, obj: object, options: object, *shown: Any
) -> tuple[str, ...] | None:
    """Replace type variables in a signature and its result."""
    form = name.rpartition(".")[0]
    if what != "method" or form not in FORMS:
        return None
    known = results(FORMS[form])
    pattern = re.compile("|".join(re.escape(name) + r"\b" for name in known))
    return tuple(pattern.sub(lambda found: known[found[0]], text) for text in shown)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to autodoc."""
    app.connect("autodoc-process-signature", show)
    return {"parallel_read_safe": True}
