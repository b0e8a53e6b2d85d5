"""Tokens: who may do what in which namespace. They are kept in the store, as messages never due.

So all servers of a store know the same tokens, and refuse a revoked one from the next request on.
The store keeps hashes: a token is shown once, when it is created or rotated.

Tokens of leases have a secret part. A store numbers its leases, and numbers can be guessed. So a
server that requires tokens adds an HMAC over queue, message and number to each, with a key that all
servers of a store share. Only the caller of the claim can settle the lease.
"""

import base64
import hashlib
import hmac
import secrets
import sys
from collections.abc import Callable, Sequence

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock
from bide.lane.lane import Lane
from bide.lane.steps import first_of, run_steps
from bide.model.commands import Cancel, Find, Lease, Put, Scan
from bide.model.errors import InvalidArgument, LeaseLost
from bide.model.identity import SERVER_NAMESPACE, check_namespace
from bide.model.internal_queues import InternalQueue
from bide.model.limits import MAX_TOKEN_NAME
from bide.model.message import Item, Message
from bide.model.replies import Claimed, Found, Outcomes, Page, expect
from bide.model.times import LATEST
from bide.server.access.rights import ALL_QUEUES, Caller, Right, check_patterns, check_rights
from bide.server.limits.request_bodies import LargeBodies

QUEUE = InternalQueue.TOKENS.value

PREFIX = "bide"

TOKENS_PER_SCAN = 10_000
"""How many tokens are read at a time."""

LIFETIME = 90 * 86_400_000
"""Milliseconds for which a token is valid by default."""

SAME = -1
"""A rotated token has the same lifetime as before."""

USE_EVERY = 60_000
"""The minimum number of milliseconds between two writes of a token's last use."""


