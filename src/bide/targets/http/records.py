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

NEW_VERSION = {"changed": 0}
"""Fields of an edit that must be stored even if it changes nothing else: `changed` is never 0."""

KEPT = ("secrets", "paused", "reason", "version", "changed", "created")
"""The fields that a put over an existing subscription does not change."""

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


class _Versions(NamedTuple):
    """A subscription before and after a change; `None`: there was, or is, none."""

    before: Subscription | None
    now: Subscription | None


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
        subscription: Subscription,
        secret: str | None = None,
        *,
        tag: str | None = None,
        fresh: bool = False,
    ) -> Kept:
        """Create a subscription, or replace the one of its name. A paused one stays paused.

        Args:
            subscription: the subscription; its secrets and times are set here.
            secret: a secret of the caller, which replaces the others; `None`: one is made where
                there is none.
            tag: replace only this version; "*": any.
            fresh: create only, replace none.

        Raises:
            InvalidArgument: one of its values is not valid, or there are too many subscriptions.
            Overtaken: the stored version is another one.
        """
        name = subscription.check().name
        given_secret = None if secret is None else check_secret(secret)
        new = new_secret()

        def with_secret(target: Subscription) -> Subscription:
            """Return a subscription that signs with the caller's secret, or else with any."""
            has_it = target.secrets and given_secret in (None, target.secrets[0].text)
            if has_it or not target.signed:
                return target
            return replace(target, secrets=(Secret(given_secret or new, self._clock.now()),))

        def edit(known: Subscription) -> Subscription:
            if fresh:
                raise Overtaken(known)
            kept_fields = {field: getattr(known, field) for field in KEPT}
            return with_secret(replace(subscription, **kept_fields))

        others = [other for other in await self.listed() if other.name != name]
        if len(others) >= MAX_SUBSCRIPTIONS:
            raise InvalidArgument(
                f"name={name!r} would be one too many; a store has {MAX_SUBSCRIPTIONS:,} "
                "subscriptions at most: delete one"
            )
        version = await self._change(name, edit, tag, initial=with_secret(subscription))
        assert version.now is not None  # `edit` deletes nothing
        is_used = any(key.text == new for key in version.now.secrets)
        return Kept(version.now, new if is_used else None, fresh=version.before is None)

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
            is_moved = origin_of(changed.url) != origin_of(known.url)
            # The headers may be secrets of the old receiver, which the new one must not get.
            if is_moved and known.headers and "headers" not in fields:
                raise InvalidArgument(
                    f"url={masked(changed.url)!r} is another receiver than "
                    f"{origin_of(known.url)!r}, for which the headers were given; give headers "
                    "again, or headers={} for none"
                )
            return changed

        return (await self._change(name, edit, tag)).now

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
        edit = partial(replace, paused=False, reason="", **NEW_VERSION)
        return (await self._change(name, edit, tag)).now

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
        new = new_secret() if secret is None else None
        text = new or check_secret(secret or "")

        def edit(known: Subscription) -> Subscription:
            if not known.signed:
                raise InvalidArgument("messages to RabbitMQ are not signed; there is no secret")
            now = self._clock.now()
            old = (
                replace(key, until=min(now + overlap, key.until or LATEST))
                for key in known.secrets
                if overlap and key.valid(now)
            )
            # Not more: each request carries a signature for each secret.
            return replace(known, secrets=(Secret(text, now), *old)[:5])

        version = await self._change(name, edit, tag)
        return None if version.now is None else Kept(version.now, new, fresh=False)

    async def delete(self, name: str, tag: str | None = None) -> bool:
        """Delete a subscription; return whether there was one. Its messages stay in the queue.

        Raises:
            Overtaken: it is another version.
        """
        return (await self._change(name, lambda _: None, tag)).before is not None

    async def encrypt_all(self) -> tuple[int, int]:
        """Encrypt all subscriptions with the first key; they are stored again.

        Returns:
            How many are encrypted with that key now, and how many are not because the key that they
            are encrypted with is missing.

        Raises:
            InvalidArgument: there is no key.
        """
        if not self.keys:
            raise InvalidArgument(
                f"there is no key to encrypt with; set {KEY} or {KEY_FILE}, and make one with bide "
                "subscription new-key"
            )
        names = [subscription.name for subscription in await self.listed()]
        encrypted_count = missing_key_count = 0
        for name in names:
            subscription = (await self._change(name, partial(replace, **NEW_VERSION))).now
            if subscription is None:  # deleted meanwhile
                continue
            if subscription.encrypted:  # `SecretKeys.decrypt` leaves this if it has no key for it
                missing_key_count += 1
            else:
                encrypted_count += 1
        return encrypted_count, missing_key_count

    async def is_unchanged(self, subscription: Subscription) -> bool:
        """Tell whether a subscription is still stored as it was read: neither changed nor gone."""
        message = await self._find(subscription.name)
        return message is not None and stored(message).tag == subscription.tag

    async def _change(
        self, name: str, edit: Edit, tag: str | None = None, *, initial: Subscription | None = None
    ) -> "_Versions":
        """Store the next version of a subscription; without a change nothing is stored.

        Args:
            name: of the subscription.
            edit: makes the next version of the one before. It may be called again: if another
                process changes the subscription meanwhile, it is read and edited once more.
            tag: change only this version; "*": any.
            initial: what is stored where there is no subscription; `None`: nothing is.

        Raises:
            Overtaken: the stored version is another one.
        """
        while True:
            message = await self._find(name)
            last = None if message is None else stored(message)
            known = None if last is None else self.keys.decrypt(last)
            if tag is not None and (known is None or tag not in ("*", known.tag)):
                raise Overtaken(known)
            wanted = initial if known is None else edit(known)
            if wanted == known:
                return _Versions(known, known)
            command: Command
            if wanted is None:
                assert message is not None
                command = Cancel(SUBSCRIPTIONS, [name], if_version=message.version)
            else:
                if last is not None and known is not None and known.encrypted:
                    wanted = change_of_lost(last, known, wanted)
                wanted = self._next_version(last or wanted, wanted)
                item = Item(name, msgspec.json.encode(self.keys.encrypt(wanted)), at=LATEST)
                # Without a message the put must not replace one that another process puts now.
                mode = () if message is None else ("replace", message.version)
                command = Put(SUBSCRIPTIONS, [item], *mode)
            if (await self.ask(Outcomes, command)).outcomes[0].done:
                await self.peers.forget_circuit(name)  # it is about the version before
                return _Versions(known, None if wanted is None else self.keys.decrypt(wanted))

    def _next_version(self, before: Subscription, wanted: Subscription) -> Subscription:
        """Return a subscription with the version and the times of a change."""
        # Later than the change before even if the clock was set back: the tag must be new.
        changed = max(self._clock.now(), before.changed + 1)
        return replace(
            wanted,
            version=before.version + 1,
            changed=changed,
            created=before.created or changed,
        )

    async def _find(self, name: str) -> Message | None:
        """Return the message that holds a subscription; `None` if there is none."""
        return (await self.ask(Found, Find(SUBSCRIPTIONS, [name]))).messages[0]
