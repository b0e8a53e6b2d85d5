"""Processes that stop, die and wake each other around one file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import bide
from tests.unit.lane.commands import PATIENCE, spawn
from tests.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bide.db"


@pytest.fixture
def orders(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("orders", url, holder="the quick one") as orders:
        yield orders


@contextmanager
def holder(url: str, lease: float) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.system.faults.claim_holder", url, str(lease)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]", word: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return line(process)


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
def test_who_was_stopped_until_the_lease_had_lapsed_cannot_settle_any_more(
    orders: bide.Queue, url: str, verb: str
) -> None:
    orders.put(1, id="a")
    with holder(url, lease=0.2) as slow:
        assert line(slow) == "a"
        os.kill(slow.pid, signal.SIGSTOP)
        (mine,) = orders.claim(wait=PATIENCE)  # as soon as the lease has lapsed
        assert mine.attempt == 2
        os.kill(slow.pid, signal.SIGCONT)
        answer = tell(slow, verb)
        assert answer.startswith("LeaseLost: a could not be")
        assert "it went to the quick one" in answer
    mine.ack()
    counts = orders.counts()
    assert (counts.flow.acked, counts.flow.lapsed, counts.sizes.total) == (1, 1, 0)
    assert orders.audit()


def test_who_comes_back_after_the_other_has_acked_settles_nothing_twice(
    orders: bide.Queue, url: str
) -> None:
    orders.put(1, id="a")
    with holder(url, lease=0.2) as slow:
        assert line(slow) == "a"
        os.kill(slow.pid, signal.SIGSTOP)
        orders.claim(wait=PATIENCE)[0].ack()
        os.kill(slow.pid, signal.SIGCONT)
        assert "the message was settled already" in tell(slow, "ack")
    assert orders.counts().flow.acked == 1


def test_who_was_stopped_and_was_quick_enough_has_lost_nothing(
    orders: bide.Queue, url: str
) -> None:
    orders.put(1, id="a")
    with holder(url, lease=60) as slow:
        assert line(slow) == "a"
        os.kill(slow.pid, signal.SIGSTOP)
        assert orders.claim() == []
        os.kill(slow.pid, signal.SIGCONT)
        assert tell(slow, "ack") == "done"
    assert orders.counts().flow.acked == 1


def test_what_a_killed_holder_held_goes_to_who_waits_when_the_lease_lapses(
    orders: bide.Queue, url: str
) -> None:
    orders.put(1, id="a")
    with holder(url, lease=1.5) as slow:
        assert line(slow) == "a"
        held = orders.get("a")
        assert held is not None
        assert held.holder == "the slow one"
        slow.kill()
    (mine,) = orders.claim(wait=PATIENCE)
    assert held.until is not None
    assert mine.claimed >= held.until
    assert mine.message.error is not None
    assert "the lease lapsed" in mine.message.error


def new_bell(bells: Path, before: set[Path]) -> bool:
    return bool(set(bells.glob("*")) - before)


def test_a_put_in_one_process_wakes_a_claim_in_another(orders: bide.Queue, url: str) -> None:
    bells = Path(url.removeprefix("sqlite:///") + "-bell")
    # It looks again by itself once a second, so most are quick only if they are woken: being lucky
    # once proves nothing, and on a busy machine being late once neither.
    lateness: list[int] = []
    deadline = time.monotonic() + PATIENCE
    while 2 * sum(late < 200 for late in lateness) < len(lateness) + 4:
        assert time.monotonic() < deadline, lateness
        id, before = f"m{len(lateness)}", set(bells.glob("*"))
        with holder(url, lease=30) as waiting:
            until(partial(new_bell, bells, before))
            time.sleep(0.1)  # let it park; if it has not, it finds the message right away
            orders.put(1, id=id)
            assert line(waiting) == id
        message = orders.get(id)
        assert message is not None
        assert message.until is not None
        lateness.append(message.until - 30_000 - message.due)


def test_many_waiting_processes_share_what_falls_due(orders: bide.Queue, url: str) -> None:
    claims = [spawn(bide_claim, url) for _ in range(4)]
    orders.put_many([bide.NewMessage(body=1, id=f"m{n}", delay=0.3) for n in range(4)])
    assert sorted(claim.result(PATIENCE) for claim in claims) == ["m0", "m1", "m2", "m3"]


def bide_claim(url: str) -> str:
    """Claim through a connection and a notifier of one's own."""
    with bide.Queue("orders", f"{url}?timeout={time.monotonic_ns() % 1000 + 30_000}ms") as mine:
        return mine.claim(wait=PATIENCE)[0].id