class Former(msgspec.Struct, frozen=True):
    """The secret of a token before its rotation."""

    hash: str
    """The SHA-256 of the whole token, in hexadecimal digits."""
    until: int
    """When it expires, in Unix milliseconds."""


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a token in the store: all but its secret."""

    id: str
    namespace: str | None
    """The namespace of the queues that it is for; `None`: the whole store."""
    rights: tuple[Right, ...] = ()
    queues: tuple[str, ...] = ALL_QUEUES
    """Patterns of the queues that the rights are for."""
    hash: str
    """The SHA-256 of the whole token, in hexadecimal digits."""
    name: str = ""
    """A name for its purpose."""
    created: int
    """When its secret was made, in Unix milliseconds."""
    expires: int | None = None
    """When it expires, in Unix milliseconds."""
    used: int | None = None
    """When it was last used, in Unix milliseconds, to about a minute."""
    former: tuple[Former, ...] = ()
    """Earlier secrets that are still accepted."""

    def valid_hashes(self, now: int) -> list[str]:
        """Return the hashes of the secrets that are valid now."""
        hashes = [self.hash] if self.expires is None or now < self.expires else []
        return hashes + [secret.hash for secret in self.former if now < secret.until]


class Tokens:
    """The tokens of a store.

    Args:
        lane: the lane of the store.
        clock: the clock by which tokens expire.
    """

    def __init__(self, lane: Lane, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lane = lane
        self._clock = clock
        self._uses_to_write: dict[str, tuple[Token, str]] = {}
        """By id: tokens whose last use is to be written, with the versions of their messages."""

    def create(
        self,
        namespace: str | None,
        rights: Sequence[str],
        *,
        queues: Sequence[str] = ALL_QUEUES,
        expires_ms: int | None = LIFETIME,
        name: str = "",
    ) -> tuple[str, Token]:
        """Create a token; return the token, which is not shown again, and its record.

        Args:
            namespace: the namespace of the queues that it is for; `None`: the whole store.
            rights: its rights.
            queues: patterns of the queues that it is for.
            expires_ms: for how many milliseconds it is valid; `None`: until it is revoked.
            name: a name for its purpose.

        Raises:
            InvalidArgument: one of these is not valid, or another token has the name.
        """
        if namespace is not None:
            check_namespace(namespace)
            if namespace == SERVER_NAMESPACE:
                raise InvalidArgument(f"namespace={namespace!r} is bide's own; choose another name")
        if len(name) > MAX_TOKEN_NAME:
            raise InvalidArgument(f"name has {len(name)} characters; {MAX_TOKEN_NAME} is the most")
        allowed = check_rights(rights)
        patterns = check_patterns(queues, namespace)
        if name and any(token.name == name for token in self.listed()):
            raise InvalidArgument(
                f"name={name!r} is the name of another token; rotate or revoke that one, or choose "
                "another name"
            )
        id, now = secrets.token_hex(6), self._clock.now()
        text, digest = _new_secret(id)
        token = Token(
            id=id,
            namespace=namespace,
            rights=allowed,
            queues=patterns,
            hash=digest,
            name=name,
            created=now,
            expires=None if expires_ms is None else now + expires_ms,
        )
        self._lane.call(Put(QUEUE, [_item(token)]))
        return text, token

    def rotate(
        self, name: str, *, overlap_ms: int = 0, expires_ms: int | None = SAME
    ) -> tuple[str, Token] | None:
        """Give a token a new secret; return the new token, `None` if there is no such token.

        Args:
            name: its name or id.
            overlap_ms: for how many milliseconds the former secret stays valid.
            expires_ms: for how many milliseconds the new one is valid; `None`: until it is revoked.

        Raises:
            InvalidArgument: several tokens have the name.
        """
        while True:
            if (token := self._token_named(name)) is None:
                return None
            # Again by its id, for the version of its message.
            (message,) = expect(Found, self._lane.call(Find(QUEUE, [token.id]))).messages
            if message is None:
                return None
            text, new_token = self._rotated(_decode(message.data), overlap_ms, expires_ms)
            put = Put(QUEUE, [_item(new_token)], "replace", message.version)
            (was_replaced,) = expect(Outcomes, self._lane.call(put)).outcomes
            if was_replaced:
                return text, new_token
            # The last use of the token was written meanwhile: try again with that version.

    def _rotated(self, old: Token, overlap_ms: int, expires_ms: int | None) -> tuple[str, Token]:
        """Return a new token and its record, which replaces `old`."""
        now = self._clock.now()
        text, digest = _new_secret(old.id)
        lifetime = expires_ms
        if expires_ms == SAME:
            lifetime = None if old.expires is None else old.expires - old.created
        former: list[Former] = []
        if overlap_ms:
            overlap_end = now + overlap_ms
            until = overlap_end if old.expires is None else min(overlap_end, old.expires)
            former = [*old.former, Former(old.hash, until)]
        return text, msgspec.structs.replace(
            old,
            hash=digest,
            created=now,
            expires=None if lifetime is None else now + lifetime,
            former=tuple(secret for secret in former if secret.until > now),
        )

    def listed(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        messages = run_steps(
            first_of(Scan(QUEUE, limit=TOKENS_PER_SCAN), sys.maxsize), self._lane.call
        )
        tokens = [_decode(message.data) for message in messages]
        return sorted(tokens, key=lambda token: token.created)

    async def exist(self) -> bool:
        """Tell whether there are any tokens, expired ones included."""
        return bool(expect(Page, await self._lane.acall(Scan(QUEUE, limit=1))).messages)

    def revoke(self, name: str) -> Token | None:
        """Revoke a token by its name or id; return its record, `None` if there is no such token.

        Raises:
            InvalidArgument: several tokens have the name.
        """
        if (token := self._token_named(name)) is None:
            return None
        (was_cancelled,) = expect(Outcomes, self._lane.call(Cancel(QUEUE, [token.id]))).outcomes
        return token if was_cancelled else None

    async def caller(self, text: str) -> Caller | None:
        """Return the caller of a token, `None` if it is not valid."""
        digest = _hash(text)

        def proves(token: Token, now: int) -> bool:
            return any(
                hmac.compare_digest(digest, valid_hash) for valid_hash in token.valid_hashes(now)
            )

        return await self.admitted(_id_of(text), proves)

    async def known(self, text: str) -> Token | None:
        """Return the record of a token; `None` for other texts, such as a JWT."""
        id = _id_of(text)
        message = None if id is None else await self._find(id)
        return None if message is None else _decode(message.data)

    async def admitted(self, id: str | None, proves: Callable[[Token, int], bool]) -> Caller | None:
        """Return the caller of a token, `None` without proof of the token.

        Args:
            id: the id of the token; `None`: the caller sent something else.
            proves: returns whether the proof is right for a token at a time in Unix milliseconds.
        """
        message = None if id is None else await self._find(id)
        # An unknown id is compared too, so that the time of the answer does not tell which exist.
        token = _UNKNOWN_TOKEN if message is None else _decode(message.data)
        now = self._clock.now()
        if not proves(token, now) or message is None:
            return None
        if token.used is None or now - token.used >= USE_EVERY:
            self._uses_to_write[token.id] = (
                msgspec.structs.replace(token, used=now),
                message.version,
            )
        return Caller(token.namespace, frozenset(token.rights), token.queues, token.id, token.name)

    async def _find(self, id: str) -> Message | None:
        (message,) = expect(Found, await self._lane.acall(Find(QUEUE, [id]))).messages
        return message

    async def write_uses(self) -> None:
        """Write when tokens were last used, except for tokens that were changed or revoked."""
        uses, self._uses_to_write = self._uses_to_write, {}
        for token, version in uses.values():
            await self._lane.acall(Put(QUEUE, [_item(token)], "replace", version))

    def _token_named(self, name: str) -> Token | None:
        """Return the token with a name or id, `None` if there is none.

        Raises:
            InvalidArgument: several tokens have the name.
        """
        tokens = [token for token in self.listed() if name in (token.id, token.name)]
        if len(tokens) > 1:
            ids = ", ".join(token.id for token in tokens)
            raise InvalidArgument(f"several tokens have the name {name!r}; give an id: {ids}")
        return tokens[0] if tokens else None


_UNKNOWN_TOKEN = Token(id="", namespace=None, hash="0" * 64, created=0)
"""A token that no text is."""


def _item(token: Token) -> Item:
    """Return the message that keeps a token; it is never due."""
    return Item(token.id, msgspec.json.encode(token), at=LATEST)


_decode = msgspec.json.Decoder(Token).decode


def _new_secret(id: str) -> tuple[str, str]:
    """Return a token and its hash."""
    text = f"{PREFIX}_{id}_{secrets.token_urlsafe(32)}"
    return text, _hash(text)


def _id_of(text: str) -> str | None:
    """Return the id in a token, `None` for other texts."""
    if text.count("_") < 2:
        return None
    prefix, id, secret = text.split("_", 2)
    is_valid_id = len(id) == 12 and id.isalnum() and id.isascii()
    return id if prefix == PREFIX and is_valid_id and secret else None


def _hash(text: str) -> str:
    # The secret has 256 random bits: a slow hash gains nothing.
    return hashlib.sha256(text.encode()).hexdigest()


KEYS_QUEUE = InternalQueue.KEYS.value

KEY_ID = "leases"

SECRET_BYTES = 16
"""Bytes of a secret."""

NO_LEASE = 0
"""The number of no lease: the store answers that the lease is over, with the message's state."""


