"""What a URL says about a server, and how to connect to it."""

from functools import partial
from typing import Any
from urllib.parse import SplitResult, unquote

import msgspec
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from bide.engines.redis.layout import SHARDS
from bide.engines.redis.sentinel import PATIENCE, Address, Sentinel, Sentinels
from bide.engines.registry import mask, options, seconds
from bide.model.errors import InvalidArgument

_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
"""What redis-py calls them."""

REDIS_PORT, SENTINEL_PORT = 6379, 26379
_TLS_OPTIONS = ("ca", "cert", "cert_key", "verify")
_SENTINEL_OPTIONS = ("sentinel_user", "sentinel_password", "sentinel_tls")
_OPTIONS = ("timeout", "reconnect", "wait_replicas", "shards", "db")


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is, and how to talk to it."""

    shown: str
    """The URL without its password."""
    kind: type[Connection | UnixDomainSocketConnection]
    """The class of redis-py that connects."""
    arguments: dict[str, Any]
    """What it is made with, but for the address where that may change."""
    timeout: float
    """Seconds: how long the server may be silent."""
    reconnect: float
    """Seconds: how long a connection that was lost is sought."""
    wait_replicas: int
    sentinels: Sentinels | None = None
    """They know where the server is, if the URL names sentinels."""
    shards: int = 1
    """The number of shards of a new queue."""
    cluster: tuple[Address, ...] | None = None
    """Nodes of a cluster, if it is one."""

    @property
    def address(self) -> Address:
        """Where the server is that the URL names; of a Unix socket, its path and 0."""
        arguments = self.arguments
        return arguments.get("path") or arguments["host"], arguments.get("port", 0)

    def arguments_at(self, address: Address) -> dict[str, Any]:
        """Return how to connect to an address, in the words of redis-py."""
        if "path" in self.arguments:
            return self.arguments
        host, port = address
        return self.arguments | {"host": host, "port": port}

    def shown_at(self, address: Address) -> str:
        """Return the URL without its password, and in a cluster which node is meant."""
        return self.shown if self.cluster is None else f"{self.shown} ({shown_address(address)})"

    def hurried(self, seconds: float) -> "RedisSettings":
        """Return how to connect to a server that must not keep callers waiting."""
        timeouts = dict.fromkeys(_TIMEOUTS, min(self.timeout, seconds))
        return msgspec.structs.replace(self, arguments=self.arguments | timeouts)


def shown_address(address: Address) -> str:
    """Return an address as errors and logs show it."""
    host, port = address
    return f"{host}:{port}" if port else host


def read_url(parts: SplitResult) -> RedisSettings:
    """Return what a URL says.

    Raises:
        InvalidArgument: it is of another form.
    """
    shown = _shown(parts)
    form = parts.scheme.rpartition("+")[2]  # cluster, sentinel, unix, or the scheme itself
    encrypted = parts.scheme.startswith("rediss")
    allowed = [*_OPTIONS]
    if encrypted:
        allowed += _TLS_OPTIONS
    if form == "sentinel":
        allowed += _SENTINEL_OPTIONS
    chosen = options(parts, *allowed)
    timeout = _seconds(chosen, "timeout", "5s")
    basic: dict[str, Any] = {"protocol": 2, "client_name": "bide"}
    arguments = basic | dict.fromkeys(_TIMEOUTS, timeout)
    login = {"username": parts.username, "password": parts.password}
    arguments |= {name: unquote(secret) for name, secret in login.items() if secret}
    kind: type[Any] = SSLConnection if encrypted else Connection
    db = parts.path.strip("/")
    sentinels = cluster = None
    if form != "unix":
        arguments |= {"socket_keepalive": True, **(_tls(chosen) if encrypted else {})}
    if form == "unix":
        if not db:
            raise InvalidArgument("unix:// needs the path of a socket: unix:///run/redis.sock")
        kind, db = UnixDomainSocketConnection, ""
        arguments["path"] = unquote(parts.path)
    elif form == "cluster":
        cluster = tuple(_hosts(parts, REDIS_PORT, "some nodes as {}://host:6379,host:6379"))
        if (chosen.get("db") or db or "0") != "0":
            raise InvalidArgument("a cluster has only one database; leave it out of the URL")
    elif form == "sentinel":
        sentinel_arguments = basic | dict.fromkeys(_TIMEOUTS, min(timeout, PATIENCE))
        sentinels, db = _sentinels(parts, shown, chosen, sentinel_arguments)
    elif "/" in db or db.endswith(".sock"):
        raise InvalidArgument(f"db={db!r} must be a number; for a socket write unix://{parts.path}")
    else:
        host, port = _single_host(parts)
        arguments |= {"host": host, "port": port}
    db_number = _count(chosen.get("db") or db or "0", "db")
    # As text: an interrupt while hiredis takes the text of a number would end the process.
    arguments["db"] = str(db_number) if db_number else None
    shards = _count(chosen.get("shards", "8" if form == "cluster" else "1"), "shards")
    if not 0 < shards <= SHARDS:
        raise InvalidArgument(f"shards={shards} must be from 1 to {SHARDS}")
    reconnect = _seconds(chosen, "reconnect", f"{timeout}")
    wait_replicas = _count(chosen.get("wait_replicas", "0"), "wait_replicas")
    return RedisSettings(
        shown=shown,
        kind=kind,
        arguments=arguments,
        timeout=timeout,
        reconnect=reconnect,
        wait_replicas=wait_replicas,
        sentinels=sentinels,
        shards=shards,
        cluster=cluster,
    )


def _single_host(parts: SplitResult) -> Address:
    """Return the host and port of a URL that names one server; without a host, this machine.

    Raises:
        InvalidArgument: the URL names several servers.
    """
    if not parts.hostname:  # as redis:///0, or redis://:6380/0
        parts = parts._replace(netloc=f"localhost{parts.netloc.rpartition('@')[2]}")
    address, *others = _hosts(parts, REDIS_PORT, "{}://host:6379")
    if others:
        raise InvalidArgument(
            f"{parts.scheme}:// names one server; write {parts.scheme}+cluster:// or +sentinel://"
        )
    return address


def _shown(parts: SplitResult) -> str:
    """Return a URL without its password; `geturl` drops the slashes of one without a host."""
    rest = parts.geturl().removeprefix(f"{parts.scheme}:").removeprefix("//")
    return mask(f"{parts.scheme}://{rest}")


def _sentinels(
    parts: SplitResult, shown: str, chosen: dict[str, str], basic: dict[str, Any]
) -> tuple[Sentinels, str]:
    """Return the sentinels of a URL, and the database that its path names; empty: it names none.

    Args:
        parts: the URL.
        shown: the URL without its password.
        chosen: its options.
        basic: arguments of redis-py for each connection to a sentinel.

    Raises:
        InvalidArgument: the URL is of another form.
    """
    name, _, db = parts.path.strip("/").partition("/")
    if not name or "/" in db:
        raise InvalidArgument(
            f"url={shown!r} must name the master as the sentinels know it: "
            f"{parts.scheme}://host:26379,host:26379/master-name, or .../master-name/db"
        )
    encrypted = parts.scheme.startswith("rediss")
    tls = chosen.get("sentinel_tls", "yes" if encrypted else "no")
    if tls not in ("yes", "no") or (tls == "yes" and not encrypted):
        raise InvalidArgument(
            f"sentinel_tls={tls!r} must be yes or no, and yes is for rediss+sentinel://"
        )
    kind = SSLConnection if tls == "yes" else Connection
    arguments = {
        **basic,
        **(_tls(chosen) if tls == "yes" else {}),
        "username": chosen.get("sentinel_user"),
        "password": chosen.get("sentinel_password"),
    }
    form = "the sentinels as {}://host:26379,host:26379/master-name"
    members = [
        Sentinel(f"{host}:{port}", partial(kind, host=host, port=port, **arguments))
        for host, port in _hosts(parts, SENTINEL_PORT, form)
    ]
    return Sentinels(shown, unquote(name), members), db


def _hosts(parts: SplitResult, default_port: int, form: str) -> list[Address]:
    """Return the hosts and ports of a URL, which are separated by commas.

    Args:
        parts: the URL.
        default_port: the port where none is said.
        form: how to write the URL, `{}` for the scheme, for the error.

    Raises:
        InvalidArgument: a host is missing, or a port is not a number.
    """
    addresses = []
    behind_login = parts.netloc.rpartition("@")[2]
    for text in behind_login.split(","):
        host, colon, port = text.rpartition(":")
        if not colon or port.endswith("]"):  # the colon is one of an IPv6 address: [::1]
            host, port = text, str(default_port)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isdecimal() and 0 < int(port) < 65536):
            raise InvalidArgument(
                f"url={_shown(parts)!r}: {text!r} is not host:port; write "
                + form.format(parts.scheme)
            )
        addresses.append((host, int(port)))
    return addresses


def _tls(chosen: dict[str, str]) -> dict[str, Any]:
    """Return how to encrypt, in the words of redis-py.

    Raises:
        InvalidArgument: `verify` is not known.
    """
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
    """Return the value of an option as a whole number.

    Raises:
        InvalidArgument: it has other characters than digits.
    """
    if not text.isdecimal():
        raise InvalidArgument(f"{name}={text!r} must be a number")
    return int(text)


def _seconds(chosen: dict[str, str], name: str, default: str) -> float:
    """Return the seconds that an option says, or its default.

    Raises:
        InvalidArgument: it says no time, or none that is longer than nothing.
    """
    length = seconds(chosen.get(name, default), name)
    if length <= 0:
        raise InvalidArgument(f"?{name} must be longer than 0, such as 5s")
    return length
