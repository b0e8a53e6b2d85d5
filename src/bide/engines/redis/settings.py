"""What a URL says about a server, and how to connect to it."""

from typing import Any
from urllib.parse import SplitResult, unquote

import msgspec
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from bide.engines.registry import mask, options
from bide.model.errors import InvalidArgument
from bide.model.moments import milliseconds

__all__ = ["Settings", "read_url"]


class Settings(msgspec.Struct, frozen=True):
    """Where the server is, and how to talk to it."""

    shown: str
    """The URL without its password."""
    kind: type[Connection | UnixDomainSocketConnection]
    arguments: dict[str, Any]
    timeout: float
    """Seconds: how long the server may be silent, and how long a lost connection is sought."""
    wait_replicas: int

    def connection(self) -> Any:
        """Return a connection that is not open yet."""
        return self.kind(**self.arguments)


def read_url(parts: SplitResult) -> Settings:
    """Return what a URL says.

    Raises:
        InvalidArgument: it is of another form.
    """
    chosen = options(parts, "timeout", "wait_replicas", "db", "ca", "cert", "cert_key", "verify")
    try:
        timeout = milliseconds(_number(chosen.get("timeout", "5s")), "timeout") / 1000
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"url={mask(parts.geturl())!r}: {error}") from None
    if timeout <= 0:
        raise InvalidArgument("timeout must be longer than nothing, such as 5s")
    arguments: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
        "client_name": "bide",
    }
    if parts.username:
        arguments["username"] = unquote(parts.username)
    if parts.password:
        arguments["password"] = unquote(parts.password)
    kind: type[Any]
    db = chosen.get("db")
    if parts.scheme in ("unix", "redis+unix"):
        if not parts.path.strip("/"):
            raise InvalidArgument("unix:// needs the path of a socket: unix:///run/redis.sock")
        kind = UnixDomainSocketConnection
        arguments["path"] = unquote(parts.path)
    else:
        kind = Connection
        arguments |= {
            "host": parts.hostname or "localhost",
            "port": port or 6379,
            "socket_keepalive": True,
        }
        db = db or parts.path.strip("/")
        if parts.scheme == "rediss":
            kind = SSLConnection
            arguments |= _tls(chosen)
    tls = {"ca", "cert", "cert_key", "verify"} & chosen.keys()
    if tls and parts.scheme != "rediss":
        raise InvalidArgument(f"the option {min(tls)!r} is for rediss://, which encrypts")
    arguments["db"] = _count(db or "0", "db")
    replicas = _count(chosen.get("wait_replicas", "0"), "wait_replicas")
    return Settings(mask(parts.geturl()), kind, arguments, timeout, replicas)


def _tls(chosen: dict[str, str]) -> dict[str, Any]:
    verify = chosen.get("verify", "full")
    if verify not in ("full", "none"):
        raise InvalidArgument(f"verify={verify!r} must be full or none")
    return {
        "ssl_cert_reqs": "required" if verify == "full" else "none",
        "ssl_check_hostname": verify == "full",
        "ssl_ca_certs": chosen.get("ca"),
        "ssl_certfile": chosen.get("cert"),
        "ssl_keyfile": chosen.get("cert_key"),
    }


def _count(text: str, name: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"{name}={text!r} must be a number")
    return int(text)


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
