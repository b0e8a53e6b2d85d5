"""A mover is killed with -9 again and again, while both stores are in use."""

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path

import pytest

import bide
from bide.testing.history import JournalFile
from tests.effort import effort
from tests.system.faults.moving import keep_moving, produce, serve

pytestmark = pytest.mark.process

SECONDS = effort(2, 12)
BOUND = 60.0
LEASE = 0.3


def test_nothing_is_lost_or_doubled_however_often_the_mover_is_killed(tmp_path: Path) -> None:
    old, new = (f"sqlite:///{tmp_path}/{name}.db" for name in ("old", "new"))
    for url in (old, new):
        with bide.Queue("orders", url) as queue:
            queue.counts()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.system.faults.moving"])
    chance = random.Random()
    others = [
        context.Process(target=produce, args=(old, "p1", 1, tmp_path), daemon=True),
        context.Process(target=serve, args=(old, "w-old", tmp_path), daemon=True),
        context.Process(target=serve, args=(new, "w-new", tmp_path), daemon=True),
    ]
    killed = 0
    begin = time.monotonic()
    try:
        for process in others:
            process.start()
        while (passed := time.monotonic() - begin) < SECONDS or (
            passed < BOUND and (killed <= 5 or _handled(tmp_path).total() <= 100)
        ):
            mover = context.Process(
                target=keep_moving, args=(old, new, LEASE, tmp_path), daemon=True
            )
            mover.start()
            time.sleep(LEASE + chance.uniform(0.05, 0.4))  # a random point of whatever it is at
            assert mover.is_alive(), f"the mover died by itself: exit code {mover.exitcode}"
            mover.kill()
            mover.join()
            killed += 1
        others[0].kill()
        others[0].join()
        assert all(process.is_alive() for process in others[1:])
    finally:
        for process in others:
            process.kill()
            process.join()
    with bide.Queue("orders", old) as source, bide.Queue("orders", new) as target:
        time.sleep(LEASE)
        moved = bide.move(source, target)
        # What the workers held when they were killed is all that may be left.
        assert moved.left == moved.held <= 10
        assert source.audit(), source.audit().problems
        assert target.audit(), target.audit().problems
        assert target.counts().sizes.dead == 0
        waiting = Counter(m.id for queue in (source, target) for m in queue.scan())
        assert set(waiting.values()) <= {1}, "a message is in both stores"
        held = {m.id for queue in (source, target) for m in queue.scan("leased")}
    events = [event for path in tmp_path.glob("*.journal") for event in JournalFile(path)]
    confirmed = {id for event in events if event.get("did") == "put" for id in event["ids"]}
    cancelled = {e["id"] for e in events if e.get("did") == "cancel" and e["done"]}
    unsure = {e["id"] for e in events if e.get("tries") == "cancel"} - {
        e["id"] for e in events if e.get("did") == "cancel"
    }
    handled = _handled(tmp_path)
    assert confirmed - handled.keys() - cancelled - unsure - waiting.keys() == set(), "lost"
    assert [id for id, count in handled.items() if count > 1] == [], "handled twice"
    assert handled.keys() & waiting.keys() <= held, "handled, and still there"
    assert cancelled & (handled.keys() | waiting.keys()) == set(), "a cancel was not final"
    assert killed > 5
    assert len(handled) > 100


def _handled(folder: Path) -> Counter[str]:
    events = (event for path in folder.glob("w-*.journal") for event in JournalFile(path))
    return Counter(event["id"] for event in events if event.get("did") == "handled")
