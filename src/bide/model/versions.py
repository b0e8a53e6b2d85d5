"""Which versions the messages must have that a command names."""

from bide.model.commands import Command


def versions_of(command: Command) -> dict[str, str]:
    """Return the version that each message must have, by id; empty: any.

    Example:
        >>> from bide.model.commands import Cancel
        >>> versions_of(Cancel("orders", ["a"], versions=["f01d96070ef47d4b"]))
        {'a': 'f01d96070ef47d4b'}
    """
    ids = getattr(command, "ids", None) or ()  # others name leases or a rule
    if versions := getattr(command, "versions", ()):
        return dict(zip(ids, versions, strict=True))
    version = getattr(command, "if_version", None)
    return {} if version is None else dict.fromkeys(ids, version)
