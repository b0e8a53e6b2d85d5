"""Settings and counts of a queue, as HTTP shows them."""

from typing import Annotated, Self

import msgspec
from msgspec import Meta

from bide.model.replies import Counts, Flow, Settings, Sizes
from bide.model.times import limits_of
from bide.server.wire import Request, Span

Pace = Annotated[
    float | str,
    Meta(
        description="A rate: messages per second, or a number per s, m, h or d.",
        examples=["5/s", "100/m", 0.5],
    ),
]


class ConfigureRequest(Request):
    """What to set for a queue."""

    paused: bool | None = None
    keep: Span | None = None
    """How long acked messages and their ids are remembered."""
    history: Span | None = None
    """How long the queue remembers how messages ended; "0s": not at all."""
    result_ttl: Span | None = None
    """How long the queue remembers the results of messages; "0s": not at all."""
    limit: int | None = None
    """How many messages of the queue may be leased at a time; 0: no limit."""
    rate: Pace | None = None
    """How many messages of the queue may be delivered; 0: no limit."""
    group_limit: int | None = None
    """`limit` for each group; messages without a group are not bound by it."""
    group_rate: Pace | None = None
    """`rate` for each group; messages without a group are not bound by it."""


class _Told(msgspec.Struct):
    @classmethod
    def of(cls, reply: Settings | Counts) -> Self:
        """Return the reply of a store as it is sent."""
        found = {name: getattr(reply, name) for name in cls.__struct_fields__}
        return cls(**found | limits_of(reply))


class SettingsOut(_Told):
    """What is set for a queue."""

    paused: bool
    keep: int
    """For how many milliseconds acked messages are remembered."""
    history: int
    """For how many milliseconds the queue remembers how messages ended."""
    result_ttl: int
    """For how many milliseconds it remembers their results."""
    limit: int
    """How many of its messages may be leased at a time; 0: no limit."""
    rate: str | None
    """How many may be delivered, such as "5/s"; null: no limit."""
    group_limit: int
    """`limit` for each group."""
    group_rate: str | None
    """`rate` for each group."""


class CountsOut(_Told, omit_defaults=True):
    """How many messages are where, and what has become of the others."""

    sizes: Sizes
    flow: Flow
    kept: int = 0
    """Messages that are remembered though they are gone."""
    paused: bool = False
    keep: int = 0
    """For how many milliseconds acked messages are remembered."""
    history: int = 0
    """For how many milliseconds the queue remembers how messages ended."""
    result_ttl: int = 0
    """For how many milliseconds it remembers their results."""
    limit: int = 0
    """How many of its messages may be leased at a time; 0: no limit."""
    rate: str | None = None
    """How many may be delivered, such as "5/s"; null: no limit."""
    group_limit: int = 0
    """`limit` for each group."""
    group_rate: str | None = None
    """`rate` for each group."""
    oldest: int | None = None
    """The due moment of the message that has waited longest, if one is due."""
    recount: Sizes | None = None
    """In an audit: the messages themselves, counted in the same snapshot."""
    strays: int | None = None
    """In an audit: messages in no state or in two. Always 0 in a sound store."""
