"""What endangers the messages of a store: findings about its server or file."""

import importlib
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from bide.engines.registry import is_server, mask, module_of, opener
from bide.model.errors import Unsupported


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    level: Literal["danger", "warning"]
    """`danger`: what was confirmed may be lost, or the store may stop; else `warning`."""
    what: str
    """What was found: the setting and its value."""
    loss: str
    """What can happen because of it."""
    fix: str


Examine = Callable[[SplitResult], Sequence[Finding]]
"""What the module `doctor` of an engine offers as `examine`; it changes nothing in the store."""


def examine(url: str) -> list[Finding]:
    """Look at the settings of the store at a URL, dangers first.

    Raises:
        InvalidArgument: the URL is wrong.
        Unsupported: this kind of store cannot be examined from here.
        StoreError: the store cannot be reached.
    """
    opener(url)  # says what is wrong with the URL
    parts = urlsplit(url)
    if is_server(url):
        raise Unsupported(
            f"{mask(url)} is a bide server, which does not say how its store is set up: run "
            "`bide doctor` where the server runs, with the URL of the server's store"
        )
    name = f"{module_of(parts.scheme)}.doctor"
    try:
        found: Examine = importlib.import_module(name).examine
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise Unsupported(f"stores at {parts.scheme}:// cannot be examined") from error
    return sorted(found(parts), key=lambda finding: finding.level)
