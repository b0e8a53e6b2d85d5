"""Puts and claims of messages whose groups are the first letters of their ids."""

from typing import Any

from bide.engines.postgres import PostgresEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed, Counts


def put(engine: PostgresEngine, text: str, queue: str = "q", **fields: Any) -> None:
    items = [Item(id, b"1", group=id[0], **fields) for id in text.split()]
    engine.execute([cmd.Put(queue, items)])


def claim(engine: PostgresEngine, count: int = 10, queue: str = "q") -> Claimed:
    (reply,) = engine.execute([cmd.Claim(queue, count, 60_000, "w")])
    assert isinstance(reply, Claimed)
    return reply


def ids(claimed: Claimed) -> list[str]:
    return [message.id for message in claimed.messages]


def leases(claimed: Claimed) -> list[cmd.Lease]:
    return [cmd.Lease(message.id, claimed.token) for message in claimed.messages]


def counts(engine: PostgresEngine) -> Counts:
    (reply,) = engine.execute([cmd.Count("q", recount=True)])
    assert isinstance(reply, Counts)
    assert (reply.recount, reply.strays) == (reply.sizes, 0)
    return reply
