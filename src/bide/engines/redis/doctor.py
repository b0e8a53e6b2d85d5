"""What endangers a store on Redis: eviction, persistence, replicas, sentinels, rights."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult

import redis
from redis.cluster import ClusterNode
from redis.connection import SSLConnection

from bide.engines.findings import Finding, Unreadable, findings, of_messages
from bide.engines.redis import layout
from bide.engines.redis.dangers import SETTINGS, cut_off, is_too_old, of_sentinels, of_server
from bide.engines.redis.faults import no_connection
from bide.engines.redis.reads import decode_ends
from bide.engines.redis.sentinel import Address, Sentinels
from bide.engines.redis.settings import RedisSettings, read_url, shown_address

_STATUSES = ("aof_last_write_status", "rdb_last_bgsave_status")


def examine(parts: SplitResult, longest: float) -> Sequence[Finding]:
    """Look at the server, or at the masters of a cluster, at the sentinels and the messages.

    Args:
        parts: the URL.
        longest: for how many seconds to look at messages.

    Raises:
        StoreUnavailable: it cannot be reached.
    """
    settings = read_url(parts)
    findings: list[Finding] = []
    addresses: Sequence[Address]
    if settings.sentinels is not None:
        addresses = (settings.sentinels.master(),)
        findings += _sentinels(settings, settings.sentinels)
    else:
        addresses = settings.cluster or (settings.address,)
    try:
        with _client(settings, addresses) as client:
            findings += _servers(client, settings)
            findings += soundness(client, settings, longest)
    except (redis.RedisError, redis.RedisClusterException) as error:
        tried = ", ".join(map(shown_address, addresses))
        raise no_connection(error, settings.shown, tried) from error
    return findings


def _client(settings: RedisSettings, addresses: Sequence[Address]) -> Any:
    """Return a client of redis-py for a cluster, or for the first one of the addresses."""
    if settings.cluster is not None:
        arguments = {name: each for name, each in settings.arguments.items() if name != "db"}
        nodes: list[Any] = [ClusterNode(*address) for address in addresses]  # type: ignore[no-untyped-call]
        is_encrypted = settings.kind is SSLConnection
        return redis.RedisCluster(
            startup_nodes=nodes, require_full_coverage=False, ssl=is_encrypted, **arguments
        )
    arguments = settings.arguments_at(addresses[0])
    pool = redis.ConnectionPool(connection_class=settings.kind, **arguments)
    return redis.Redis(connection_pool=pool)


def _servers(client: Any, settings: RedisSettings) -> Iterator[Finding]:
    """Look at each server that has messages."""
    if settings.cluster is None:
        yield from _node(client, settings)
        return
    for node in client.get_primaries():
        try:
            yield from _node(client.get_redis_connection(node), settings)
        except redis.RedisError as error:
            raise no_connection(error, settings.shown, node.name) from error


def _node(client: redis.Redis, settings: RedisSettings) -> Iterator[Finding]:
    """Look at one server."""
    info = {name: str(value) for name, value in client.info().items()}
    config: dict[str, str] = {}
    call_error = settings_error = ""
    try:
        client.fcall("bide", 0)  # no function has this name: where they are allowed, it says that
    except redis.ResponseError as error:
        call_error = str(error)
    try:
        config = {name: str(client.config_get(name).get(name, "")) for name in SETTINGS}
    except redis.ResponseError as error:
        settings_error = str(error)
    statuses = {name: info.get(name, "ok") for name in _STATUSES}
    is_replica = info["role"] != "master"
    has_no_replica = info.get("connected_slaves") == "0"
    yield from of_server(info, config)
    yield from findings(
        (
            is_too_old(info["redis_version"]),
            "danger",
            f"the server is Redis {info['redis_version']}",
            "bide's functions fail",
            "upgrade to Redis 7.0 or Valkey",
        ),
        (
            call_error not in ("", "Function not found"),
            "danger",
            f"functions are not allowed ({call_error})",
            "bide works by functions on the server: every command fails",
            "allow FCALL and FUNCTION LOAD: no rename-command, and in the ACL +@scripting",
        ),
        (
            settings_error != "",
            "warning",
            f"the settings cannot be read ({settings_error})",
            "whether messages are evicted, or lost at a restart, cannot be seen here",
            "ask your provider for maxmemory-policy noeviction and for an append-only file",
        ),
        *(
            (
                status != "ok",
                "danger",
                f"the server could not write to its disk ({name}: {status})",
                'the server refuses commands: nothing is put, claimed or acked ("MISCONF")',
                "look into the server's log; free some space",
            )
            for name, status in statuses.items()
        ),
        (
            is_replica,
            "danger",
            f"this server is a replica of {info.get('master_host')}",
            "it is read-only, and what is written to it is lost",
            "name the master in the URL, or the sentinels with redis+sentinel://",
        ),
        (
            not is_replica and has_no_replica,
            "warning",
            "the server has no replica",
            "if its machine or disk is lost, so are all messages",
            "add a replica, and ?wait_replicas=1 to the URL",
        ),
        (
            not (is_replica or has_no_replica or settings.wait_replicas),
            "warning",
            "puts do not wait for the replicas (wait_replicas=0)",
            "a failover loses messages that were confirmed just before",
            "add ?wait_replicas=1 to the URL",
        ),
    )
    if not (is_replica or has_no_replica):
        yield from cut_off(config)


def _sentinels(settings: RedisSettings, sentinels: Sentinels) -> list[Finding]:
    """Look at the sentinels, and whether the URL gives a fail-over enough time."""
    facts = sentinels.facts()
    down_seconds = facts["down-after-milliseconds"] / 1000
    return of_sentinels(facts, sentinels.name) + findings(
        (
            settings.reconnect < down_seconds + 1,
            "warning",
            f"reconnect={settings.reconnect:g}s in the URL, and the sentinels give the master up "
            f"after {down_seconds:g} s",
            "during a failover, commands that could have waited fail",
            f"add ?reconnect={down_seconds + 5:.0f}s to the URL",
        ),
    )


FEWEST_RECORDS, MOST_RECORDS = 16, 1_000
"""How many records are asked for at a time, the first time and at most."""

PAGE_BYTES = 1 << 20
"""Bytes of records that are asked for at a time, about."""


def soundness(client: Any, settings: RedisSettings, longest: float) -> Iterator[Finding]:
    """Search for messages that cannot be read; yield what was found.

    Args:
        client: of redis-py, for the server or the cluster.
        settings: of the store.
        longest: how many seconds the search may take.
    """
    damage = _damage(client.execute_command, clustered=settings.cluster is not None)
    try:
        yield from of_messages(damage, longest, settings.shown, "records", "keys")
    except redis.RedisError as error:
        yield Finding(
            "warning",
            f"the messages could not be looked at ({error})",
            "those that cannot be read are not found",
            "ask as a user who may use the commands that the access rights of bide list",
        )


Send = Callable[..., Any]
"""Sends a command, and returns what comes back."""


def _damage(send: Send, *, clustered: bool) -> Iterator[Unreadable | None]:
    """Yield what cannot be read, and `None` after each page of records or ends."""
    version_keys, queues_keys = (
        layout.copies(key) if clustered else (key,) for key in (layout.VERSION, layout.QUEUES)
    )
    versions = {send("GET", key) for key in version_keys} - {None}
    if not versions or versions - {b"%d" % known for known in layout.LAYOUTS}:
        return  # there is no store, or one that this bide cannot read
    queues = set().union(*(send("ZRANGE", key, 0, -1) for key in queues_keys))
    for queue in sorted(name.decode() for name in queues):
        for shard in range(layout.SHARDS):
            if not send("EXISTS", layout.meta_key(queue, shard)):
                break
            for page in _pages(send, layout.records_key(queue, shard)):
                yield from (
                    Unreadable(f"{id!r} in queue {queue!r}")
                    for id, record in page
                    if not _is_record(queue, id, record)
                )
                yield None
            for page in _pages(send, layout.ended_key(queue, shard)):
                yield from (
                    Unreadable(f"{id!r} in queue {queue!r}", is_end=True)
                    for id, ends in page
                    if not _are_ends(ends)
                )
                yield None


def _pages(send: Send, key: bytes) -> Iterator[list[tuple[str, bytes]]]:
    """Yield pages of a hash, at least one: ids, and what it has of each."""
    cursor, count = 0, FEWEST_RECORDS
    while True:
        cursor, entries = send("HSCAN", key, cursor, "COUNT", count)
        yield [(id.decode(errors="backslashreplace"), entry) for id, entry in entries.items()]
        if not cursor:
            return
        mean_bytes = sum(map(len, entries.values())) // (len(entries) or 1) + 1
        count = min(max(PAGE_BYTES // mean_bytes, FEWEST_RECORDS), MOST_RECORDS)


def _is_record(queue: str, id: str, record: bytes) -> bool:
    """Tell whether the record of a message can be read."""
    try:
        layout.read_record(queue, id, record, 0)
    except layout.DAMAGED:
        return False
    return True


def _are_ends(ends: bytes) -> bool:
    """Tell whether what is remembered of the ends of a message can be read."""
    try:
        decode_ends(ends)
    except layout.DAMAGED:
        return False
    return True
