"""Processes that work on a limited queue until they die, and note when they held what.

A message is held from its claim, by the store's clock, until right before the command that ends the
lease, or else until the lease is over. What the notes of all processes say is looked at afterwards,
so it does not matter how late a busy machine lets a process write them.
"""

import json
import random
import time

import redis

import bide
from bide.queue.delivery import Delivery

__all__ = ["LIMIT", "PER_GROUP", "QUEUE", "violations", "work"]

QUEUE = "orders"
LIMIT, PER_GROUP = 5, 2
LEASE = 0.5
CLAIMS, ENDS = "claims", "ends"


def work(url: str, board_path: str, name: str, seed: int) -> None:
    """Claim, ack, release and forget at random, for ever."""
    chance = random.Random(seed)
    board = redis.Redis(unix_socket_path=board_path)
    with bide.Queue(QUEUE, url, holder=name) as orders:
        while True:
            for delivery in orders.claim(chance.choice((1, 3, 9)), lease=LEASE, wait=1):
                message = delivery.message
                held = [message.id, message.group, delivery.claimed, message.until]
                board.hset(CLAIMS, _key(delivery), json.dumps(held))
                time.sleep(chance.random() / 200)  # the work
                draw = chance.random()
                if draw < 0.02:
                    continue  # forgotten: its lease lapses
                board.hset(ENDS, _key(delivery), time.time_ns() // 1_000_000)
                orders.release([delivery]) if draw < 0.1 else orders.ack([delivery])


def _key(delivery: Delivery) -> str:
    return f"{delivery.message.id} {delivery.token}"


def violations(board: "redis.Redis") -> list[str]:
    """Return when more was held at the same time than allowed."""
    claims: dict[bytes, bytes] = board.hgetall(CLAIMS)  # type: ignore[assignment]
    ends: dict[bytes, bytes] = board.hgetall(ENDS)  # type: ignore[assignment]
    changes: list[tuple[int, int, str]] = []
    for key, held in claims.items():
        _, group, start, until = json.loads(held)
        end = min(until, int(ends.get(key, until)))
        for name in ("all", *([] if group is None else [f"group {group}"])):
            changes += [(start, 1, name), (max(start, end), -1, name)]
    now: dict[str, int] = {}
    found = []
    for moment, change, name in sorted(changes):  # at a moment the ends come first
        now[name] = now.get(name, 0) + change
        if now[name] > (LIMIT if name == "all" else PER_GROUP):
            found.append(f"{now[name]} of {name} at {moment}")
    assert claims, "nothing was claimed"
    return found
