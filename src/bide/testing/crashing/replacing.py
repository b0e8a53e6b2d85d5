"""Replace a function in all places that refer to it, in the process of a crash test.

That process ends with its run, so nothing has to be put back.
"""

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeGuard, TypeVar

from bide.consuming.handler import name_of
from bide.model.errors import InvalidArgument
from bide.testing.crashing.await_points import is_library
from bide.worker.app.app import App

T = TypeVar("T")


def shown_name(function: Callable[..., Any]) -> str:
    """Return the name of an effect in a report: "mailer.send", also of a method of a `mailer`.

    Example:
        >>> import gzip
        >>> shown_name(gzip.compress)
        'gzip.compress'
    """
    name = getattr(function, "__name__", type(function).__name__)
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        qualified_name = str(getattr(function, "__qualname__", name))
        module = (getattr(function, "__module__", None) or "").rpartition(".")[2]
        if "<locals>" in qualified_name or module in ("", "__main__", "builtins"):
            return qualified_name.rpartition("<locals>.")[2]
        return f"{module}.{qualified_name}"
    for module in list(sys.modules.values()):
        for variable, value in list(vars(module).items()):
            if value is owner:
                return f"{variable}.{name}"
    owner_class = owner if isinstance(owner, type) else type(owner)
    return f"{owner_class.__name__}.{name}"


class Reference(NamedTuple):
    """Something that refers to a function."""

    holder: Any
    """A closure's cell, a dictionary of variables, or an object."""
    name: str
    """Of the variable, or the attribute; empty of a cell."""

    def refer_to(self, replacement: Callable[..., Any]) -> None:
        """Let it refer to another function."""
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = replacement
        elif type(self.holder) is dict:
            self.holder[self.name] = replacement
        elif isinstance(self.holder, type) and not self._is_method:
            setattr(self.holder, self.name, staticmethod(replacement))
        else:
            setattr(self.holder, self.name, replacement)

    @property
    def _is_method(self) -> bool:
        """Whether it is a function of a class that is called with an instance."""
        return isinstance(vars(self.holder).get(self.name), FunctionType)


def places_of(functions: Sequence[Callable[..., Any]], app: App) -> list[list[Reference]]:
    """Return for each function all that refers to it, by whatever name.

    A bound method is an attribute of its object. Other functions are looked up in all modules and
    their classes, and in all that the app refers to: the closures of its handlers, their objects.

    Raises:
        InvalidArgument: nothing that can be changed refers to one of them.
    """
    places: dict[int, list[Reference]] = {id(function): [] for function in functions}
    for holder, variables in _holders(app, places.keys()):
        for name, value in list(variables.items()):
            plain = value.__func__ if _is_a(value, staticmethod) else value
            if id(plain) in places:
                places[id(plain)].append(Reference(holder, name))
    for function in functions:
        owner = getattr(function, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType) and hasattr(owner, "__dict__"):
            places[id(function)] = [Reference(owner, getattr(function, "__name__", ""))]
        elif not places[id(function)]:
            raise InvalidArgument(
                f"effects= names {name_of(function)}, which cannot be replaced: no module has it, "
                "and no closure or object of a handler; name a function of yours that the handler "
                "calls"
            )
    return [places[id(function)] for function in functions]


def _holders(app: App, wanted: Collection[int]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield what may refer to a function, each with its variables.

    Args:
        app: the search begins here, and in all modules.
        wanted: the `id` of each function.
    """
    modules = [vars(module) for module in list(sys.modules.values())]
    classes = [value for variables in modules for value in list(variables.values())]
    seen = {id(variables) for variables in modules}
    yield from ((variables, variables) for variables in modules)
    waiting = [app, *(value for value in classes if _is_a(value, type))]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if _is_a(thing, type):
            if not _is_of_library(thing):
                yield thing, vars(thing)
                waiting += vars(thing).values()
            continue
        if _is_a(thing, CellType):
            yield thing, _contents_of(thing)
        elif type(thing) is dict:
            yield thing, thing
        if _is_a(thing, ModuleType):
            continue
        parts = gc.get_referents(thing)
        waiting += [part for part in parts if gc.is_tracked(part)]
        # Of an object, Python gives its attributes, and no dictionary that has them.
        if (
            any(id(part) in wanted for part in parts)
            and type(getattr(thing, "__dict__", 0)) is dict
        ):
            yield vars(thing), vars(thing)


def _is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Tell whether a value is of a type, by its own.

    `isinstance` also asks for the `__class__` of a value, which a proxy such as Django's settings
    answers by loading what it stands for, or with an error.
    """
    return issubclass(type(value), kind)


def _is_of_library(owner: type) -> bool:
    """Tell whether a class is part of Python, of an installed package, or of bide."""
    module = sys.modules.get(owner.__module__)
    return is_library(getattr(module, "__file__", None) or "<frozen")


def _contents_of(cell: CellType) -> dict[str, Any]:
    """Return what a closure has in a cell, as a variable without a name."""
    try:
        return {"": cell.cell_contents}
    except ValueError:  # it is empty
        return {}
