"""The settings of a server, from a file, the environment and the command line."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from bide.engines.registry import DEFAULT_URL, is_server, is_this_machine, mask, opener
from bide.model.errors import InvalidArgument
from bide.model.identity import check_namespace
from bide.model.limits import MAX_BODY, check_range
from bide.model.times import LATEST, milliseconds
from bide.server.access.oidc import OidcSettings
from bide.server.http.client_address import ClientAddress, networks
from bide.server.problem import of_decoding
from bide.targets.amqp import intakes, mask_address

PORT = 8642

CAP = (1, 1_000_000)
"""The range of settings that limit how many of something there may be at a time."""

RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "workers": (1, 256),
    "max_body": (1, 1 << 30),
    "max_request": (1_024, 1 << 31),
    "max_connections": CAP,
    "connections_per_address": CAP,
    "max_streams": CAP,
    "max_waiting": CAP,
    "max_slow_reads": CAP,
    "grace": (0, 3_600),
    "push_lease": (1, 3_600),
    "longest_wait": (0, 3_600),
    "request_timeout": (0.01, 3_600),
}
"""The minimum and the maximum of each setting that is a number."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a namespace may use. A quota that is left out has its default, or no limit.

    `pending`, `max_body`, `stored`, `byte_rate`, `queues` and `subscriptions` have defaults on a
    server that requires tokens. Set a larger number to raise them.
    """

    rate: float | None = None
    """How many messages may be put per second, by all of its tokens together, to this server."""
    pending: int | None = None
    """How many messages may be in its queues at a time, dead and kept ones included."""
    max_body: int | None = None
    """How many bytes a message may take: body, headers, group and id."""
    stored: int | None = None
    """How many bytes its messages may take together, dead and kept ones included."""
    byte_rate: float | None = None
    """How many bytes per second its requests and answers may take, at this server."""
    queues: int | None = None
    """How many queues it may have."""
    longest_delay: str | float | None = None
    """How far ahead a message may be due."""
    subscriptions: int | None = None
    """How many subscriptions it may have."""
    push_concurrency: int | None = None
    """How many requests all of its subscriptions may have under way together."""

    def check(self, namespace: str) -> None:
        """Check the ranges of all values.

        Raises:
            InvalidArgument: one of them is not valid.
        """
        for name, value in msgspec.structs.asdict(self).items():
            if name != "longest_delay" and value is not None:
                least = 0.001 if name in ("rate", "byte_rate") else 0
                check_range(value, f"quotas.{namespace}.{name}", least, 1 << 62)
        _ = self.longest_ms  # raises if `longest_delay` is not valid

    @property
    def longest_ms(self) -> int:
        """`longest_delay` in milliseconds; without one, that of the latest due time."""
        delay = self.longest_delay
        return LATEST if delay is None else milliseconds(delay, "longest_delay")


DEFAULTS = Quota(
    pending=1_000_000,
    max_body=1024**2,
    stored=1024**3,
    byte_rate=100 * 1024**2,
    queues=1_000,
    subscriptions=100,
)
"""How much a namespace may use on a server that requires tokens. If the settings allow larger
bodies, `max_body` is theirs. A store has room for 10,000 subscriptions."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server.

    Example:
        >>> Settings(store="sqlite:///bide.db", port=9000).address
        'http://127.0.0.1:9000'
    """

    store: str = DEFAULT_URL
    """The URL of the store."""
    host: str = "127.0.0.1"
    port: int = PORT
    socket: str | None = None
    """The path of a Unix socket to listen on instead of host and port."""
    socket_mode: str = "600"
    """Who may open that socket, as chmod writes it; "660": the group as well."""
    tls_cert: str | None = None
    """A file with the certificate and its chain, as PEM: the server speaks only HTTPS."""
    tls_key: str | None = None
    """A file with the key of that certificate, without a passphrase."""
    tls_client_ca: str | None = None
    """A file with certificates of authorities: clients need a certificate that one has issued."""
    workers: int = 1
    """How many processes share the work."""
    auth: Literal["auto", "required", "off"] = "auto"
    """Whether requests need a token; "auto": once the store has one."""
    grace: float = 30.0
    """Seconds that requests get to finish when the server is stopped."""
    max_body: int = MAX_BODY
    """How many bytes the body of a message may take."""
    max_request: int = 32 * 1024 * 1024
    """How many bytes a request may take."""
    longest_wait: float = 300.0
    """Seconds for which a claim may wait."""
    request_timeout: float = 30.0
    """How many seconds a client may take to send a request."""
    max_connections: int = 10_000
    """How many connections each process keeps; fewer if it may not open so many descriptors."""
    connections_per_address: int = 200
    """How many of these may come from one address; not limited while requests need no token."""
    max_streams: int = 100
    """How many event streams each namespace, and each address, may have open at each process; not
    limited while requests need no token."""
    max_waiting: int = 100
    """How many claims of each namespace, and of each address, may wait at each process; not limited
    while requests need no token."""
    max_slow_reads: int = 10
    """How many audits, forecasts, usages and scans with a filter of each namespace, and of each
    address, may be under way at each process; not limited while requests need no token."""
    log_json: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    quotas: dict[str, Quota] = {}
    """By namespace; "*" is for all others."""
    push: bool = True
    """Whether this server sends due messages to the URLs of subscriptions."""
    dashboard: bool = False
    """Whether to show the dashboard at /dashboard."""
    dashboard_hide: list[str] = []
    """Names of the parts of bodies, and of the headers, that the dashboard does not show."""
    trusted_proxies: list[str] = []
    """Networks of proxies whose X-Forwarded-For or Forwarded is trusted, such as "10.1.0.0/16";
    "unix": the proxy at the Unix socket."""
    oidc: OidcSettings | None = None
    """The issuer whose JWTs are accepted besides tokens; then requests need one of both."""
    action_log: str | None = None
    """A file to which each act is appended as a JSON line; created with mode 0600."""
    push_networks: list[str] = []
    """Networks that are not public to which it may send, such as "10.1.0.0/16"."""
    rabbitmq: list[str] = []
    """URLs of RabbitMQ exchanges from which delayed messages are taken."""
    push_lease: float = 30.0
    """Seconds for which it leases the messages that it sends; if the server dies, another one takes
    over after this time."""

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            check_range(getattr(self, name), name, least, most)
        if not re.fullmatch("0?[0-7]{3}", self.socket_mode):
            raise InvalidArgument(
                f'socket_mode={self.socket_mode!r} must be written as for chmod: "600", or '
                '"660" for the group as well'
            )
        for name, quota in self.quotas.items():
            if name != "*":
                check_namespace(name)
            quota.check(name)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("tls_cert= and tls_key= go together; give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidArgument("tls_client_ca needs tls_cert and tls_key, the server's own")
        if self.tls_cert is not None and self.socket is not None:
            raise InvalidArgument(
                "tls_cert is for host and port, and socket= is a Unix socket; leave one out"
            )
        intakes(self.rabbitmq)
        if self.rabbitmq and not self.push:
            raise InvalidArgument("rabbitmq needs push, which publishes the messages taken in")
        ClientAddress(self.trusted_proxies)
        networks(self.push_networks, "push_networks")

    @property
    def address(self) -> str:
        """The URL of the server."""
        if self.socket is not None:
            return f"unix:{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host  # an IPv6 address
        scheme = "http" if self.tls_cert is None else "https"
        return f"{scheme}://{host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.socket is not None or is_this_machine(self.host)

    @property
    def shared_socket(self) -> bool:
        """Whether users other than the server's own may open its Unix socket."""
        return self.socket is not None and int(self.socket_mode, 8) & 0o077 != 0

    @property
    def behind(self) -> bool:
        """Whether the store is behind another server, which keeps tokens and subscriptions."""
        return is_server(self.store)

    def quota(self, namespace: str | None, *, requires_tokens: bool) -> Quota:
        """Return how much a namespace may use.

        Args:
            namespace: the namespace; `None`: callers of the whole store.
            requires_tokens: whether requests need tokens: then there are defaults.
        """
        quota = self.quotas.get(namespace or "") or self.quotas.get("*") or Quota()
        if not requires_tokens:
            return quota
        fields = msgspec.structs.asdict(quota).items()
        explicit = {name: value for name, value in fields if value is not None}
        max_body = max(DEFAULTS.max_body or 0, self.max_body)
        return msgspec.structs.replace(DEFAULTS, **{"max_body": max_body, **explicit})

    def check(self) -> None:
        """Check that the settings can work, alone and together.

        Raises:
            InvalidArgument: the store's URL is wrong, it cannot be shared by several processes, or
                the action log cannot be written.
        """
        opener(self.store)
        if self.action_log is not None:
            path = Path(self.action_log)
            exists = os.access(path, os.F_OK)  # `Path.exists` raises where this user may not look
            if not os.access(path if exists else path.parent, os.W_OK):
                raise InvalidArgument(
                    f"action_log={self.action_log!r} cannot be opened; name a file in a folder "
                    "that exists and that this user may write to"
                )
        if self.store.partition("://")[0] == "memory" and self.workers > 1:
            raise InvalidArgument(
                "memory:// lives in one process, and workers= starts several; leave workers out, "
                "or use sqlite:///bide.db"
            )
        if self.behind and (self.auth == "required" or not self.local):
            raise InvalidArgument(
                f"store={mask(self.store)!r} is behind another server, which keeps the tokens, so "
                "this one cannot check any; listen on 127.0.0.1 without auth, or give the URL of "
                "the store itself"
            )
        if self.oidc is not None and (self.auth == "off" or self.behind):
            raise InvalidArgument(
                "oidc is set, and requests need no token; leave out auth=off, and give the URL of "
                "the store itself"
            )

    def without_secrets(self) -> dict[str, Any]:
        """Return all settings, without secrets."""
        settings: dict[str, Any] = msgspec.to_builtins(self)
        brokers = [mask_address(url) for url in self.rabbitmq]
        return {**settings, "store": mask(self.store), "rabbitmq": brokers}


SPANS = [name for name, kind in Settings.__annotations__.items() if kind is float]
"""Settings that a file may give as "30s" as well as in seconds."""


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file, without those that it leaves out.

    Raises:
        InvalidArgument: it cannot be read, or has a setting that is not valid.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        for name in SPANS:
            if isinstance(duration := values.get(name), str):
                values[name] = milliseconds(duration, name) / 1000
        settings = msgspec.convert(values, Settings)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    except msgspec.ValidationError as error:
        raise InvalidArgument(str(of_decoding(error, Settings, str(path)))) from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{path} does not fit: {error}") from None
    return {name: getattr(settings, name) for name in values}
