"""The effects of handlers: calls that a test names, and what the commands of a handler change."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bide.consuming.handler import name_of
from bide.model import body as bodies
from bide.model.commands import Command, Put
from bide.model.errors import InvalidArgument
from bide.model.replies import Affected, Outcomes, Reply
from bide.queue.base import SETTLES

SHOWN = 60
"""The length, in characters, to which each argument of a call is shortened in a report."""

ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+>")
"""The end of the `repr` of an object without one of its own: another one in each process."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A call of a handler that has an effect outside of its process, for `crash_points`.

    Args:
        function: a function or a bound method.
        key: the parameter that takes an idempotency key: calls with the same key have the effect
            once. Without it, each call has it.

    Raises:
        InvalidArgument: it is no function, or has no such parameter.

    Example:
        >>> def refund(order: int, idempotency_key: str) -> None: ...
        >>> Effect(refund, key="idempotency_key").key
        'idempotency_key'
    """

    function: Callable[..., Any]
    key: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgument(
                f"an effect is a function or a method, not {type(self.function).__name__}"
            )
        if self.key is None:
            return
        names = list(inspect.signature(self.function).parameters)
        if self.key not in names:
            raise InvalidArgument(
                f"key={self.key!r} is not a parameter of {name_of(self.function)}, which has: "
                f"{', '.join(names) or 'none'}"
            )


class EffectRecord(NamedTuple):
    """One effect that has happened."""

    name: str
    """What was called: "mailer.send"."""
    key: str
    """Tells apart the effects of this name."""
    call: str
    """The call as a report shows it."""
    once: bool = False
    """Whether all effects with this key are one: of a call with an idempotency key, and of a
    command that names a message."""


def record_of_call(
    effect: Effect, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> EffectRecord:
    """Return the record of a call of a function."""
    texts = [_text(argument) for argument in args]
    texts += [f"{keyword}={_text(value)}" for keyword, value in kwargs.items()]
    call = f"{name}({', '.join(map(_shortened, texts))})"
    if effect.key is not None:
        bound = inspect.signature(effect.function).bind(*args, **kwargs)
        bound.apply_defaults()
        if (key := bound.arguments[effect.key]) is not None:  # else it was called without one
            return EffectRecord(name, _text(key), call, once=True)
    return EffectRecord(name, ", ".join(texts), call)


def records_of_command(command: Command, reply: Reply) -> list[EffectRecord]:
    """Return the records of what a command has changed; settling a delivery is no effect."""
    if command.only_reads or isinstance(command, SETTLES):
        return []
    name = name_of_command(command)
    if isinstance(command, Put) and isinstance(reply, Outcomes):
        bodies_by_id = {item.id: bodies.decode(item.data, item.json) for item in command.items}
        ids = [outcome.id for outcome in reply.outcomes if outcome.done]
        texts = [_shortened(_text(bodies_by_id[id])) for id in ids]
        return [
            EffectRecord(name, id, f"{name}({text})", once=True)
            for id, text in zip(ids, texts, strict=True)
        ]
    if isinstance(reply, Outcomes):
        return [
            EffectRecord(name, outcome.id, f"{name}({outcome.id!r})", once=True)
            for outcome in reply.outcomes
            if outcome.done
        ]
    if isinstance(reply, Affected) and not reply.count:
        return []
    return [EffectRecord(name, "", name, once=True)]


def name_of_command(command: Command) -> str:
    """Return the name of a command in a report, such as "orders.put"."""
    return f"{command.queue}.{type(command).__struct_config__.tag}"


def _text(value: object) -> str:
    """Return a value as text; the `repr` of a user's class may raise."""
    try:
        return ADDRESS.sub(">", repr(value))
    except Exception:  # noqa: BLE001  (code of a user's class)
        return f"<{type(value).__name__}>"


def _shortened(text: str) -> str:
    """Return a text that is no longer than a report shows it."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
