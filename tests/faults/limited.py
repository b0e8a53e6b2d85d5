"""Processes that work on a limited queue until they die, and watch that no limit is exceeded.

Each notes what it holds on a board, from behind the claim to before the ack: what the board shows
is leased at the same time. What is noted counts until its lease is over.
"""

import random
import time

import redis

import bide
from bide.model.message import Message

__all__ = ["LIMIT", "PER_GROUP", "QUEUE", "violations", "work"]

QUEUE = "orders"
LIMIT, PER_GROUP = 5, 2
LEASE = 0.5
VIOLATIONS = "violations"


def work(url: str, board_path: str, name: str, seed: int) -> None:
    """Claim, ack, release and forget at random, for ever."""
    chance = random.Random(seed)
    board = redis.Redis(unix_socket_path=board_path)
    with bide.Queue(QUEUE, url, holder=name) as orders:
        while True:
            for delivery in orders.claim(chance.choice((1, 3, 9)), lease=LEASE, wait=1):
                message = delivery.message
                _note(board, message, delivery.claimed)
                time.sleep(chance.random() / 200)  # the work
                draw = chance.random()
                if draw < 0.02:
                    continue  # forgotten: its lease lapses
                for group in _groups(message):
                    board.zrem(group, message.id)
                orders.release([delivery]) if draw < 0.1 else orders.ack([delivery])


def _groups(message: Message) -> list[str]:
    return ["all", *([] if message.group is None else [f"group {message.group}"])]


def _note(board: "redis.Redis", message: Message, now: int) -> None:
    for group in _groups(message):
        with board.pipeline() as both:
            both.zadd(group, {message.id: message.until or 0})
            both.zcount(group, f"({now}", "+inf")
            _, held = both.execute()
        if held > (LIMIT if group == "all" else PER_GROUP):
            board.rpush(VIOLATIONS, f"{held} of {group} at {now}, with {message.id}")


def violations(board: "redis.Redis") -> list[bytes]:
    """Return what was more than allowed."""
    found: list[bytes] = board.lrange(VIOLATIONS, 0, -1)  # type: ignore[assignment]
    return found
