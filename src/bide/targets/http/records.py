"""The subscriptions of a store, kept in the store itself as messages that are never due.

So all servers on a store know the same subscriptions, without a database beside it.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.lane.steps import arun_steps, first_of
from bide.model.commands import Cancel, Command, Find, Put, Scan
from bide.model.errors import InvalidArgument
from bide.model.internal_queues import InternalQueue
from bide.model.limits import MAX_SUBSCRIPTIONS
from bide.model.message import Item, Message
from bide.model.replies import Found, Outcomes
from bide.model.times import LATEST
from bide.targets.http.encryption import KEY, KEY_FILE, SecretKeys, change_of_lost, stored
from bide.targets.http.peers import Peers, Shared
from bide.targets.http.subscription import (
    Secret,
    Subscription,
    check_secret,
    masked,
    new_secret,
    origin_of,
)

SUBSCRIPTIONS = InternalQueue.SUBSCRIPTIONS.value

NEW = {"changed": 0}
"""Differs from all that is stored: makes an edit a new version even if it changes nothing else."""

KEPT = ("secrets", "paused", "reason", "version", "changed", "created")
"""The fields that a put keeps."""

PAGE = 5_000
"""How many subscriptions are read at a time."""

Edit = Callable[[Subscription], Subscription | None]
"""Takes a subscription and returns it changed; `None` deletes it."""


class Overtaken(Exception):
    """The subscription has changed since the caller read it.

    Args:
        now: as it is; `None`: there is none.
    """

    def __init__(self, now: Subscription | None) -> None:
        super().__init__("it was changed meanwhile")
        self.now = now


class Kept(NamedTuple):
    """A stored subscription."""

    subscription: Subscription
    secret: str | None
    """Its secret, if that was made now."""
    fresh: bool
    """Whether there was no subscription of its name."""


class Records(Shared):
    """The subscriptions of a store, each in one message whose id is its name.

    A change replaces the message only if it has not changed since it was read.

    Args:
        lane: the lane to the store.
        clock: dates changes.
        keys: what encrypts their secrets; those of the environment by default.

    Raises:
        InvalidArgument: the keys of the environment cannot be used.
    """

    def __init__(self, lane: Lane, clock: Clock, keys: SecretKeys | None = None) -> None:
        super().__init__(lane)
        self._clock = clock
        self.keys = SecretKeys.of_environment() if keys is None else keys
        self.peers = Peers(lane)
        """What the servers tell each other about the subscriptions."""

    async def listed(self) -> list[Subscription]:
        """Return all subscriptions, by name."""
        steps = first_of(Scan(SUBSCRIPTIONS, limit=PAGE), sys.maxsize)
        messages = await arun_steps(steps, self._lane.acall)
        subscriptions = {message.id: stored(message) for message in messages}
        return [self.keys.decrypt(subscriptions[name]) for name in sorted(subscriptions)]

    async def get(self, name: str) -> Subscription | None:
        """Return a subscription; `None` if there is none of this name."""
        message = await self._find(name)
        return None if message is None else self.keys.decrypt(stored(message))

    async def put(
        self,
        given: Subscription,
        secret: str | None = None,
        *,
        tag: str | None = None,
        fresh: bool = False,
    ) -> Kept:
        """Create a subscription, or replace the one of its name. A paused one stays paused.

        Args:
            given: the subscription; its secrets and times are set here.
            secret: a secret of the caller, which replaces the others.
            tag: replace only this version; "*": any.
            fresh: create only, replace none.

        Raises:
            InvalidArgument: one of its values is not valid, or there are too many subscriptions.
            Overtaken: the stored version is another one.
        """
        given.check()
        given_secret = None if secret is None else check_secret(secret)
        made = new_secret()

        def signing(subscription: Subscription) -> Subscription:
            if not subscription.signed or (
                subscription.secrets and given_secret in (None, subscription.secrets[0].text)
            ):
                return subscription
            return replace(subscription, secrets=(Secret(given_secret or made, self._clock.now()),))

        def edit(known: Subscription) -> Subscription:
            if fresh:
                raise Overtaken(known)
            return signing(replace(given, **{name: getattr(known, name) for name in KEPT}))

        others = [
            subscription for subscription in await self.listed() if subscription.name != given.name
        ]
        if len(others) >= MAX_SUBSCRIPTIONS:
            raise InvalidArgument(
                f"name={given.name!r} would be one too many; a store has {MAX_SUBSCRIPTIONS:,} "
                "subscriptions at most: delete one"
            )
        known, kept = await self._change(given.name, edit, tag, first=signing(given))
        assert kept is not None
        is_new = any(key.text == made for key in kept.secrets)
        return Kept(kept, made if is_new else None, known is None)

    async def change(self, name: str, tag: str | None = None, **fields: Any) -> Subscription | None:
        """Change fields of a subscription; return it as stored, `None` if there is none.

        Args:
            name: of the subscription.
            tag: change only this version; "*": any.
            fields: the new values.

        Raises:
            InvalidArgument: one of its values is not valid.
            Overtaken: the stored version is another one.
        """

        def edit(known: Subscription) -> Subscription:
            changed = replace(known, **fields).check()
            if changed.signed != known.signed:
                raise InvalidArgument(
                    "url cannot change between http and amqp; put the subscription again"
                )
            moved = origin_of(changed.url) != origin_of(known.url)
            if moved and known.headers and "headers" not in fields:  # nobody may read them there
                raise InvalidArgument(
                    f"url={masked(changed.url)!r} is another receiver than "
                    f"{origin_of(known.url)!r}, for which the headers were given; give headers "
                    "again, or headers={} for none"
                )
            return changed

        return (await self._change(name, edit, tag))[1]

    async def pause(
        self, name: str, reason: str = "", tag: str | None = None
    ) -> Subscription | None:
        """Send nothing until `resume`; return it as stored, `None` if there is none."""
        return await self.change(name, tag, paused=True, reason=reason)

    async def resume(self, name: str, tag: str | None = None) -> Subscription | None:
        """Send again, at once even if the circuit is open.

        Returns:
            The subscription as stored; `None` if there is none.
        """
        # A new version even if it was not paused: the circuit was about the old one.
        return (await self._change(name, partial(replace, paused=False, reason="", **NEW), tag))[1]

    async def rotate(
        self, name: str, overlap: int, secret: str | None = None, tag: str | None = None
    ) -> Kept | None:
        """Sign with a new secret from now on, and with the others for a while as well.

        Args:
            name: of the subscription.
            overlap: milliseconds for which the others stay valid.
            secret: the new one; by default it is made.
            tag: change only this version; "*": any.

        Returns:
            The subscription as stored; `None` if there is none.

        Raises:
            InvalidArgument: the secret is not valid.
            Overtaken: the stored version is another one.
        """
        made = new_secret() if secret is None else None
        text = made or check_secret(secret or "")

        def edit(known: Subscription) -> Subscription:
            if not known.signed:
                raise InvalidArgument("messages to RabbitMQ are not signed; there is no secret")
            now = self._clock.now()
            old = (
                replace(key, until=min(now + overlap, key.until or LATEST))
                for key in known.secrets
                if overlap and key.valid(now)
            )
            # Each request carries a signature for each secret.
            return replace(known, secrets=(Secret(text, now), *old)[:5])

        _, kept = await self._change(name, edit, tag)
        return None if kept is None else Kept(kept, made, False)

    async def delete(self, name: str, tag: str | None = None) -> bool:
        """Delete a subscription; return whether there was one. Its messages stay in the queue.

        Raises:
            Overtaken: it is another version.
        """
        return (await self._change(name, lambda _: None, tag))[0] is not None

    async def encrypt_all(self) -> tuple[int, int]:
        """Encrypt all subscriptions with the first key, those in clear text too.

        Returns:
            How many are encrypted with it now, and how many are not because their key is missing.

        Raises:
            InvalidArgument: there is no key.
        """
        if not self.keys:
            raise InvalidArgument(
                f"there is no key to encrypt with; set {KEY} or {KEY_FILE}, and make one with bide "
                "subscription new-key"
            )
        known = [subscription.name for subscription in await self.listed()]
        changed = [(await self._change(name, partial(replace, **NEW)))[1] for name in known]
        lost = [
            bool(subscription.encrypted) for subscription in changed if subscription is not None
        ]
        return lost.count(False), lost.count(True)

    async def still(self, subscription: Subscription) -> bool:
        """Tell whether a subscription has not changed."""
        message = await self._find(subscription.name)
        return message is not None and stored(message).tag == subscription.tag

    async def _change(
        self, name: str, edit: Edit, tag: str | None = None, *, first: Subscription | None = None
    ) -> tuple[Subscription | None, Subscription | None]:
        """Store the next version of a subscription; return the version before and this one.

        Where there is none, `first` is stored, if it is given. Without a change nothing is stored.
        """
        while True:
            message = await self._find(name)
            last = None if message is None else stored(message)
            known = None if last is None else self.keys.decrypt(last)
            if tag is not None and (known is None or tag not in ("*", known.tag)):
                raise Overtaken(known)
            wanted = first if known is None else edit(known)
            if wanted == known:
                return known, known
            command: Command
            if wanted is None:
                assert message is not None
                command = Cancel(SUBSCRIPTIONS, [name], if_version=message.version)
            else:
                if last is not None and known is not None and known.encrypted:
                    wanted = change_of_lost(last, known, wanted)
                before = last or wanted
                changed = max(self._clock.now(), before.changed + 1)
                wanted = replace(
                    wanted,
                    version=before.version + 1,
                    changed=changed,
                    created=before.created or changed,
                )
                item = Item(name, msgspec.json.encode(self.keys.encrypt(wanted)), at=LATEST)
                mode = () if message is None else ("replace", message.version)
                command = Put(SUBSCRIPTIONS, [item], *mode)
            if (await self._ask(Outcomes, command)).outcomes[0].done:
                await self.peers.forget_circuit(name)  # it is about the version before
                return known, None if wanted is None else self.keys.decrypt(wanted)

    async def _find(self, name: str) -> Message | None:
        return (await self._ask(Found, Find(SUBSCRIPTIONS, [name]))).messages[0]
