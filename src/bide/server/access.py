"""Tokens: who may do what in which namespace. They are kept in the store, as messages never due.

So all servers on a store know the same tokens, and each refuses a revoked one from the next request
on. The store keeps hashes: a token is shown once, when it is created or rotated.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Find, Put, Scan
from bide.model.errors import InvalidArgument
from bide.model.identity import RESERVED, check_namespace
from bide.model.limits import MAX_TOKEN_NAME
from bide.model.message import Item, Message
from bide.model.replies import Found, Outcomes, Page, expect
from bide.model.times import LATEST
from bide.server.rights import ALL_QUEUES, SCOPES, Caller, Right, check_patterns, check_rights

QUEUE = f"{RESERVED}/tokens"

PREFIX = "bide"

PAGE = 10_000
"""How many tokens are read at a time."""

LIFETIME = 90 * 86_400_000
"""Milliseconds that a token is valid, unless its creator says otherwise."""

SAME = -1
"""The lifetime of a rotated token is that of the former one."""

USE_EVERY = 60_000
"""The time of last use is written at most once in so many milliseconds."""


class Former(msgspec.Struct, frozen=True):
    """The secret of a token before its rotation."""

    hash: str
    until: int
    """When it stops being accepted, in Unix milliseconds."""


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store knows of a token: everything but the token."""

    id: str
    namespace: str | None
    """Whose queues it is for; `None`: those of the whole store."""
    rights: tuple[Right, ...] = ()
    queues: tuple[str, ...] = ALL_QUEUES
    """Patterns of the queues that the rights are for."""
    hash: str
    name: str = ""
    """What it is used for."""
    created: int
    """When its secret was made."""
    expires: int | None = None
    """When it stops being accepted, in Unix milliseconds."""
    used: int | None = None
    """When it was last used, to about a minute."""
    former: tuple[Former, ...] = ()
    """Earlier secrets that are still accepted."""
    scopes: tuple[str, ...] = ()
    """The named sets of rights of tokens that were made before rights."""

    def accepts(self, digest: str, now: int) -> bool:
        """Tell whether a token of this digest is valid."""
        return any(hmac.compare_digest(digest, one) for one in self.valid_hashes(now))

    def valid_hashes(self, now: int) -> list[str]:
        """Return the digests of the tokens that are valid now."""
        mine = [self.hash] if self.expires is None or now < self.expires else []
        return mine + [one.hash for one in self.former if now < one.until]


