"""The URL of the server that an import reads."""

from bide.engines.registry import absolute, mask, opener
from bide.model.errors import InvalidArgument


def check_redis(url: str, *, cluster: bool = True) -> None:
    """Check that a URL names a Redis, before the package for it is imported.

    Raises:
        InvalidArgument: it does not; or it names a cluster, where that cannot be.
    """
    scheme = absolute(url).partition("://")[0]  # it says so if it is no text
    if not scheme.startswith(("redis", "unix")) or ("cluster" in scheme and not cluster):
        kind = "Redis" if cluster else "single Redis"
        raise InvalidArgument(f"url={mask(url)!r} is no {kind}: redis://, rediss://, unix://, ...")
    opener(url)  # it says what is wrong with the URL, or that the package for it is missing
