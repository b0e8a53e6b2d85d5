"""A node of a cluster that is silent, with nobody to take its place: the others go on."""

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import pytest

from bide.engines.redis import from_url, notifier
from bide.engines.redis.layout import shard_of
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import Claim, Configure, Queues
from bide.model.replies import Claimed, Names
from tests.cluster import RedisCluster, ask, eventually
from tests.servers import PATIENCE
from tests.system.engines.redis.spread import HOUR, SHARDS, ids, is_waited_for, one, put, slot

pytestmark = pytest.mark.process

SILENCE = 4
"""For so many seconds a node that is silent holds up who waits for its answer."""

RUN = 6
"""So many in a row that come in time are no chance."""


def test_a_shard_that_is_silent_does_not_stop_the_others(
    own_cluster: Callable[..., RedisCluster],
) -> None:
    cluster = own_cluster()
    engine = from_url(urlsplit(f"{cluster.url}?timeout=500ms&reconnect=300ms"))()
    one(engine, put("q", *ids(100), delay=1))
    silent = cluster.owner(slot("q", 0))
    gone = {shard for shard in range(SHARDS) if cluster.owner(slot("q", shard)) is silent}
    there = [id for id in ids(100) if shard_of(id, SHARDS) not in gone]
    assert silent.process is not None
    silent.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    taken: list[str] = []
    claims = 0
    while sorted(taken) != there or claims < 200:  # a node that is merely slow is passed over, too
        assert time.monotonic() < deadline, (claims, taken)  # it is not waited for each time
        taken += [message.id for message in one(engine, Claim("q", 5, HOUR, "w")).messages]
        claims += 1
    # Nor does it hold up one that comes later, whatever else there is on it.
    late = from_url(urlsplit(f"{cluster.url}?timeout=500ms&reconnect=60s"))()
    assert one(late, put("q", there[0])).outcomes[0].state == "leased"
    assert one(late, Queues("")) == Names(["q"])
    late.close()
    silent.process.send_signal(signal.SIGCONT)
    eventually(lambda: one(engine, Claim("q", 1, HOUR, "w")).messages)
    engine.close()


@pytest.mark.full
def test_who_waits_is_told_of_the_other_shards_while_one_is_silent(
    own_cluster: Callable[..., RedisCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "HEARTBEAT", 0.2)
    monkeypatch.setattr(notifier, "CHECK", 0.2)
    cluster = own_cluster()
    silent = cluster.owner(slot("q", 0))
    there = {n for n in range(SHARDS) if cluster.owner(slot("q", n)) is not silent}
    putter = from_url(urlsplit(cluster.url))()
    one(putter, Configure("q"))
    lane = Lane(opener(f"{cluster.url}?timeout={SILENCE}s"))
    late: list[float] = []
    enough = threading.Event()

    def work() -> None:
        while not enough.is_set():
            reply = lane.call(Claim("q", 1, HOUR, "w"), wait=20)
            assert isinstance(reply, Claimed)
            late.extend(time.time() - message.due / 1000 for message in reply.messages)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(partial(is_waited_for, cluster, "q"))
    assert silent.process is not None
    silent.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    # At first it holds up a claim for as long as the time-out; then it is to hold up none.
    for id in (id for id in ids(1000) if shard_of(id, SHARDS) in there):
        assert time.monotonic() < deadline, late
        if len(late) > RUN and max(late[-RUN:]) < SILENCE / 2:
            enough.set()
        one(putter, put("q", id, delay=50))
        thread.join(0.2)
        if not thread.is_alive():
            break
    silent.process.send_signal(signal.SIGCONT)
    eventually(lambda: ask(silent, "PUBSUB", "CHANNELS"))  # it is listened to again
    lane.close()
    putter.close()
