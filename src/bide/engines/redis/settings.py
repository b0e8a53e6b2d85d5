"""What a URL says about a server, and how to connect to it."""

from typing import Any
from urllib.parse import SplitResult, unquote

import msgspec
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from bide.engines.redis.keys import SHARDS
from bide.engines.redis.sentinel import (
    OPTIONS,
    PATIENCE,
    Address,
    Sentinels,
    split_hosts,
    split_path,
)
from bide.engines.registry import mask, options, seconds
from bide.model.errors import InvalidArgument

__all__ = ["Address", "Settings", "read_url", "shown_address"]

_OPTIONS = (
    "timeout", "reconnect", "wait_replicas", "shards", "db", "ca", "cert", "cert_key", "verify",
)  # fmt: skip


class Settings(msgspec.Struct, frozen=True):
    """Where the server is, and how to talk to it."""

    shown: str
    """The URL without its password."""
    kind: type[Connection | UnixDomainSocketConnection]
    arguments: dict[str, Any]
    timeout: float
    """Seconds: how long the server may be silent."""
    reconnect: float
    """Seconds: how long a connection that was lost is sought."""
    wait_replicas: int
    sentinels: Sentinels | None = None
    """Who knows where the server is, if the URL does not say it."""
    shards: int = 1
    """Of how many shards queues are made."""
    cluster: tuple[Address, ...] | None = None
    """Nodes of a cluster, if it is one."""

    @property
    def address(self) -> Address:
        """Where the server is that the URL names; of a socket, its path."""
        if "path" in self.arguments:
            return self.arguments["path"], 0
        return self.arguments["host"], self.arguments["port"]

    def connection(self, address: Address) -> Any:
        """Return a connection to an address that is not open yet."""
        if "path" in self.arguments:
            return self.kind(**self.arguments)
        arguments = {**self.arguments, "host": address[0], "port": address[1]}
        return self.kind(**arguments)

    def shown_at(self, address: Address) -> str:
        """Return the URL without its password, and in a cluster which node is meant."""
        return self.shown if self.cluster is None else f"{self.shown} ({shown_address(address)})"

    def hurried(self, seconds: float) -> "Settings":
        """Return how to connect to somebody who is not waited for."""
        soon = min(self.timeout, seconds)
        return msgspec.structs.replace(
            self,
            arguments={**self.arguments, "socket_timeout": soon, "socket_connect_timeout": soon},
        )


def shown_address(address: Address) -> str:
    """Return an address as errors and logs show it."""
    return f"{address[0]}:{address[1]}" if address[1] else address[0]


def read_url(parts: SplitResult) -> Settings:
    """Return what a URL says.

    Raises:
        InvalidArgument: it is of another form.
    """
    by_nodes = parts.scheme in ("redis+cluster", "rediss+cluster")
    by_sentinels = parts.scheme in ("redis+sentinel", "rediss+sentinel")
    chosen = options(parts, *_OPTIONS, *(OPTIONS if by_sentinels else ()))
    timeout = _seconds(chosen.get("timeout", "5s"), "timeout", parts)
    arguments: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
        "client_name": "bide",
    }
    sought = dict(arguments)
    if parts.username:
        arguments["username"] = unquote(parts.username)
    if parts.password:
        arguments["password"] = unquote(parts.password)
    kind: type[Any] = Connection
    db = chosen.get("db")
    sentinels = cluster = None
    encrypted = parts.scheme.startswith("rediss")
    tls = {"ca", "cert", "cert_key", "verify"} & chosen.keys()
    if tls and not encrypted:
        raise InvalidArgument(f"the option {min(tls)!r} is for rediss://, which encrypts")
    if parts.scheme in ("unix", "redis+unix"):
        if not parts.path.strip("/"):
            raise InvalidArgument("unix:// needs the path of a socket: unix:///run/redis.sock")
        kind = UnixDomainSocketConnection
        arguments["path"] = unquote(parts.path)
    else:
        arguments["socket_keepalive"] = True
        if encrypted:
            kind = SSLConnection
            arguments |= _tls(chosen)
        if by_nodes:
            cluster = tuple(split_hosts(parts, 6379, "some nodes as {}://host:6379,host:6379"))
            path_db = parts.path.strip("/")
            if (db or path_db or "0") != "0":
                raise InvalidArgument("a cluster has one database only, so the URL names none")
        elif by_sentinels:
            sentinels, path_db = _sentinels(parts, chosen, sought, min(timeout, PATIENCE))
        else:
            arguments |= {"host": parts.hostname or "localhost", "port": _port(parts)}
            path_db = parts.path.strip("/")
            if "/" in path_db or path_db.endswith(".sock"):
                raise InvalidArgument(
                    f"db={path_db!r} must be a number; for a socket write unix://{parts.path}"
                )
        db = db or path_db
    arguments["db"] = _count(db or "0", "db")
    return Settings(
        mask(parts.geturl()),
        kind,
        arguments,
        timeout,
        _seconds(chosen["reconnect"], "reconnect", parts) if "reconnect" in chosen else timeout,
        _count(chosen.get("wait_replicas", "0"), "wait_replicas"),
        sentinels,
        _shards(chosen.get("shards", "8" if by_nodes else "1")),
        cluster,
    )


def _sentinels(
    parts: SplitResult, chosen: dict[str, str], arguments: dict[str, Any], patience: float
) -> tuple[Sentinels, str]:
    """Return the sentinels of a URL, and the database that its path names."""
    name, db = split_path(parts)
    arguments |= {"socket_timeout": patience, "socket_connect_timeout": patience}
    if "sentinel_user" in chosen:
        arguments["username"] = chosen["sentinel_user"]
    if "sentinel_password" in chosen:
        arguments["password"] = chosen["sentinel_password"]
    kind: type[Any] = Connection
    encrypted = parts.scheme.startswith("rediss")
    asked = chosen.get("sentinel_tls", "yes" if encrypted else "no")
    if asked not in ("yes", "no") or (asked == "yes" and not encrypted):
        raise InvalidArgument(
            f"sentinel_tls={asked!r} must be yes or no, and yes is for rediss+sentinel://"
        )
    if asked == "yes":
        kind = SSLConnection
        arguments |= _tls(chosen)
    return Sentinels(mask(parts.geturl()), name, split_hosts(parts), kind, arguments), db


def _tls(chosen: dict[str, str]) -> dict[str, Any]:
    verify = chosen.get("verify", "full")
    if verify not in ("full", "ca", "none"):
        raise InvalidArgument(f"verify={verify!r} must be full, ca or none")
    return {
        "ssl_cert_reqs": "none" if verify == "none" else "required",
        "ssl_check_hostname": verify == "full",
        "ssl_ca_certs": chosen.get("ca"),
        "ssl_certfile": chosen.get("cert"),
        "ssl_keyfile": chosen.get("cert_key"),
    }


def _count(text: str, name: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"{name}={text!r} must be a number")
    return int(text)


def _shards(text: str) -> int:
    shards = _count(text, "shards")
    if not 0 < shards <= SHARDS:
        raise InvalidArgument(f"shards={shards} must be from 1 to {SHARDS}")
    return shards


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or 6379
    except ValueError as error:
        raise InvalidArgument(f"url={mask(parts.geturl())!r}: {error}") from None


def _seconds(text: str, name: str, parts: SplitResult) -> float:
    try:
        found = seconds(text, name)
    except ValueError as error:
        raise InvalidArgument(f"url={mask(parts.geturl())!r}: {error}") from None
    if found <= 0:
        raise InvalidArgument(f"?{name} must be longer than nothing, such as 5s")
    return found
