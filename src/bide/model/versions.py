"""Which versions the messages must have that a command names."""

from bide.model.commands import Bury, Cancel, Edit, Purge, Release, Reschedule, Revive

ById = Bury | Cancel | Edit | Purge | Release | Reschedule | Revive
"""Commands that name messages by their ids."""


def versions_of(command: ById) -> dict[str, str]:
    """Return the version that each message must have, by id; empty: any.

    Example:
        >>> versions_of(Cancel("orders", ["a"], versions=["f01d96070ef47d4b"]))
        {'a': 'f01d96070ef47d4b'}
    """
    ids = command.ids or ()
    if versions := getattr(command, "versions", ()):
        return dict(zip(ids, versions, strict=True))
    version = getattr(command, "if_version", None)
    return {} if version is None else dict.fromkeys(ids, version)