class LeaseSecrets:
    """Signs leases, and checks the leases that callers settle.

    Args:
        lane: the lane of the store, which keeps the key.
        large_bodies: lets other requests go on meanwhile.
    """

    def __init__(self, lane: Lane, large_bodies: LargeBodies) -> None:
        self._lane = lane
        self._large_bodies = large_bodies
        self._key: bytes | None = None
        """The key of all servers of the store; `None`: not read yet."""

    async def signed(self, queue: str, reply: Claimed) -> Claimed:
        """Add the secrets of its leases to the reply to a claim.

        Args:
            queue: the name of the queue in the store.
            reply: the reply of the store.
        """
        if not reply.messages:
            return reply
        key, pause, messages = await self._known_key(), self._large_bodies.pauses(), []
        for message in reply.messages:
            secret = _secret_of(key, queue, message.id, reply.token)
            messages.append(msgspec.structs.replace(message, secret=secret))
            await pause()
        return msgspec.structs.replace(reply, messages=messages)

    async def checked(self, queue: str, leases: list[Lease], *, trusted: bool) -> list[Lease]:
        """Check leases and return them without secrets; a wrong secret gives `NO_LEASE`.

        Args:
            queue: the name of the queue in the store.
            leases: the leases of the request.
            trusted: whether the caller may settle by the number alone.

        Raises:
            LeaseLost: a secret is missing.
        """
        key, pause = await self._known_key(), self._large_bodies.pauses()
        checked_leases: list[Lease] = []
        key_was_read_again = False
        for lease in leases:
            if lease.secret is not None:
                is_right = _has_right_secret(key, queue, lease)
                if not is_right and not key_was_read_again:
                    # A store that was lost and replaced has another key.
                    key, key_was_read_again = await self._read_key(self._key), True
                    is_right = _has_right_secret(key, queue, lease)
                checked_leases.append(Lease(lease.id, lease.token if is_right else NO_LEASE))
            elif trusted:
                checked_leases.append(lease)
            else:
                raise LeaseLost(
                    f"the token {lease.token} of {lease.id!r} has no secret part; settle with the "
                    "whole token as the claim gave it, such as 7.Wk3vQ9s..."
                )
            await pause()
        return checked_leases

    async def _known_key(self) -> bytes:
        return await self._read_key() if self._key is None else self._key

    async def _read_key(self, known: bytes | None = None) -> bytes:
        """Return the key in the store.

        Args:
            known: the key to store if there is none, so that the leases of a store that has lost
                its key stay valid; `None`: a new one.
        """
        while True:
            (message,) = expect(Found, await self._lane.acall(Find(KEYS_QUEUE, [KEY_ID]))).messages
            if message is not None:
                self._key = message.data
                return message.data
            # If several servers store a key at the same time, the first succeeds, and all read it.
            key = Item(KEY_ID, known or secrets.token_bytes(32), json=False, at=LATEST)
            await self._lane.acall(Put(KEYS_QUEUE, [key]))


def _has_right_secret(key: bytes, queue: str, lease: Lease) -> bool:
    right_secret = _secret_of(key, queue, lease.id, lease.token)
    return hmac.compare_digest(right_secret.encode(), (lease.secret or "").encode())


def _secret_of(key: bytes, queue: str, id: str, number: int) -> str:
    text = f"{queue}\n{number}\n{id}".encode()  # neither queue nor number contains a line end
    digest = hmac.digest(key, text, "sha256")[:SECRET_BYTES]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
