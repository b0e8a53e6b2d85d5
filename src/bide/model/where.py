"""Rules: which messages a command is about, where it names no ids."""

import msgspec


class Where(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A rule that selects messages: all conditions that are given must hold."""

    group: str | None = None
    after: int | None = None
    """Due at this time or later, in Unix milliseconds."""
    before: int | None = None
    """Due before this time, in Unix milliseconds."""
