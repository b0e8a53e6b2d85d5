"""The URL of the server that an import reads."""

from bide.engines.registry import absolute, mask, opener
from bide.model.errors import InvalidArgument


def check_redis(url: str) -> None:
    """Check that a URL names a Redis that is no cluster, before the package for it is imported.

    Raises:
        InvalidArgument: it does not.
    """
    scheme, _, _ = absolute(url).partition("://")  # raises if it is no text
    if not scheme.startswith(("redis", "unix")):
        raise InvalidArgument(f"url={mask(url)!r} is no Redis: redis://, rediss://, unix://, ...")
    if "cluster" in scheme:
        raise InvalidArgument(
            f"url={mask(url)!r} names a cluster, and an import reads one server: name the node "
            "that has the keys, redis://..."
        )
    opener(url)  # raises if something else is wrong with the URL, or the package for it is missing
