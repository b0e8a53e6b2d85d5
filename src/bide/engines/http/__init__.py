"""The HTTP engine: a store behind another bide's server (`bide serve`)."""

import os
from collections.abc import Callable
from functools import partial
from urllib.parse import SplitResult, unquote

from bide.engines.http.connection import Address
from bide.engines.http.engine import HttpEngine
from bide.engines.registry import options, seconds
from bide.model.errors import InvalidArgument

__all__ = ["HttpEngine", "address_of", "from_url"]


def from_url(parts: SplitResult) -> Callable[[], HttpEngine]:
    """Return what opens `http://host:8642` or `https://:TOKEN@host/path`.

    The token is the URL's password, or else the environment's `BIDE_TOKEN`. Options: `timeout=30s`.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    address, timeout = address_of(parts)
    return partial(HttpEngine, address, timeout)


def address_of(parts: SplitResult) -> tuple[Address, float]:
    """Return what a URL says: where the server is, and how many seconds to wait for it.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    chosen = options(parts, "timeout")
    timeout = seconds(chosen.get("timeout", "30s"), "timeout")
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{parts.scheme}:// has no good port: {error}") from None
    if not parts.hostname:
        raise InvalidArgument(f"{parts.scheme}:// needs a host: {parts.scheme}://127.0.0.1:8642")
    if not timeout >= 0.001:
        raise InvalidArgument(f"?timeout={timeout:g} must be longer than 0")
    token = unquote(parts.password or parts.username or "") or os.environ.get("BIDE_TOKEN", "")
    if not token.isascii() or not token.isprintable():
        raise InvalidArgument("the token in the URL, or in BIDE_TOKEN, is no token of bide's")
    address = Address(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"), token)
    return address, timeout
