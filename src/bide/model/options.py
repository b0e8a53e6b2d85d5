"""Check the options of a message, by their declaration in `Options`."""

from operator import attrgetter, is_
from typing import Any, NamedTuple

from msgspec import inspect

from bide.model.identity import check_name
from bide.model.limits import check_whole
from bide.model.message import Options


class Option(NamedTuple):
    """One option: an integer with bounds, or without bounds a name."""

    name: str
    default: Any
    help: str
    least: int | None = None
    most: int | None = None

    def check(self, value: Any) -> Any:
        """Return a value after checking that it is within the bounds.

        Raises:
            InvalidArgument: the value has another type, or is out of bounds.

        Example:
            >>> OPTIONS["priority"].check(300)
            Traceback (most recent call last):
              ...
            bide.model.errors.InvalidArgument: priority=300 must be a whole number from 0 to 255
        """
        if value is self.default:
            return value
        if self.least is None or self.most is None:
            return check_name(value, self.name)
        return check_whole(value, self.name, self.least, self.most)


def _declared_options() -> dict[str, Option]:
    """Return the options that `Options` declares, by name."""
    options = {}
    struct: Any = inspect.type_info(Options)
    for field in struct.fields:
        # An option that may be `None` has a union of types, of which that is the second.
        metadata = getattr(field.type, "types", [field.type])[0]
        value_type = metadata.type
        bounds = (value_type.ge, value_type.le) if isinstance(value_type, inspect.IntType) else ()
        help = metadata.extra_json_schema["description"]
        options[field.name] = Option(field.name, field.default, help, *bounds)
    return options


OPTIONS = _declared_options()
"""All options by name."""

DEFAULTS = tuple(option.default for option in OPTIONS.values())
values_of = attrgetter(*OPTIONS)
"""Returns the values of the options of a message, in any form that has them."""


def check_options(message: Any) -> dict[str, Any]:
    """Return the options of a message, in any form that has them, after checking their bounds.

    Returns:
        They are by name; an empty dictionary when all are the defaults.

    Raises:
        InvalidArgument: one of them is not.
    """
    values = values_of(message)
    if all(map(is_, values, DEFAULTS)):  # as most are: they need no check
        return {}
    return {
        name: option.check(value)
        for (name, option), value in zip(OPTIONS.items(), values, strict=True)
    }


def options_of(message: Any) -> dict[str, Any]:
    """Return the options of a message, in any form that has them, by name."""
    return dict(zip(OPTIONS, values_of(message), strict=True))
