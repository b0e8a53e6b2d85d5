"""What endangers a store on Redis: eviction, persistence, replicas, sentinels, rights."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult

import redis
from redis.cluster import ClusterNode
from redis.connection import SSLConnection

from bide.engines.findings import Finding
from bide.engines.redis.dangers import (
    SETTINGS,
    cut_off,
    is_too_old,
    of_disk,
    of_memory,
    of_sentinels,
)
from bide.engines.redis.faults import no_connection
from bide.engines.redis.sentinel import Address, Sentinels
from bide.engines.redis.settings import Settings, read_url, shown_address
from bide.engines.redis.soundness import soundness

_STOPS = 'the server refuses commands: nothing is put, claimed or acked ("MISCONF")'


def examine(parts: SplitResult, longest: float) -> Sequence[Finding]:
    """Look at the server, or at the masters of a cluster, at the sentinels and the messages.

    Raises:
        StoreUnavailable: it cannot be reached.
    """
    settings = read_url(parts)
    found: list[Finding] = []
    addresses: Sequence[Address]
    if settings.sentinels is not None:
        addresses = (settings.sentinels.master(),)
        found += _sentinels(settings, settings.sentinels)
    else:
        addresses = settings.cluster or (settings.address,)
    try:
        with _client(settings, addresses) as client:
            found += _servers(client, settings)
            found += soundness(client, settings, longest)
    except (redis.RedisError, redis.RedisClusterException) as error:
        place = ", ".join(map(shown_address, addresses))
        raise no_connection(error, settings.shown, place) from error
    return found


def _client(settings: Settings, addresses: Sequence[Address]) -> Any:
    if settings.cluster is not None:
        arguments = {name: each for name, each in settings.arguments.items() if name != "db"}
        nodes: list[Any] = [ClusterNode(*address) for address in addresses]  # type: ignore[no-untyped-call]
        encrypted = settings.kind is SSLConnection
        return redis.RedisCluster(
            startup_nodes=nodes, require_full_coverage=False, ssl=encrypted, **arguments
        )
    arguments = settings.arguments_at(addresses[0])
    pool = redis.ConnectionPool(connection_class=settings.kind, **arguments)
    return redis.Redis(connection_pool=pool)


def _servers(client: Any, settings: Settings) -> Iterator[Finding]:
    """Look at each server that has messages."""
    if settings.cluster is None:
        yield from _node(client, settings)
        return
    for node in client.get_primaries():
        try:
            yield from _node(client.get_redis_connection(node), settings)
        except redis.RedisError as error:
            raise no_connection(error, settings.shown, node.name) from error


def _node(client: redis.Redis, settings: Settings) -> Iterator[Finding]:
    info = {name: str(told) for name, told in client.info().items()}
    if is_too_old(version := info["redis_version"]):
        yield Finding(
            "danger", f"the server is Redis {version}", "bide's functions fail",
            "upgrade to Redis 7.0 or Valkey",
        )  # fmt: skip
    yield from _rights(client)
    try:
        config = {name: str(client.config_get(name).get(name, "")) for name in SETTINGS}
    except redis.ResponseError as error:
        yield Finding(
            "warning", f"the settings cannot be read ({error})",
            "nobody knows here whether messages are evicted, or lost at a restart",
            "ask your provider for maxmemory-policy noeviction and for an append-only file",
        )  # fmt: skip
        config = {}
    yield from of_memory(info)
    yield from of_disk(info, config)
    for status in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(status, "ok") != "ok":
            yield Finding(
                "danger", f"the server could not write to its disk ({status}: {info[status]})",
                _STOPS, "look into the server's log; free some space",
            )  # fmt: skip
    yield from _replicas(info, config, settings)


def _rights(client: redis.Redis) -> Iterator[Finding]:
    try:
        client.fcall("bide", 0)
    except redis.ResponseError as error:
        if "Function not found" not in str(error):
            yield Finding(
                "danger", f"functions are not allowed ({error})",
                "bide works by functions on the server: every command fails",
                "allow FCALL and FUNCTION LOAD: no rename-command, and in the ACL +@scripting",
            )  # fmt: skip


def _replicas(
    info: dict[str, str], config: dict[str, str], settings: Settings
) -> Iterator[Finding]:
    if info["role"] != "master":
        yield Finding(
            "danger", f"this server is a replica of {info.get('master_host')}",
            "it is read-only, and what is written to it is lost",
            "name the master in the URL, or the sentinels with redis+sentinel://",
        )  # fmt: skip
    elif info["connected_slaves"] == "0":
        yield Finding(
            "warning", "the server has no replica",
            "if its machine or disk is lost, so are all messages",
            "add a replica, and ?wait_replicas=1 to the URL",
        )  # fmt: skip
    else:
        if not settings.wait_replicas:
            yield Finding(
                "warning", "puts do not wait for the replicas (wait_replicas=0)",
                "a failover loses what was confirmed a moment before",
                "add ?wait_replicas=1 to the URL",
            )  # fmt: skip
        yield from cut_off(config)


def _sentinels(settings: Settings, sentinels: Sentinels) -> Iterator[Finding]:
    facts = sentinels.facts()
    yield from of_sentinels(facts, sentinels.name)
    down = int(facts["down-after-milliseconds"]) / 1000
    if settings.reconnect < down + 1:
        yield Finding(
            "warning", f"reconnect={settings.reconnect:g}s in the URL, and the sentinels give the "
            f"master up after {down:g} s",
            "during a failover commands fail that could have waited",
            f"add ?reconnect={down + 5:.0f}s to the URL",
        )  # fmt: skip
