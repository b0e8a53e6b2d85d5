"""How late messages are claimed, and what it costs to wait for what is far off."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import bide
from benchmarks.core.store import BODY
from benchmarks.figure import Figure
from benchmarks.redis.store import PENDING, fill, other, server_cpu, store
from bide import Closed

__all__ = ["MEASUREMENTS", "SECONDS", "produce"]

SECONDS = 6
IDLE_SECONDS = 10
CROWD = 200


def lateness() -> Iterator[Figure]:
    """Messages at an even pace, put by this process and claimed by another."""
    for rate, half, all_but in ((200, 1.0, 3.0), (5_000, None, 15.0)):
        total = rate * SECONDS
        with store() as (queue, _), bide.Queue("late", queue.url) as putter:
            putter.counts()
            with other("take", queue.url, total) as result:
                produce(putter, rate, total)
                late = result()
        name = f"lateness at {rate:,}/s"
        goal = "" if half is None else f"< {half:g} ms"
        met = None if half is None else late["p50"] < half
        yield Figure(f"{name}, p50", late["p50"], "ms", goal=goal, met=met)
        goal = f"< {all_but:g} ms"
        yield Figure(f"{name}, p99", late["p99"], "ms", goal=goal, met=late["p99"] < all_but)


def produce(queue: bide.Queue, rate: int, total: int) -> None:
    """Put messages due in half a second to two seconds, at an even pace: some at a time if many."""
    begin, at_once = time.monotonic(), max(1, rate // 200)
    for number in range(0, total, at_once):
        time.sleep(max(0, begin + number / rate - time.monotonic()))
        delays = [0.5 + (number + more) * 7919 % 1500 / 1000 for more in range(at_once)]
        queue.put_many([bide.NewMessage(body=BODY, delay=delay) for delay in delays])


def idle() -> Iterator[Figure]:
    """A claimer that waits while 100,000 messages are far off."""
    with store() as (queue, client):
        fill(queue, PENDING, "30d")
        queue.claim(1, wait=1)
        before = client.info("commandstats")["cmdstat_fcall"]["calls"]
        queue.claim(1, wait=IDLE_SECONDS)
        after = client.info("commandstats")["cmdstat_fcall"]["calls"]
    rate = (after - before) / IDLE_SECONDS
    # One more for the claim itself, when it comes and when it goes.
    met = after - before <= IDLE_SECONDS + 2
    yield Figure("commands of an idle claimer, 100 k pending", rate, "/s", goal="1 /s", met=met)


def crowd() -> Iterator[Figure]:
    """Two hundred claimers on connections of their own, all waiting for one queue."""
    with store() as (queue, client), ExitStack() as opened:
        fill(queue, PENDING, "30d")
        took: list[str] = []
        # URLs that read differently: each has a lane of its own, as if in a process of its own.
        for number in range(CROWD):
            waiter = opened.enter_context(
                bide.Queue("work", f"{queue.url}?timeout={5000 + number}ms")
            )
            threading.Thread(target=_wait, args=(waiter, took)).start()
        while client.zcard("bide:{work#0}:waiters") < CROWD:
            time.sleep(0.1)
        time.sleep(2)
        client.config_resetstat()
        spent = server_cpu(client)
        time.sleep(IDLE_SECONDS)
        share = (server_cpu(client) - spent) / IDLE_SECONDS * 100
        looks = _calls(client) / IDLE_SECONDS / CROWD
        client.config_resetstat()
        begin = time.monotonic()
        queue.put_many([BODY] * 20)
        while len(took) < 20:
            time.sleep(0.001)
        seconds = time.monotonic() - begin
        calls = _calls(client) - CROWD * seconds
    name = f"{CROWD} idle claimers, 100 k pending"
    yield Figure(f"{name}: commands of each", looks, "/s", goal="<= 1 /s", met=looks <= 1.01)
    yield Figure(f"{name}: the server's processor", share, "%")
    # The put, a claim and an ack of each message, and whom each claim lets look in turn.
    name = f"20 puts among {CROWD} claimers: commands beside the looks"
    yield Figure(name, calls, "", goal="<= 61", met=calls <= 61)


def _calls(client: Any) -> float:
    return float(client.info("commandstats")["cmdstat_fcall"]["calls"])


def _wait(queue: bide.Queue, took: list[str]) -> None:
    with suppress(Closed):
        while True:
            for delivery in queue.claim(1, wait=60):
                delivery.ack()
                took.append(delivery.id)


MEASUREMENTS = (lateness, idle, crowd)
