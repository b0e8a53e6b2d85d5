"""Settings of servers and sentinels that endanger messages: for `bide doctor`, and for the log."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from bide.engines.findings import Finding

SETTINGS = ("appendfsync", "save", "min-replicas-to-write")
"""What is to be asked for of the configuration; INFO tells the rest."""

FAILOVER_MS = 20_000
"""A shorter failover-timeout of the group has lost confirmed changes; 20 s did not."""

OLDEST = (7, 0)
"""The version of the oldest server that has what bide needs."""

_log = logging.getLogger("bide.redis")


def warn(shown: str, findings: Iterable[Finding]) -> None:
    """Log findings about the store at a URL."""
    for each in findings:
        _log.warning("%s: %s: %s; %s", shown, each.what, each.loss, each.fix)


def is_too_old(version: str) -> bool:
    """Tell whether a server of this version lacks what bide needs."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST


def of_memory(info: Mapping[str, str]) -> Iterator[Finding]:
    """Tell whether messages may be evicted."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        limited = info.get("maxmemory") != "0"
        yield Finding(
            "danger" if limited else "warning", f"maxmemory-policy {policy}",
            "the server deletes messages when its memory is full" if limited else
            "once maxmemory is set, the server deletes messages when its memory is full",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
        )  # fmt: skip


def of_disk(info: Mapping[str, str], config: Mapping[str, str]) -> Iterator[Finding]:
    """Tell what a restart loses."""
    if info.get("aof_enabled") == "0" and "save" in config:
        saves = bool(config["save"])
        yield Finding(
            "warning" if saves else "danger", f"appendonly no, save {config['save']!r}",
            "a restart loses what was put, acked and cancelled since the last snapshot" if saves
            else "a restart loses all messages",
            "CONFIG SET appendonly yes, and in redis.conf",
        )  # fmt: skip
    elif config.get("appendfsync", "always") != "always":
        seconds = {"everysec": "a second", "no": "half a minute"}.get(config["appendfsync"], "some")
        yield Finding(
            "warning", f"appendfsync {config['appendfsync']}",
            f"when the machine fails, up to {seconds} of confirmed changes is lost",
            "CONFIG SET appendfsync always, if that is too much",
        )  # fmt: skip


def cut_off(config: Mapping[str, str]) -> Iterator[Finding]:
    """Tell what a master does that is cut off from its replicas."""
    if config.get("min-replicas-to-write") == "0":
        yield Finding(
            "warning", "min-replicas-to-write 0",
            "a master that is cut off goes on making changes, which the failover then discards",
            "CONFIG SET min-replicas-to-write 1, on all servers and in redis.conf",
        )  # fmt: skip


def of_sentinels(facts: Mapping[str, str], name: str) -> Iterator[Finding]:
    """Tell what is wrong with how sentinels watch a group.

    Args:
        facts: what SENTINEL MASTER tells.
        name: what they call the group.
    """
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
            f"SENTINEL SET {name} quorum {count // 2 + 1}",
        )  # fmt: skip
    if int(facts["failover-timeout"]) < FAILOVER_MS:
        yield Finding(
            "warning", f"failover-timeout {facts['failover-timeout']}",
            "two sentinels may fail over one after the other, to a replica that lacks changes",
            f"SENTINEL SET {name} failover-timeout 180000, on each sentinel",
        )  # fmt: skip
    if down > 30:
        yield Finding(
            "warning", f"down-after-milliseconds {facts['down-after-milliseconds']}",
            f"when the master fails, the store stops for more than {down:.0f} s",
            f"SENTINEL SET {name} down-after-milliseconds 5000",
        )  # fmt: skip
