"""Tokens: who may do what in which namespace. They are kept in the store, as messages never due.

So all servers on a store know the same tokens, and one that was revoked is refused by each of them
at its next request. What is kept is a hash: a token is shown once, when it is made.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Find, Put, Scan
from bide.model.errors import InvalidArgument, Unsupported
from bide.model.identity import RESERVED, check_namespace
from bide.model.message import Item
from bide.model.moments import LATEST
from bide.model.replies import Found, Outcomes, Page
from bide.observing.heartbeat import is_register

__all__ = ["OPEN", "SCOPES", "Caller", "Scope", "Token", "Tokens"]

Scope = Literal["produce", "consume", "read", "admin"]

SCOPES: tuple[Scope, ...] = get_args(Scope)

QUEUE = f"{RESERVED}/tokens"

PREFIX = "bide"

MOST = 10_000
"""How many tokens a store may have."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token. The token itself is not."""

    id: str
    namespace: str | None
    """Whose queues it is for; `None`: those of the whole store."""
    scopes: tuple[Scope, ...]
    hash: str
    name: str = ""
    """What it is used for, in words."""
    created: int
    expires: int | None = None
    """From when on it is refused, in Unix milliseconds."""


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request, and what they may do."""

    namespace: str | None
    scopes: frozenset[str]
    token: str | None = None
    """The id of the token, for the log."""

    def may(self, scope: str) -> bool:
        """Tell whether a scope is among theirs; whoever may administer may do anything."""
        return scope in self.scopes or "admin" in self.scopes

    def full(self, queue: str) -> str:
        """Return the name of a queue of theirs in the store.

        Who has no namespace names those of all: shop/orders.

        Raises:
            InvalidArgument: the queue is nobody's.
        """
        if self.namespace is not None:
            return f"{self.namespace}/{queue}"
        if queue.startswith(f"{RESERVED}/"):
            raise InvalidArgument(
                f"queue={queue!r} is the server's own; make tokens with the URL of the store that "
                "it serves, and subscriptions at its own /v1/subscriptions"
            )
        return queue

    def own(self, full: str) -> str | None:
        """Return the name that a queue of the store has for them, `None` if it is not theirs."""
        namespace, _, queue = full.rpartition("/")
        if is_register(queue):
            return None
        if self.namespace is None:
            return full if namespace != RESERVED else None
        return queue if namespace == self.namespace else None


OPEN = Caller(None, frozenset(SCOPES))
"""Anybody, where no tokens are asked for."""


class Tokens:
    """The tokens of a store.

    Args:
        lane: the way to the store.
        clock: what expiry is measured by.
    """

    def __init__(self, lane: Lane, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lane = lane
        self._clock = clock

    def create(
        self,
        namespace: str | None,
        scopes: Sequence[str],
        *,
        expires_ms: int | None = None,
        name: str = "",
    ) -> tuple[str, Token]:
        """Make a token; return it, for the only time, and what is known of it.

        Raises:
            InvalidArgument: the namespace or a scope cannot be.
        """
        if namespace is not None:
            check_namespace(namespace)
            if namespace == RESERVED:
                raise InvalidArgument(f"namespace={namespace!r} is bide's own; take another name")
        wrong = [scope for scope in scopes if scope not in SCOPES]
        if wrong or not scopes:
            raise InvalidArgument(
                f"scopes={wrong or list(scopes)!r} must be of {', '.join(SCOPES)}"
            )
        self._must_find()
        now = self._clock.now()
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        text = f"{PREFIX}_{id}_{secret}"
        token = Token(
            id=id,
            namespace=namespace,
            scopes=tuple(scope for scope in SCOPES if scope in scopes),
            hash=_hash(text),
            name=name,
            created=now,
            expires=None if expires_ms is None else now + expires_ms,
        )
        item = Item(id, msgspec.json.encode(token), at=LATEST)
        self._lane.call(Put(QUEUE, [item]))
        return text, token

    def listed(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        self._must_find()
        tokens: list[Token] = []
        scan = Scan(QUEUE, limit=MOST)
        while True:
            page = self._lane.call(scan)
            assert isinstance(page, Page)
            tokens += [msgspec.json.decode(m.data, type=Token) for m in page.messages]
            if page.cursor is None:
                return tokens
            scan = msgspec.structs.replace(scan, cursor=page.cursor)

    async def exist(self) -> bool:
        """Tell whether there are any, good or expired."""
        reply = await self._lane.acall(Scan(QUEUE, limit=1))
        assert isinstance(reply, Page)
        return bool(reply.messages)

    def revoke(self, id: str) -> bool:
        """Refuse a token from now on; return whether there was one."""
        self._must_find()
        reply = self._lane.call(Cancel(QUEUE, [id]))
        assert isinstance(reply, Outcomes)
        return bool(reply.outcomes[0])

    async def caller(self, text: str) -> Caller | None:
        """Return who a token belongs to, `None` when it is not good (any more)."""
        id = _id_of(text)
        found = None
        if id is not None:
            reply = await self._lane.acall(Find(QUEUE, [id]))
            assert isinstance(reply, Found)
            (found,) = reply.messages
        token = _NOBODY if found is None else msgspec.json.decode(found.data, type=Token)
        # Compared in any case, and in a time that does not tell how much of it was right.
        right = hmac.compare_digest(_hash(text), token.hash)
        if not right or (token.expires is not None and token.expires <= self._clock.now()):
            return None
        return Caller(token.namespace, frozenset(token.scopes), token.id)

    def _must_find(self) -> None:
        if not self._lane.capabilities.random_access:
            raise Unsupported("this store cannot be looked into, so it cannot keep tokens")


_NOBODY = Token(id="", namespace=None, scopes=(), hash="0" * 64, created=0)


def _hash(text: str) -> str:
    # The secret has 256 bits of chance: nothing is gained by a slow hash.
    return hashlib.sha256(text.encode()).hexdigest()


def _id_of(text: str) -> str | None:
    prefix, _, rest = text.partition("_")
    id, _, secret = rest.partition("_")
    plain = len(id) == 12 and id.isalnum() and id.isascii()
    return id if prefix == PREFIX and plain and secret else None