class Tokens:
    """The tokens of a store.

    Args:
        lane: the way to the store.
        clock: by which tokens expire.
    """

    def __init__(self, lane: Lane, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lane = lane
        self._clock = clock
        self._used: dict[str, tuple[Token, str]] = {}
        """Tokens whose time of use is to be written, with the versions of their messages."""

    def create(
        self,
        namespace: str | None,
        rights: Sequence[str],
        *,
        queues: Sequence[str] = ALL_QUEUES,
        expires_ms: int | None = LIFETIME,
        name: str = "",
    ) -> tuple[str, Token]:
        """Create a token; return it, for the only time, and what is known of it.

        Args:
            namespace: whose queues it is for; `None`: those of the whole store.
            rights: what it allows.
            queues: patterns of the queues that it is for.
            expires_ms: for how many milliseconds it is valid; `None`: until it is revoked.
            name: what it is used for.

        Raises:
            InvalidArgument: one of these cannot be, or another token has the name.
        """
        if namespace is not None:
            check_namespace(namespace)
            if namespace == RESERVED:
                raise InvalidArgument(f"namespace={namespace!r} is bide's own; take another name")
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
            id=id, namespace=namespace, rights=allowed, queues=patterns, hash=digest, name=name,
            created=now, expires=None if expires_ms is None else now + expires_ms,
        )  # fmt: skip
        self._lane.call(Put(QUEUE, [_item(token)]))
        return text, token

    def rotate(
        self, name: str, *, overlap_ms: int = 0, expires_ms: int | None = SAME
    ) -> tuple[str, Token] | None:
        """Give a token a new secret; return the new token, `None` if there is no such token.

        Args:
            name: its name or id.
            overlap_ms: for how many milliseconds the former secret is accepted as well.
            expires_ms: for how many milliseconds the new one is valid; `None`: until it is revoked.

        Raises:
            InvalidArgument: several tokens have the name.
        """
        while True:
            if (old := self._named(name)) is None:
                return None
            (message,) = expect(Found, self._lane.call(Find(QUEUE, [old.id]))).messages
            if message is None:
                return None
            old, now = _decode(message.data), self._clock.now()
            text, digest = _new_secret(old.id)
            lasts = old.expires - old.created if old.expires is not None else None
            lasts = lasts if expires_ms == SAME else expires_ms
            ends = now + overlap_ms
            until = ends if old.expires is None else min(ends, old.expires)
            former = [*old.former, Former(old.hash, until)] if overlap_ms else []
            new = msgspec.structs.replace(
                old, hash=digest, created=now, expires=None if lasts is None else now + lasts,
                former=tuple(one for one in former if one.until > now),
            )  # fmt: skip
            put = Put(QUEUE, [_item(new)], "replace", message.version)
            # If it was not done, the token's time of use was written meanwhile.
            if expect(Outcomes, self._lane.call(put)).outcomes[0]:
                return text, new

    def listed(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        tokens: list[Token] = []
        scan = Scan(QUEUE, limit=PAGE)
        while True:
            page = expect(Page, self._lane.call(scan))
            tokens += [_decode(message.data) for message in page.messages]
            if page.cursor is None:
                return sorted(tokens, key=lambda token: token.created)
            scan = msgspec.structs.replace(scan, cursor=page.cursor)

    async def exist(self) -> bool:
        """Tell whether there are any tokens, expired ones included."""
        return bool(expect(Page, await self._lane.acall(Scan(QUEUE, limit=1))).messages)

    def revoke(self, name: str) -> Token | None:
        """Refuse a token, by its name or id, from now on; return what was known of it.

        Raises:
            InvalidArgument: several tokens have the name.
        """
        if (token := self._named(name)) is None:
            return None
        reply = expect(Outcomes, self._lane.call(Cancel(QUEUE, [token.id])))
        return token if reply.outcomes[0] else None

    async def caller(self, text: str) -> Caller | None:
        """Return who a token belongs to, `None` when it is not (or no longer) valid."""
        return await self.admitted(_id_of(text), lambda token, now: token.accepts(_hash(text), now))

    async def known(self, id: str) -> Token | None:
        """Return what is known of a token, by its id."""
        message = await self._find(id)
        return None if message is None else _decode(message.data)

    async def admitted(self, id: str | None, proves: Callable[[Token, int], bool]) -> Caller | None:
        """Return who a token belongs to, if its bearer can prove to have it.

        Args:
            id: of the token; `None`: what the bearer sent is no token.
            proves: takes the token and Unix milliseconds, and tells whether that is so.
        """
        message = None if id is None else await self._find(id)
        token = _NOBODY if message is None else _decode(message.data)
        now = self._clock.now()
        if not proves(token, now) or message is None:
            return None
        if token.used is None or now - token.used >= USE_EVERY:
            self._used[token.id] = msgspec.structs.replace(token, used=now), message.version
        return Caller(token.namespace, frozenset(token.rights), token.queues, token.id, token.name)

    async def _find(self, id: str) -> Message | None:
        return expect(Found, await self._lane.acall(Find(QUEUE, [id]))).messages[0]

    async def write_uses(self) -> None:
        """Write when tokens were last used. A token that was changed or revoked stays as it is."""
        used, self._used = self._used, {}
        for token, version in used.values():
            await self._lane.acall(Put(QUEUE, [_item(token)], "replace", version))

    def _named(self, name: str) -> Token | None:
        found = [token for token in self.listed() if name in (token.id, token.name)]
        if len(found) > 1:
            ids = ", ".join(token.id for token in found)
            raise InvalidArgument(f"several tokens have the name {name!r}; give an id: {ids}")
        return found[0] if found else None


_NOBODY = Token(id="", namespace=None, hash="0" * 64, created=0)


def _item(token: Token) -> Item:
    return Item(token.id, msgspec.json.encode(token), at=LATEST)


def _decode(data: bytes) -> Token:
    token = msgspec.json.decode(data, type=Token)
    if not token.scopes:
        return token
    rights = check_rights(right for scope in token.scopes for right in SCOPES[scope])
    return msgspec.structs.replace(token, rights=rights, scopes=())


def _new_secret(id: str) -> tuple[str, str]:
    """Return a token and its hash."""
    text = f"{PREFIX}_{id}_{secrets.token_urlsafe(32)}"
    return text, _hash(text)


def _hash(text: str) -> str:
    # The secret has 256 random bits: a slow hash gains nothing.
    return hashlib.sha256(text.encode()).hexdigest()


def _id_of(text: str) -> str | None:
    prefix, _, rest = text.partition("_")
    id, _, secret = rest.partition("_")
    plain = len(id) == 12 and id.isalnum() and id.isascii()
    return id if prefix == PREFIX and plain and secret else None
