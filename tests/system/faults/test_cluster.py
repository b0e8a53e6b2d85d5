"""A master of a cluster dies, hangs or falls silent: a replica takes its place, and all go on."""

import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bide
from bide.engines.redis.layout import meta_key, shard_of, slot_of
from bide.testing.history import Journal, check, journals_in
from tests.cluster import RedisCluster, ask, eventually
from tests.contract.conformance.shards import conforms
from tests.servers import RedisServer
from tests.system.faults.worker import drain
from tests.system.faults.workload import Crew

pytestmark = pytest.mark.process

PROCESSES = 3
SHARDS = 4


@pytest.mark.full
def test_nothing_confirmed_is_lost_when_a_master_dies_or_is_silent(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    cluster = RedisCluster(tmp_path / "cluster", replicas=1)
    url = f"{cluster.url}?shards={SHARDS}&wait_replicas=1&timeout=2s&reconnect=20s"
    try:
        with Crew(url, tmp_path, PROCESSES, tolerant=True) as crew:
            for shard, ending in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
                crew.until_at_work()
                time.sleep(crew.chance.uniform(0, 0.5))  # a random point of whatever they are at
                slot = slot_of(meta_key("orders", shard))
                old = cluster.owner(slot)
                assert old.process is not None
                old.process.send_signal(ending)
                eventually(functools.partial(_has_another, cluster, slot, old))
                if ending == signal.SIGSTOP:
                    old.process.send_signal(signal.SIGCONT)
                else:
                    old.stop()
                    old.start()
                # Either way it becomes a replica of the one that took its place.
                eventually(functools.partial(_has_replica, cluster, slot, old))
            crew.until_at_work()
            crew.dismiss()
        conforms(url)
    finally:
        cluster.stop()


def _has_another(cluster: RedisCluster, slot: int, old: RedisServer) -> bool:
    return cluster.owner(slot, besides=old) is not old


def _has_replica(cluster: RedisCluster, slot: int, old: RedisServer) -> bool:
    return b"state=online" in ask(cluster.owner(slot, besides=old), "INFO", "replication")


SOON = 8.0
"""Seconds; it takes one or two, but for a machine that has other things to do."""


class Role:
    """Somebody who does the same again and again, whatever the store says to it.

    `done` is when what it did last to the shards of the master in question began.
    """

    def __init__(self, act: Callable[[], bool]) -> None:
        self._act = act
        self.done = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self) -> None:
        while not self._stopped.is_set():
            begin = time.monotonic()
            try:
                if self._act():
                    self.done = begin
            except bide.StoreError:
                pass
            time.sleep(0.01)

    def goes_on(self) -> bool:
        """Wait until it does something that it begins from now on; return whether that is soon."""
        now = time.monotonic()
        while self.done < now:
            if time.monotonic() > now + SOON:
                return False
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class Play:
    """One who puts, one who claims and one who waits, each as if in a process of its own."""

    def __init__(self, url: str, folder: Path, shards: set[int]) -> None:
        self._shards = shards
        self._number = 0
        self._folder = folder
        # Queues of another URL share no connection.
        self._orders = [bide.Queue("orders", f"{url}&reconnect=2{n}s") for n in range(3)]
        self._journals = [Journal(folder / f"{n}.journal") for n in range(3)]
        roles = {"puts": self._put, "claims": self._claim, "waits": self._wait}
        self._roles = {name: Role(act) for name, act in roles.items()}

    def _put(self) -> bool:
        self._number += 1
        id = f"m{self._number}"
        self._journals[0].tries("put", ids=[id])
        self._orders[0].put(1, id=id, attempts=10_000)
        self._journals[0].did("put", ids=[id])
        return shard_of(id, SHARDS) in self._shards

    def _claim(self) -> bool:
        return self._take(1, None)

    def _wait(self) -> bool:
        return self._take(2, 20.0)

    def _take(self, number: int, wait: float | None) -> bool:
        orders, journal = self._orders[number], self._journals[number]
        journal.tries("claim")
        deliveries = orders.claim(1, lease=2, wait=wait)
        for delivery in deliveries:
            messages = [{"id": delivery.id, "until": delivery.message.until}]
            journal.did("claim", now=delivery.claimed, token=delivery.token, messages=messages)
            journal.tries("ack", id=delivery.id, token=delivery.token)
            (outcome,) = orders.ack([delivery])
            facts = {"id": delivery.id, "token": delivery.token}
            journal.did("ack", **facts, done=outcome.done)
        return any(shard_of(delivery.id, SHARDS) in self._shards for delivery in deliveries)

    def held_up(self) -> list[str]:
        """Return who does nothing for long from now on."""
        return [name for name, role in self._roles.items() if not role.goes_on()]

    def end(self) -> None:
        for role in reversed(
            self._roles.values()
        ):  # who waits is given something to come back with
            role.stop()
        for orders in self._orders:
            orders.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    (tmp_path / "cluster").mkdir()
    cluster = RedisCluster(tmp_path / "cluster", replicas=2)  # one is left when one is promoted
    yield cluster
    cluster.stop()


@pytest.mark.full
def test_a_master_that_hangs_holds_up_nobody_for_long(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    slot = slot_of(meta_key("orders", 0))
    old = cluster.owner(slot)
    assert old.process is not None
    mine = {n for n in range(SHARDS) if cluster.owner(slot_of(meta_key("orders", n))) is old}
    url = f"{cluster.url}?shards={SHARDS}&wait_replicas=1&timeout=1s"
    (tmp_path / "journals").mkdir()
    play = Play(url, tmp_path / "journals", mine)
    try:
        assert play.held_up() == []
        old.process.send_signal(signal.SIGSTOP)
        eventually(lambda: cluster.owner(slot, besides=old) is not old)
        assert play.held_up() == []
        old.process.send_signal(signal.SIGCONT)
        eventually(lambda: b"master_link_status:up" in ask(old, "INFO", "replication"))
        eventually(lambda: b"name=bide" not in ask(old, "CLIENT", "LIST"))
        ask(old, "CONFIG", "RESETSTAT")
        for _ in range(3):
            assert play.held_up() == []
        assert b"fcall" not in ask(old, "INFO", "commandstats")  # nobody takes it for a master
    finally:
        old.process.send_signal(signal.SIGCONT)
        play.end()
    with bide.Queue("orders", url) as orders:
        drain(url, tmp_path / "journals")
        audit = orders.audit()
    assert audit, audit.problems
    violations = check(journals_in(tmp_path / "journals")).violations
    assert violations == [], "\n".join(map(str, violations))
