"""The URL of the server that an import reads."""

from bide.engines.registry import absolute, mask, opener
from bide.model.errors import InvalidArgument


def check_redis(url: str, *, cluster: bool = True) -> None:
    """Check that a URL names a Redis, before the package for it is imported.

    Raises:
        InvalidArgument: it does not; or it names a cluster, where that cannot be.
    """
    scheme, _, _ = absolute(url).partition("://")  # raises if it is no text
    if not scheme.startswith(("redis", "unix")) or ("cluster" in scheme and not cluster):
        wanted = "Redis" if cluster else "single Redis"
        raise InvalidArgument(
            f"url={mask(url)!r} is no {wanted}: redis://, rediss://, unix://, ..."
        )
    opener(url)  # raises if something else is wrong with the URL, or the package for it is missing
