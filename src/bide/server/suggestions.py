"""Suggest names or values for a field of a request or a file that does not fit."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from msgspec import inspect

from bide.model.limits import MAX_TYPO

_PLACE = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[[^\]]*\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


def would_fit(kind: Any, error: str) -> str:
    """Return the similar name, or all names or values there are; "" for other errors.

    Args:
        kind: what was to be decoded.
        error: what msgspec says of it.

    Example:
        >>> from bide.server.settings import Settings
        >>> would_fit(Settings, "Invalid enum value 'non' - at `$.auth`")
        'there are auto, off, required'
        >>> would_fit(Settings, "Object contains unknown field `prot`")
        'did you mean port?'
    """
    unknown = _UNKNOWN.search(error)
    if unknown is None and not error.startswith("Invalid enum value"):
        return ""
    place = _PLACE.search(error)
    steps = [found[1] for found in _STEP.finditer(place[1])] if place else []
    there: list[str] = []
    for node in _at([inspect.type_info(kind)], steps):
        if unknown is not None and isinstance(node, inspect.StructType):
            there += [field.encode_name for field in node.fields]
        elif unknown is None and isinstance(node, inspect.LiteralType):
            there += map(str, node.values)
    if not there:
        return ""
    like = (
        get_close_matches(unknown[1], there, 1) if unknown and len(unknown[1]) <= MAX_TYPO else []
    )
    return f"did you mean {like[0]}?" if like else f"there are {', '.join(there)}"


def _at(nodes: Sequence[inspect.Type], steps: Sequence[str | None]) -> list[inspect.Type]:
    """Return what may stand at a place; a step is the name of a field, `None` any element."""
    plain = [one for node in nodes for one in _plain(node)]
    if not steps:
        return plain
    within: list[inspect.Type] = []
    for node in plain:
        if isinstance(node, inspect.StructType):
            within += [f.type for f in node.fields if f.encode_name == steps[0]]
        elif isinstance(node, inspect.ListType):
            within.append(node.item_type)
        elif isinstance(node, inspect.DictType):
            within.append(node.value_type)
    return _at(within, steps[1:]) if within else []


def _plain(node: inspect.Type) -> list[inspect.Type]:
    if isinstance(node, inspect.Metadata):
        return _plain(node.type)
    if isinstance(node, inspect.UnionType):
        return [one for part in node.types for one in _plain(part)]
    return [node]
