"""Where subscriptions are kept: in the store itself, as messages that are never due.

So all servers on a store know the same subscriptions, without a database beside it.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Command, Find, Put, Scan, Where
from bide.model.errors import InvalidArgument, Unsupported
from bide.model.identity import RESERVED
from bide.model.message import Item, Message
from bide.model.moments import LATEST
from bide.model.replies import Found, Outcomes, Page, Reply
from bide.targets.http.peers import Peers
from bide.targets.http.signing import Secret, check_secret, new_secret
from bide.targets.http.subscription import Subscription, key_of

__all__ = ["Kept", "Overtaken", "Records"]

SUBSCRIPTIONS = f"{RESERVED}/subscriptions"

MOST = 10_000
"""How many subscriptions a store may have."""

STANDING = ("paused", "reason")
STAMPS = ("version", "changed", "created")

GONE = 60_000
"""For how many milliseconds it is remembered what a subscription was before it was changed, or that
it was deleted."""

MOST_VERSIONS = 1_000
"""How many versions of a subscription are remembered."""

PAGE = 5_000
"""How many records are read at a time."""

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

Edit = Callable[[Subscription | None], Subscription | None]
"""From how a subscription is to how it is to be; `None` stands for none, and for no change."""


class Overtaken(Exception):
    """A subscription is not (any more) as whoever changes it has seen it.

    Args:
        now: as it is, `None` if there is none.
    """

    def __init__(self, now: Subscription | None) -> None:
        super().__init__("it was changed by somebody else meanwhile")
        self.now = now


class Kept(NamedTuple):
    """What has been stored."""

    subscription: Subscription
    secret: str | None
    """Its secret, if that is new and was not brought along."""
    fresh: bool
    """Whether there was none of its name."""


class Records:
    """The subscriptions of a store.

    Each version of a subscription is a message of its own, whose id ends in its number: of two who
    write the next one at a time the store lets one have it. The highest counts.

    Args:
        lane: the way to the store.
        clock: what moments are told by.
    """

    def __init__(self, lane: Lane, clock: Clock) -> None:
        self._lane = lane
        self._clock = clock
        self.peers = Peers(lane, clock)
        """What the servers tell each other about them."""

    async def listed(self, *, tidy: bool = False) -> list[Subscription]:
        """Return all subscriptions, by their keys.

        Args:
            tidy: take out as well what is no longer needed of earlier versions.
        """
        found: list[Subscription] = []
        cursor: str | None = None
        while True:
            page = await self._ask(Page, Scan(SUBSCRIPTIONS, limit=PAGE, cursor=cursor))
            found += map(_of, page.messages)
            if (cursor := page.cursor) is None:
                break
        versions: dict[str, list[Subscription]] = {}
        for one in sorted(found, key=lambda one: one.version):
            versions.setdefault(one.key, []).append(one)
        if tidy:
            now = self._clock.now()
            await self._forget([id for each in versions.values() for id in _over(each, now)])
        return [versions[key][-1] for key in sorted(versions) if not versions[key][-1].gone]

    async def of(self, namespace: str | None) -> list[Subscription]:
        """Return the subscriptions of one namespace, by name."""
        return [one for one in await self.listed() if one.namespace == namespace]

    async def get(self, namespace: str | None, name: str) -> Subscription | None:
        """Return a subscription, `None` if there is none of this name."""
        versions = await self._versions(key_of(namespace, name))
        return versions[-1] if versions and not versions[-1].gone else None

    async def put(
        self,
        given: Subscription,
        secret: str | None = None,
        *,
        tag: str | None = None,
        fresh: bool = False,
    ) -> Kept:
        """Create a subscription, or put this one in the place of the one of its name.

        Whether it is paused stays as it was.

        Args:
            given: as it is to be; its secrets and moments are seen to here.
            secret: a secret of the caller's own; in the place of those there were.
            tag: only if it is this version that is there; "*": any.
            fresh: only if there is none.

        Raises:
            InvalidArgument: one of its values cannot be, or there are too many.
            Overtaken: what is there is not what the caller takes it for.
        """
        given.check()
        await self._must_find()
        mine = None if secret is None else check_secret(secret)
        made = new_secret()

        def edit(known: Subscription | None) -> Subscription:
            secrets = () if known is None or mine is not None else known.secrets
            if given.signed and not secrets:
                secrets = (Secret(mine or made, self._clock.now()),)
            state = {} if known is None else {name: getattr(known, name) for name in STANDING}
            return msgspec.structs.replace(given, secrets=secrets, **state)

        others = [one for one in await self.listed() if one.key != given.key]
        if len(others) >= MOST:
            raise InvalidArgument(
                f"name={given.name!r} would be one too many; a store has {MOST:,} subscriptions "
                "at most: delete one"
            )
        known, kept = await self._change(given.key, edit, tag, fresh=fresh)
        assert kept is not None
        await self._begin_anew(known, kept)
        is_new = any(one.text == made for one in kept.secrets)
        return Kept(kept, made if is_new else None, known is None)

    async def change(
        self, namespace: str | None, name: str, tag: str | None = None, **fields: Any
    ) -> Subscription | None:
        """Change some fields of a subscription; return it as it is kept, `None` if there is none.

        Args:
            namespace: whose it is.
            name: its name.
            tag: only if it is still this version; "*": any.
            fields: what is to be another way.

        Raises:
            InvalidArgument: one of its values cannot be.
            Overtaken: it is another version.
        """

        def edit(known: Subscription | None) -> Subscription | None:
            if known is None:
                return None
            changed = msgspec.structs.replace(known, **fields).check()
            if changed.signed != known.signed:
                raise InvalidArgument(
                    "url cannot change between http and amqp; put the subscription again"
                )
            return changed

        known, kept = await self._change(key_of(namespace, name), edit, tag)
        if kept is not None:
            await self._begin_anew(known, kept)
        return kept

    async def pause(
        self, namespace: str | None, name: str, reason: str = "", tag: str | None = None
    ) -> Subscription | None:
        """Send nothing more, until `resume`; return it as it is kept, `None` if there is none."""
        return await self.change(namespace, name, tag, paused=True, reason=reason)

    async def pause_this(self, subscription: Subscription, reason: str) -> Subscription:
        """Pause a subscription if it is still as it is known here; return it as it is."""
        try:
            paused = await self.pause(
                subscription.namespace, subscription.name, reason, subscription.tag
            )
        except Overtaken as error:
            paused = error.now
        return paused or subscription

    async def resume(
        self, namespace: str | None, name: str, tag: str | None = None
    ) -> Subscription | None:
        """Send again, at once even if the circuit is open.

        Returns:
            It as it is kept, `None` if there is none.
        """

        def edit(known: Subscription | None) -> Subscription | None:
            return known and msgspec.structs.replace(known, paused=False, reason="")

        key = key_of(namespace, name)
        # Another version also if it was not paused, so that all servers begin anew.
        _, kept = await self._change(key, edit, tag, always=True)
        await self.peers.forget_circuit(key)
        return kept

    async def rotate(
        self,
        namespace: str | None,
        name: str,
        overlap: int,
        secret: str | None = None,
        tag: str | None = None,
    ) -> tuple[Subscription, str] | None:
        """Sign with a new secret from now on, and with the others for a while as well.

        Args:
            namespace: whose subscription it is.
            name: its name.
            overlap: for how many milliseconds the others go on to count.
            secret: the new one; made when missing.
            tag: only if it is still this version; "*": any.

        Returns:
            The subscription as it is kept, and the new secret; `None` if there is none.

        Raises:
            InvalidArgument: the secret is none.
            Overtaken: it is another version.
        """
        text = new_secret() if secret is None else check_secret(secret)

        def edit(known: Subscription | None) -> Subscription | None:
            if known is None:
                return None
            if not known.signed:
                raise InvalidArgument("what goes to RabbitMQ is not signed; there is no secret")
            now = self._clock.now()
            old = tuple(
                msgspec.structs.replace(one, until=min(now + overlap, one.until or LATEST))
                for one in known.secrets
                if one.until is None or now < one.until
            )
            # A signature for each travels with every request: more than a few nobody can use.
            secrets = (Secret(text, now), *(one for one in old if overlap))[:5]
            return msgspec.structs.replace(known, secrets=secrets)

        _, kept = await self._change(key_of(namespace, name), edit, tag)
        return None if kept is None else (kept, text)

    async def delete(self, namespace: str | None, name: str, tag: str | None = None) -> bool:
        """Delete a subscription; return whether there was one. Its messages stay in the queue.

        Raises:
            Overtaken: it is another version.
        """

        def edit(known: Subscription | None) -> Subscription | None:
            return known and Subscription(
                name=known.name, namespace=known.namespace, queue=known.queue, url="", gone=True
            )

        key = key_of(namespace, name)
        _, kept = await self._change(key, edit, tag)
        await self.peers.forget_circuit(key)
        return kept is not None

    async def still(self, subscription: Subscription) -> bool:
        """Tell whether a subscription is as it is known here."""
        ids = [_id(subscription.key, subscription.version + more) for more in (0, 1)]
        found = await self._ask(Found, Find(SUBSCRIPTIONS, ids))
        known = _decoded(found.messages[0], Subscription)
        return known is not None and known.tag == subscription.tag and found.messages[1] is None

    async def _change(
        self,
        key: str,
        edit: Edit,
        tag: str | None = None,
        *,
        fresh: bool = False,
        always: bool = False,
    ) -> tuple[Subscription | None, Subscription | None]:
        """Store the next version of a subscription; return how it was, and how it is now.

        Where it would be as it was, nothing is stored, unless that is to be done `always`.
        """
        await self._must_find()
        while True:
            versions = await self._versions(key)
            last = versions[-1] if versions else None
            known = None if last is None or last.gone else last
            if (fresh and known) or _is_other(known, tag):
                raise Overtaken(known)
            wanted = edit(known)
            if wanted is None:
                return None, None
            if known is not None and not always:
                stamps = {name: getattr(known, name) for name in STAMPS}
                if msgspec.structs.replace(wanted, **stamps) == known:
                    return known, known
            now = self._clock.now()
            changed = now if last is None else max(now, last.changed + 1)
            kept = msgspec.structs.replace(
                wanted,
                version=1 if last is None else last.version + 1,
                changed=changed,
                created=changed if known is None else known.created,
            )
            data = msgspec.json.encode(kept)
            item = Item(_id(key, kept.version), data, group=key, at=LATEST)
            stored = await self._ask(Outcomes, Put(SUBSCRIPTIONS, [item]))
            if stored.outcomes[0].done:
                await self._forget(_over([*versions, kept], now))
                return known, kept

    async def _begin_anew(self, known: Subscription | None, kept: Subscription) -> None:
        """Let another receiver not pay for what the one before it did."""
        if known is None or (known.url, known.queue) != (kept.url, kept.queue):
            await self.peers.forget_circuit(kept.key)

    async def _versions(self, key: str) -> list[Subscription]:
        """Return all versions of a subscription that are there, the last one last."""
        command = Scan(SUBSCRIPTIONS, where=Where(group=key), limit=PAGE)
        found = map(_of, (await self._ask(Page, command)).messages)
        return sorted(found, key=lambda one: one.version)

    async def _forget(self, ids: list[str]) -> None:
        if ids:
            await self._ask(Outcomes, Cancel(SUBSCRIPTIONS, ids))

    async def _ask(self, kind: type[R], command: Command) -> R:
        reply = await self._lane.acall(command)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply

    async def _must_find(self) -> None:
        capabilities = await asyncio.to_thread(lambda: self._lane.capabilities)
        if not capabilities.random_access:
            raise Unsupported("this store cannot be looked into, so it cannot keep subscriptions")


def _id(key: str, version: int) -> str:
    return f"{key}#{version}"


def _is_other(known: Subscription | None, tag: str | None) -> bool:
    """Tell whether what is there is not the version that somebody means; "*" means any."""
    return tag is not None and (known is None or tag not in ("*", known.tag))


def _of(message: Message) -> Subscription:
    return msgspec.json.decode(message.data, type=Subscription)


def _over(versions: Sequence[Subscription], now: int) -> list[str]:
    """Return the ids of versions, of which the last one comes last, that nobody needs any more.

    One that was replaced stays for a while: were its number free at once, a writer who has read
    the one before it would believe to be the first to take it.
    """
    last = versions[-1]
    found = [
        _id(one.key, one.version)
        for one, next in pairwise(versions)
        if next.changed + GONE <= now or one.version + MOST_VERSIONS <= last.version
    ]
    if last.gone and last.changed + GONE <= now:
        found.append(_id(last.key, last.version))
    return found


def _decoded(message: Message | None, kind: type[T]) -> T | None:
    return None if message is None else msgspec.json.decode(message.data, type=kind)
