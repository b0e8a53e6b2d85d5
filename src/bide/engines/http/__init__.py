"""The HTTP engine: a store behind another bide's server (`bide serve`)."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from urllib.parse import SplitResult, unquote

from bide.engines.http.connection import HttpAddress
from bide.engines.http.engine import HttpEngine
from bide.engines.registry import is_this_machine, options, seconds
from bide.logs import logger
from bide.model.errors import InvalidArgument

__all__ = ["HttpEngine", "address_of", "from_url"]

FILES = ("ca", "cert", "cert_key")
"""Options that name files, in the order of `HttpAddress`: the certificates to trust instead of the
system's, this client's certificate, and its key."""

OPTIONS = ("timeout", "reconnect", *FILES)
"""What the query of a URL may have."""

_log = logger("bide.http")


def from_url(parts: SplitResult) -> Callable[[], HttpEngine]:
    """Return what opens `http://host:8642` or `https://:TOKEN@host/path`.

    The token is the URL's password, or else the environment's `BIDE_TOKEN`. Options:
    `timeout=30s`, `reconnect=5s` (how long calls wait for a server that was lost), and for https
    the files `ca`, `cert` and `cert_key`.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    address, timeout = address_of(parts)
    reconnect = seconds(options(parts, *OPTIONS).get("reconnect", "5s"), "reconnect")
    return partial(HttpEngine, address, timeout, reconnect)


def address_of(parts: SplitResult) -> tuple[HttpAddress, float]:
    """Return the address of the server in a URL, and the seconds to wait for it.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    chosen = options(parts, *OPTIONS)
    timeout = seconds(chosen.get("timeout", "30s"), "timeout")
    host = parts.hostname or ""
    host_and_path = b""
    with suppress(ValueError):  # also of a port that cannot be: then `host_and_path` stays empty
        port, host_and_path = parts.port, host.encode("idna") + parts.path.encode("ascii")
    if not host or not re.fullmatch(rb"[!-~]+", host_and_path):
        raise InvalidArgument(
            f"{parts.scheme}://{host}{parts.path} has a host, port or path that is not valid; "
            "write it as http://127.0.0.1:8642, with a path in ASCII, such as /%C3%BC"
        )
    for name in FILES:
        if name in chosen and parts.scheme != "https":
            raise InvalidArgument(f"?{name} is for TLS: write https://")
    if "cert_key" in chosen and "cert" not in chosen:
        raise InvalidArgument("?cert_key needs ?cert, the certificate that it belongs to")
    if not timeout >= 0.001:
        raise InvalidArgument(f"?timeout={timeout:g} must be longer than 0")
    token = unquote(parts.password or parts.username or "") or os.environ.get("BIDE_TOKEN", "")
    if not token.isascii() or not token.isprintable():
        raise InvalidArgument("the token in the URL, or in BIDE_TOKEN, is not a bide token")
    address = HttpAddress(
        tls=parts.scheme == "https",
        host=host,
        port=port,
        path=parts.path.rstrip("/"),
        token=token,
        **{name: chosen.get(name) for name in FILES},
    )
    if token and not address.tls and not is_this_machine(address.host):
        _warn_of_clear_text(address.shown)
    return address, timeout


@lru_cache(maxsize=100)
def _warn_of_clear_text(shown: str) -> None:
    """Log that a token can be read on the way, once for each server."""
    _log.warning("%s: the token crosses the network in clear text; use https://", shown)
