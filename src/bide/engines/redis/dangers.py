"""Settings of servers and sentinels that endanger messages: for `bide doctor`, and for the log."""

from collections.abc import Iterable, Mapping
from typing import Any

from bide.engines.findings import Finding, findings
from bide.logs import logger

SETTINGS = ("appendfsync", "save", "min-replicas-to-write", "client-output-buffer-limit")
"""What is to be asked for of the configuration; INFO tells the rest."""

LARGEST_ANSWER = 16 << 20
"""Bytes that a server must be able to send at once: the largest claim, and room to spare."""

ENDS_CONNECTIONS = (
    "the server ends a connection instead of sending a larger answer: messages would be leased, "
    "and their worker would never get them"
)
UNLIMITED = "CONFIG SET client-output-buffer-limit 'normal 0 0 0', and in redis.conf"

FAILOVER_MS = 20_000
"""A shorter failover-timeout of the group has lost confirmed changes; 20 s did not."""

OLDEST = (7, 0)
"""The version of the oldest server that has what bide needs."""

_log = logger("bide.redis")
_logged: set[tuple[str, Finding]] = set()
"""Findings that this process has logged, with the URLs of their stores."""


def warn(shown: str, findings: Iterable[Finding]) -> None:
    """Log findings about the store at a URL, each once."""
    for finding in findings:
        if (shown, finding) not in _logged:
            _logged.add((shown, finding))
            _log.warning("%s: %s: %s; %s", shown, finding.what, finding.loss, finding.fix)


def is_too_old(version: str) -> bool:
    """Tell whether a server of this version lacks what bide needs."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST


def of_server(info: Mapping[str, str], config: Mapping[str, str]) -> list[Finding]:
    """Tell whether messages may be evicted, what a restart loses, and whether answers fit.

    Args:
        info: what INFO tells.
        config: what CONFIG GET tells of `SETTINGS`; empty if this user may not ask.
    """
    policy = info.get("maxmemory_policy", "noeviction")
    has_memory_limit = info.get("maxmemory") != "0"
    save, fsync = config.get("save"), config.get("appendfsync", "always")
    is_without_log = info.get("aof_enabled") == "0" and save is not None
    answer_bytes = answer_limit(config)
    lost_time = {"everysec": "a second", "no": "half a minute"}.get(fsync, "some")
    return findings(
        (
            policy != "noeviction",
            "danger" if has_memory_limit else "warning",
            f"maxmemory-policy {policy}",
            "the server deletes messages when it reaches its maxmemory",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
        ),
        (
            is_without_log,
            "warning" if save else "danger",
            f"appendonly no, save {save!r}",
            "a restart loses what was put, acked and cancelled since the last snapshot"
            if save
            else "a restart loses all messages",
            "CONFIG SET appendonly yes, and in redis.conf",
        ),
        (
            not is_without_log and fsync != "always",
            "warning",
            f"appendfsync {fsync}",
            f"when the machine fails, up to {lost_time} of confirmed changes is lost",
            "CONFIG SET appendfsync always, if that is too much",
        ),
        (
            0 < answer_bytes < LARGEST_ANSWER,
            "danger",
            f"client-output-buffer-limit normal {answer_bytes}",
            f"{ENDS_CONNECTIONS}, so bide does not use it",
            UNLIMITED,
        ),
    )


def answer_limit(config: Mapping[str, str]) -> int:
    """Return how many bytes a server sends to a client at once, at most; 0: without a limit."""
    # Four words for each kind of client: kind, hard limit, soft limit, seconds.
    words = config.get("client-output-buffer-limit", "").split()
    limits = dict(zip(words[::4], words[1::4], strict=False))
    return int(limits.get("normal", "0"))


def cut_off(config: Mapping[str, str]) -> list[Finding]:
    """Tell what a master does that is cut off from its replicas."""
    return findings(
        (
            config.get("min-replicas-to-write") == "0",
            "warning",
            "min-replicas-to-write 0",
            "a master that is cut off goes on making changes, which the failover then discards",
            "CONFIG SET min-replicas-to-write 1, on all servers and in redis.conf",
        ),
    )


def of_sentinels(facts: Mapping[str, Any], name: str) -> list[Finding]:
    """Return the findings on how sentinels watch a group.

    Args:
        facts: what SENTINEL MASTER tells.
        name: what they call the group.
    """
    down_ms, failover_ms = facts["down-after-milliseconds"], facts["failover-timeout"]
    count, quorum = facts["num-other-sentinels"] + 1, facts["quorum"]
    return findings(
        (
            count < 3,
            "danger",
            f"{count} sentinel{'s' * (count > 1)}",
            "if one of them is away, no other master is chosen, and the store stops",
            "run three or more, on different machines",
        ),
        (
            2 < count >= 2 * quorum,
            "warning",
            f"{quorum} of {count} sentinels are enough to give the master up",
            "a few that are cut off start a needless failover",
            f"SENTINEL SET {name} quorum {count // 2 + 1}",
        ),
        (
            failover_ms < FAILOVER_MS,
            "warning",
            f"failover-timeout {failover_ms}",
            "two sentinels may fail over one after the other, to a replica that lacks changes",
            f"SENTINEL SET {name} failover-timeout 180000, on each sentinel",
        ),
        (
            down_ms > 30_000,
            "warning",
            f"down-after-milliseconds {down_ms}",
            f"when the master fails, the store stops for more than {down_ms / 1000:.0f} s",
            f"SENTINEL SET {name} down-after-milliseconds 5000",
        ),
    )
