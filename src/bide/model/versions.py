"""Which versions the messages must have that a command names."""

from bide.model.commands import Cancel, Purge, Reschedule, Revive


def versions_of(command: Cancel | Reschedule | Revive | Purge) -> dict[str, str]:
    """Return the version that each message must have, by id; empty: any.

    Example:
        >>> versions_of(Cancel("orders", ["a"], versions=["f01d96070ef47d4b"]))
        {'a': 'f01d96070ef47d4b'}
    """
    return dict(zip(command.ids or (), command.versions, strict=True)) if command.versions else {}
