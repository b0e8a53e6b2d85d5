"""How long a claim in vain says to wait: to the moment itself, not to the millisecond behind it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bide.engines.registry import opener
from bide.model.commands import Claim, Put
from bide.model.message import Item
from bide.model.replies import Claimed

LOOKS = 20


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_whoever_waits_as_told_comes_in_time(
    kind: str, tmp_path: Path, redis_url: Callable[[], str]
) -> None:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/q.db",
    }
    engine = opener(urls.get(kind, redis_url)())()
    try:
        due = time.time_ns() // 1_000_000 + 60_000
        engine.execute([Put("q", [Item("a", b"1", at=due)])])
        for _ in range(LOOKS):
            before = time.time() * 1000
            (reply,) = engine.execute([Claim("q", 1, 1_000, "me")])
            after = time.time() * 1000
            assert isinstance(reply, Claimed)
            assert reply.next is not None
            assert before - 0.01 < due - reply.next < after + 0.01  # as of some moment in between
    finally:
        engine.close()
