"""What endangers a store on Redis: eviction, persistence, replicas, sentinels, rights."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult

import redis

from bide.engines.findings import Finding
from bide.engines.redis.faults import no_connection
from bide.engines.redis.sentinel import FAILOVER_MS, Address, Sentinels
from bide.engines.redis.settings import Settings, read_url, shown_address
from bide.model.errors import StoreUnavailable

__all__ = ["examine"]

_SETTINGS = (
    "maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write",
)  # fmt: skip
_STOPS = 'the server refuses commands: nothing is put, claimed or acked ("MISCONF")'


def examine(parts: SplitResult) -> Sequence[Finding]:
    """Look at the server, or at the masters of a cluster, and at the sentinels.

    Raises:
        StoreUnavailable: it cannot be reached.
    """
    settings = read_url(parts)
    found: list[Finding] = []
    if settings.sentinels is not None:
        addresses = [settings.sentinels.master()]
        found += _sentinels(settings, settings.sentinels)
    elif settings.cluster is not None:
        addresses = _masters(settings)
    else:
        addresses = [settings.address]
    for address in addresses:
        with _client(settings, address) as client:
            try:
                found += _node(client, settings)
            except redis.RedisError as error:
                raise no_connection(error, settings.shown, shown_address(address)) from error
    return found


def _client(settings: Settings, address: Address) -> redis.Redis:
    arguments = dict(settings.arguments)
    if "path" not in arguments:
        arguments |= {"host": address[0], "port": address[1]}
    arguments.pop("decode_responses", None)
    pool = redis.ConnectionPool(connection_class=settings.kind, decode_responses=True, **arguments)
    return redis.Redis(connection_pool=pool)


def _masters(settings: Settings) -> list[Address]:
    problem: redis.RedisError | None = None
    for seed in settings.cluster or ():
        try:
            with _client(settings, seed) as client:
                slots: Any = client.execute_command("CLUSTER SHARDS")
        except redis.RedisError as error:
            problem = error
            continue
        nodes = [_pairs(node) for shard in slots for node in _pairs(shard)["nodes"]]
        return [(node["ip"], int(node["port"])) for node in nodes if node["role"] == "master"]
    raise StoreUnavailable(f"{settings.shown}: no node of the cluster answers ({problem})")


def _pairs(flat: Any) -> dict[str, Any]:
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def _node(client: redis.Redis, settings: Settings) -> Iterator[Finding]:
    info: dict[str, Any] = client.info()
    if (version := str(info["redis_version"])).split(".")[0] < "7":
        yield Finding(
            "danger", f"the server is Redis {version}", "bide's functions fail",
            "upgrade to Redis 7.0 or Valkey",
        )  # fmt: skip
    yield from _rights(client)
    try:
        config = {name: str(client.config_get(name).get(name, "")) for name in _SETTINGS}
    except redis.ResponseError as error:
        yield Finding(
            "warning", f"the settings cannot be read ({error})",
            "nobody knows here whether messages are evicted, or lost at a restart",
            "ask your provider for maxmemory-policy noeviction and for an append-only file",
        )  # fmt: skip
        config = {}
    if config:
        yield from _memory(config)
        yield from _disk(config)
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


def _memory(config: dict[str, str]) -> Iterator[Finding]:
    policy = config["maxmemory-policy"]
    if policy != "noeviction":
        limited = config["maxmemory"] != "0"
        yield Finding(
            "danger" if limited else "warning", f"maxmemory-policy {policy}",
            "the server deletes messages when its memory is full" if limited else
            "once maxmemory is set, the server deletes messages when its memory is full",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
        )  # fmt: skip


def _disk(config: dict[str, str]) -> Iterator[Finding]:
    if config["appendonly"] == "no":
        saves = bool(config["save"])
        yield Finding(
            "warning" if saves else "danger",
            f"appendonly no, save {config['save']!r}",
            "a restart loses what was put, acked and cancelled since the last snapshot" if saves
            else "a restart loses all messages",
            "CONFIG SET appendonly yes, and in redis.conf",
        )  # fmt: skip
    elif config["appendfsync"] != "always":
        seconds = {"everysec": "a second", "no": "half a minute"}.get(config["appendfsync"], "some")
        yield Finding(
            "warning", f"appendfsync {config['appendfsync']}",
            f"when the machine fails, up to {seconds} of confirmed changes is lost",
            "CONFIG SET appendfsync always, if that is too much",
        )  # fmt: skip


def _replicas(
    info: dict[str, Any], config: dict[str, str], settings: Settings
) -> Iterator[Finding]:
    if info["role"] != "master":
        yield Finding(
            "danger", f"this server is a replica of {info.get('master_host')}",
            "it is read-only, and what is written to it is lost",
            "name the master in the URL, or the sentinels with redis+sentinel://",
        )  # fmt: skip
    elif not info["connected_slaves"]:
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
        if config.get("min-replicas-to-write") == "0":
            yield Finding(
                "warning", "min-replicas-to-write 0",
                "a master that is cut off goes on confirming what the failover then discards",
                "CONFIG SET min-replicas-to-write 1, and in redis.conf",
            )  # fmt: skip


def _sentinels(settings: Settings, sentinels: Sentinels) -> Iterator[Finding]:
    facts = sentinels.facts()
    down = int(facts["down-after-milliseconds"]) / 1000
    count, quorum = int(facts["num-other-sentinels"]) + 1, int(facts["quorum"])
    if count < 3:
        yield Finding(
            "danger", f"{count} sentinel{'s' * (count > 1)}",
            "if one of them is away, no other master is chosen, and the store stops",
            "run three or more, on different machines",
        )  # fmt: skip
    elif quorum <= count // 2:
        yield Finding(
            "warning", f"{quorum} of {count} sentinels are enough to give the master up",
            "a few that are cut off start a failover that is not needed",
            f"SENTINEL SET {sentinels.name} quorum {count // 2 + 1}",
        )  # fmt: skip
    if int(facts["failover-timeout"]) < FAILOVER_MS:
        yield Finding(
            "warning", f"failover-timeout {facts['failover-timeout']}",
            "two sentinels may fail over one after the other, to a replica that lacks changes",
            f"SENTINEL SET {sentinels.name} failover-timeout 180000, on each sentinel",
        )  # fmt: skip
    if down > 30:
        yield Finding(
            "warning", f"down-after-milliseconds {facts['down-after-milliseconds']}",
            f"when the master fails, the store stops for more than {down:.0f} s",
            f"SENTINEL SET {sentinels.name} down-after-milliseconds 5000",
        )  # fmt: skip
    if settings.reconnect < down + 1:
        yield Finding(
            "warning", f"reconnect={settings.reconnect:g}s in the URL, and the sentinels give the "
            f"master up after {down:g} s",
            "during a failover commands fail that could have waited",
            f"add ?reconnect={down + 5:.0f}s to the URL",
        )  # fmt: skip
