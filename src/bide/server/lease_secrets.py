"""The secret part of lease tokens.

A store numbers its leases, and numbers can be guessed. So a server that asks for tokens adds a
secret to each: an HMAC over queue, message and number, under a key that all servers of a store
share. Only a caller who was given the lease can settle it.
"""

import base64
import hmac
import secrets

import msgspec

from bide.lane.lane import Lane
from bide.model.commands import Find, Lease, Put
from bide.model.errors import LeaseLost
from bide.model.identity import RESERVED
from bide.model.message import Item
from bide.model.replies import Claimed, Found, expect
from bide.model.times import LATEST
from bide.server.large_bodies import LargeBodies, Stepwise

QUEUE = f"{RESERVED}/keys"

KEY = "leases"

SIZE = 16
"""Bytes of a secret."""

NO_LEASE = 0
"""The number of no lease: a store answers that the lease is over, and where the message is."""


class LeaseSecrets:
    """Sign leases, and check what callers settle.

    Args:
        lane: the way to the store, which keeps the key.
        large: lets others go on meanwhile.
    """

    def __init__(self, lane: Lane, large: LargeBodies) -> None:
        self._lane = lane
        self._large = large
        self._key: bytes | None = None

    async def signed(self, queue: str, reply: Claimed) -> Claimed:
        """Return the reply to a claim with the secrets of its leases.

        Args:
            queue: its name in the store.
            reply: as the store gave it.
        """
        if not reply.messages:
            return reply
        return await self._large.work(_signed(await self._known_key(), queue, reply))

    async def checked(self, queue: str, leases: list[Lease], *, trusted: bool) -> list[Lease]:
        """Return leases as the store knows them; one whose secret is wrong is no lease.

        Args:
            queue: its name in the store.
            leases: as the caller gave them.
            trusted: whether the caller may settle by the number alone.

        Raises:
            LeaseLost: a secret is missing.
        """
        return await self._large.work(_checked(await self._known_key(), queue, leases, trusted))

    async def _known_key(self) -> bytes:
        while self._key is None:
            (message,) = expect(Found, await self._lane.acall(Find(QUEUE, [KEY]))).messages
            if message is not None:
                self._key = message.data
            else:  # of several servers that make one at the same time, the first succeeds
                key = Item(KEY, secrets.token_bytes(32), json=False, at=LATEST)
                await self._lane.acall(Put(QUEUE, [key]))
        return self._key


def _signed(key: bytes, queue: str, reply: Claimed) -> Stepwise[Claimed]:
    messages = []
    for message in reply.messages:
        secret = _secret(key, queue, message.id, reply.token)
        messages.append(msgspec.structs.replace(message, secret=secret))
        yield
    return msgspec.structs.replace(reply, messages=messages)


def _checked(key: bytes, queue: str, leases: list[Lease], trusted: bool) -> Stepwise[list[Lease]]:
    found = []
    for lease in leases:
        if lease.secret is not None:
            right = _secret(key, queue, lease.id, lease.token)
            good = hmac.compare_digest(right.encode(), lease.secret.encode())
            found.append(Lease(lease.id, lease.token if good else NO_LEASE))
        elif trusted:
            found.append(lease)
        else:
            raise LeaseLost(
                f"the token {lease.token} of {lease.id!r} has no secret part; settle with the "
                "whole token as the claim gave it, such as 7.Wk3vQ9s...; an older client sends "
                "the number alone"
            )
        yield
    return found


def _secret(key: bytes, queue: str, id: str, number: int) -> str:
    text = f"{queue}\n{number}\n{id}".encode()  # neither queue nor number contains a line end
    digest = hmac.digest(key, text, "sha256")[:SIZE]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
