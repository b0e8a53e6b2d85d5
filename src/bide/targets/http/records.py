"""The subscriptions of a store, kept in the store itself as messages that are never due.

So all servers on a store know the same subscriptions, without a database beside it.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.lane.steps import arun_steps
from bide.model.commands import Cancel, Find, Put, Scan
from bide.model.errors import InvalidArgument
from bide.model.identity import RESERVED
from bide.model.limits import MAX_SUBSCRIPTIONS
from bide.model.message import Item, Message
from bide.model.replies import Found, Outcomes
from bide.model.times import LATEST
from bide.queue.results import first_of
from bide.targets.http.encryption import KEY, KEY_FILE, SecretKeys, change_of_lost, stored
from bide.targets.http.peers import Peers, Shared
from bide.targets.http.subscription import Secret, Subscription, check_secret, key_of, new_secret

SUBSCRIPTIONS = f"{RESERVED}/subscriptions"

STAMPS = ("version", "changed", "created")

PAGE = 5_000
"""How many subscriptions are read at a time."""

Edit = Callable[[Subscription], Subscription]
"""Takes a subscription and returns it changed."""


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
    """The subscriptions of a store, each in one message whose id is its key.

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
        """Return all subscriptions, by their keys."""
        steps = first_of(Scan(SUBSCRIPTIONS, limit=PAGE), sys.maxsize)
        messages = await arun_steps(steps, self._lane.acall)
        found = {message.id: stored(message) for message in messages}
        return [self.keys.decrypt(found[key]) for key in sorted(found)]

    async def of(self, namespace: str | None) -> list[Subscription]:
        """Return the subscriptions of one namespace, by name."""
        return [one for one in await self.listed() if one.namespace == namespace]

    async def get(self, namespace: str | None, name: str) -> Subscription | None:
        """Return a subscription; `None` if there is none of this name."""
        message = await self._find(key_of(namespace, name))
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
        mine = None if secret is None else check_secret(secret)
        made = new_secret()

        def edit(known: Subscription) -> Subscription:
            secrets = known.secrets
            other = bool(secrets and mine) and secrets[0].text != mine
            if given.signed and (other or not secrets):
                secrets = (Secret(mine or made, self._clock.now()),)
            return msgspec.structs.replace(
                given, secrets=secrets, paused=known.paused, reason=known.reason
            )

        others = [one for one in await self.listed() if one.key != given.key]
        if len(others) >= MAX_SUBSCRIPTIONS:
            raise InvalidArgument(
                f"name={given.name!r} would be one too many; a store has {MAX_SUBSCRIPTIONS:,} "
                "subscriptions at most: delete one"
            )
        first = msgspec.structs.replace(given, secrets=(), **dict.fromkeys(STAMPS, 0))
        known, kept = await self._change(given.key, edit, tag, first=first, fresh=fresh)
        assert kept is not None
        is_new = any(one.text == made for one in kept.secrets)
        return Kept(kept, made if is_new else None, known is None)

    async def change(
        self, namespace: str | None, name: str, tag: str | None = None, **fields: Any
    ) -> Subscription | None:
        """Change fields of a subscription; return it as stored, `None` if there is none.

        Args:
            namespace: its namespace.
            name: its name.
            tag: change only this version; "*": any.
            fields: the new values.

        Raises:
            InvalidArgument: one of its values is not valid.
            Overtaken: the stored version is another one.
        """

        def edit(known: Subscription) -> Subscription:
            changed = msgspec.structs.replace(known, **fields).check()
            if changed.signed != known.signed:
                raise InvalidArgument(
                    "url cannot change between http and amqp; put the subscription again"
                )
            return changed

        return (await self._change(key_of(namespace, name), edit, tag))[1]

    async def pause(
        self, namespace: str | None, name: str, reason: str = "", tag: str | None = None
    ) -> Subscription | None:
        """Send nothing until `resume`; return it as stored, `None` if there is none."""
        return await self.change(namespace, name, tag, paused=True, reason=reason)

    async def resume(
        self, namespace: str | None, name: str, tag: str | None = None
    ) -> Subscription | None:
        """Send again, at once even if the circuit is open.

        Returns:
            The subscription as stored; `None` if there is none.
        """

        key = key_of(namespace, name)
        # First, or a server that meets the new version reads the old circuit again.
        await self.peers.forget_circuit(key)
        # A new version even if it was not paused, so that all servers start again.
        active = partial(msgspec.structs.replace, paused=False, reason="")
        return (await self._change(key, active, tag, always=True))[1]

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
            namespace: its namespace.
            name: its name.
            overlap: milliseconds for which the others stay valid.
            secret: the new one; by default it is made.
            tag: change only this version; "*": any.

        Returns:
            The subscription as stored, and the new secret; `None` if there is none.

        Raises:
            InvalidArgument: the secret is not valid.
            Overtaken: the stored version is another one.
        """
        text = new_secret() if secret is None else check_secret(secret)

        def edit(known: Subscription) -> Subscription:
            if not known.signed:
                raise InvalidArgument("messages to RabbitMQ are not signed; there is no secret")
            now = self._clock.now()
            old = (
                msgspec.structs.replace(one, until=min(now + overlap, one.until or LATEST))
                for one in known.secrets
                if overlap and (one.until is None or now < one.until)
            )
            # Each request carries a signature for each secret.
            secrets = (Secret(text, now), *old)[:5]
            return msgspec.structs.replace(known, secrets=secrets)

        _, kept = await self._change(key_of(namespace, name), edit, tag)
        return None if kept is None else (kept, text)

    async def delete(self, namespace: str | None, name: str, tag: str | None = None) -> bool:
        """Delete a subscription; return whether there was one. Its messages stay in the queue.

        Raises:
            Overtaken: it is another version.
        """

        key = key_of(namespace, name)
        while (message := await self._find(key)) is not None:
            known = self.keys.decrypt(stored(message))
            if _is_other(known, tag):
                raise Overtaken(known)
            command = Cancel(SUBSCRIPTIONS, [key], if_version=message.version)
            if (await self._ask(Outcomes, command)).outcomes[0].done:
                await self.peers.forget_circuit(key)
                return True
        if tag is not None:
            raise Overtaken(None)
        return False

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
        known = [one.key for one in await self.listed()]
        changed = [(await self._change(key, lambda one: one, always=True))[1] for key in known]
        lost = [bool(one.encrypted) for one in changed if one is not None]
        return lost.count(False), lost.count(True)

    async def still(self, subscription: Subscription) -> bool:
        """Tell whether a subscription has not changed."""
        message = await self._find(subscription.key)
        return message is not None and stored(message).tag == subscription.tag

    async def _change(
        self,
        key: str,
        edit: Edit,
        tag: str | None = None,
        *,
        first: Subscription | None = None,
        fresh: bool = False,
        always: bool = False,
    ) -> tuple[Subscription | None, Subscription | None]:
        """Store the next version of a subscription; return the version before and this one.

        Where there is none, `first` is edited, if it is given. Without a change nothing is stored,
        except with `always`.
        """
        while True:
            message = await self._find(key)
            last = first if message is None else stored(message)
            base = None if last is None else self.keys.decrypt(last)
            known = None if message is None else base
            if (fresh and known) or _is_other(known, tag):
                raise Overtaken(known)
            if last is None or base is None:
                return None, None
            wanted = edit(base)
            if base.encrypted:
                wanted = change_of_lost(last, base, wanted)
            if known is not None and not always:
                stamps = {name: getattr(known, name) for name in STAMPS}
                if msgspec.structs.replace(wanted, **stamps) == known:
                    return known, known
            changed = max(self._clock.now(), last.changed + 1)
            kept = msgspec.structs.replace(
                wanted, version=last.version + 1, changed=changed, created=base.created or changed
            )
            items = [Item(key, msgspec.json.encode(self.keys.encrypt(kept)), at=LATEST)]
            mode = () if message is None else ("replace", message.version)
            if (await self._ask(Outcomes, Put(SUBSCRIPTIONS, items, *mode))).outcomes[0].done:
                if (known and (known.url, known.queue)) != (kept.url, kept.queue):
                    await self.peers.forget_circuit(key)  # that of another receiver
                return known, self.keys.decrypt(kept)

    async def _find(self, key: str) -> Message | None:
        return (await self._ask(Found, Find(SUBSCRIPTIONS, [key]))).messages[0]


def _is_other(known: Subscription | None, tag: str | None) -> bool:
    """Tell whether the stored version is not the one of a tag; "*" means any."""
    return tag is not None and (known is None or tag not in ("*", known.tag))
