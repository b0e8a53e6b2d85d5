"""What an engine remembers of queues is bounded: callers choose their names, which have no end."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bide.engines import bounded_dict
from bide.engines.registry import opener
from bide.model.commands import Cancel, Claim, Delete, Find, Put
from bide.model.message import Item

MOST, NAMES = 20, 200


def names_within(root: Any) -> set[str]:
    """Return the names of queues that an object holds on to, in whatever it is made of."""
    found: set[str] = set()
    seen, left = {id(root): root}, [root]
    while left:
        last = left.pop()
        texts = list(last) if isinstance(last, dict) else []  # which are no referents of it
        for one in (*texts, *gc.get_referents(last)):
            if isinstance(one, str) and one.startswith("queue-"):
                found.add(one)
            elif id(one) not in seen and not isinstance(one, type) and not callable(one):
                seen[id(one)] = one
                left.append(one)
    return found


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
def test_queues_that_are_gone_are_forgotten(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_dict, "MOST", MOST)
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/q.db",
    }
    url = urls[kind]() if kind in urls else request.getfixturevalue(f"{kind}_url")()
    engine = opener(url)()
    notifier = engine.notifier()
    try:
        for number in range(NAMES):
            queue = f"queue-{number}"
            engine.execute([Claim(queue, 1, 1_000, "w"), Find(queue, ["a"])])
            engine.execute([Put(queue, [Item("a", b"1")])])
            engine.execute([Cancel(queue, ["a"]), Delete(queue)])
        assert len(names_within(engine)) <= 2 * MOST
        engine.execute([Put("queue-0", [Item("a", b"1")])])
        (reply,) = engine.execute([Claim("queue-0", 1, 1_000, "w")])
        assert [message.id for message in reply.messages] == ["a"]  # type: ignore[union-attr]
    finally:
        if notifier is not None:
            notifier.close()
            notifier.listen()  # which lets go of its connection
        engine.close()
