"""Access to subscriptions: in the store itself, or through a server."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from bide.clock import SYSTEM_CLOCK
from bide.engines.http import address_of
from bide.engines.http.answers import request
from bide.engines.http.connection import HttpConnection
from bide.engines.registry import opener, split_url
from bide.lane.lane import Lane
from bide.model.errors import InvalidArgument
from bide.model.identity import split_name
from bide.server.subscriptions import subscription_wire as wire
from bide.targets.http.addresses import AddressGate
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription


class _StoreAccess:
    """The subscriptions of a store that this process opens.

    Names have their namespaces before them. Durations are seconds. Methods return `None` or `False`
    if there is no such subscription; `put` and `rotate` return a secret that bide made, or an empty
    text.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._records = Records(lane, SYSTEM_CLOCK)

    def listed(self, namespace: str | None, everywhere: bool) -> list[wire.SubscriptionOut]:
        """Return the subscriptions of a namespace, or with `everywhere` of all."""

        async def read() -> list[wire.SubscriptionOut]:
            subscriptions = [
                subscription
                for subscription in await self._records.listed()
                if everywhere or subscription.namespace == namespace
            ]
            return await wire.subscriptions_out(self._records, subscriptions, SYSTEM_CLOCK.now())

        return asyncio.run(read())

    def put(self, name: str, content: dict[str, Any], secret: str | None) -> str:
        new = Subscription(name=name, **wire.SubscriptionIn(**content).fields())
        return asyncio.run(self._records.put(new, secret)).secret or ""

    def pause(self, name: str, reason: str) -> bool:
        return asyncio.run(self._records.pause(name, reason)) is not None

    def resume(self, name: str) -> bool:
        return asyncio.run(self._records.resume(name)) is not None

    def rotate(self, name: str, overlap: float, secret: str | None) -> str | None:
        rotated = asyncio.run(self._records.rotate(name, round(overlap * 1000), secret))
        return None if rotated is None else rotated.secret or ""

    def ping(self, name: str, networks: Sequence[str]) -> wire.PingOut | None:
        """Ask the receiver from this process, which may reach `networks` besides public ones."""
        from bide.targets.pusher import Pusher  # which needs a package of its own

        fix = (
            "this command sends it, whatever a server may do: name the network with "
            "--allow-network, or have a server send it with --url http://..."
        )

        async def ask() -> wire.PingOut | None:
            pusher = Pusher(self._lane, gate=AddressGate(networks, fix))
            subscription = await pusher.records.get(name)
            if subscription is None:
                return None
            answer = await pusher.ping(subscription)
            await pusher.close()
            return wire.PingOut(answer.good, answer.text)

        return asyncio.run(ask())

    def delete(self, name: str) -> bool:
        return asyncio.run(self._records.delete(name))

    def encrypt_all(self) -> tuple[int, int]:
        return asyncio.run(self._records.encrypt_all())


class _ServerAccess:
    """The subscriptions of a server's store; the same methods as `_StoreAccess`."""

    def __init__(self, url: str) -> None:
        opener(url)  # checks the URL
        self._address, timeout = address_of(split_url(url))
        self._connection = HttpConnection(self._address, timeout)
        self.close = self._connection.close

    def listed(self, namespace: str | None, everywhere: bool) -> list[wire.SubscriptionOut]:
        """Return the subscriptions that the token may see; without a namespace, those of its own.

        Their names and queues have the namespace before them, as in `_StoreAccess`.
        """
        about = self._request("GET", "/v1")
        assert about is not None  # each server has this path
        own_namespace = about["namespace"]
        answer = msgspec.convert(self._request("GET", "/v1/subscriptions"), wire.Subscriptions)
        if own_namespace:  # a token of a namespace sees names without it
            for subscription in answer.subscriptions:
                subscription.name = f"{own_namespace}/{subscription.name}"
                subscription.queue = f"{own_namespace}/{subscription.queue}"
        wanted_namespace = namespace or own_namespace
        shown_subscriptions = []
        for subscription in answer.subscriptions:
            its_namespace, _name = split_name(subscription.name)
            if everywhere or its_namespace == wanted_namespace:
                shown_subscriptions.append(subscription)
        return shown_subscriptions

    def put(self, name: str, content: dict[str, Any], secret: str | None) -> str:
        answer = self._ask("PUT", name, "", {**content, "secret": secret})
        return str((answer or {}).get("secret", ""))

    def pause(self, name: str, reason: str) -> bool:
        return self._ask("POST", name, "/pause", {"reason": reason}) is not None

    def resume(self, name: str) -> bool:
        return self._ask("POST", name, "/resume", {}) is not None

    def rotate(self, name: str, overlap: float, secret: str | None) -> str | None:
        answer = self._ask("POST", name, "/rotate", {"overlap": overlap, "secret": secret})
        return None if answer is None else str(answer.get("secret", ""))

    def ping(self, name: str, networks: Sequence[str]) -> wire.PingOut | None:
        if networks:
            raise InvalidArgument(
                "the server pings, so it must allow the networks; start it with --allow-network"
            )
        answer = self._ask("POST", name, "/ping", {})
        return None if answer is None else msgspec.convert(answer, wire.PingOut)

    def delete(self, name: str) -> bool:
        return self._ask("DELETE", name, "") is not None

    def encrypt_all(self) -> tuple[int, int]:
        raise InvalidArgument("a server cannot do this; use the URL of the store that it serves")

    def _ask(self, method: str, name: str, verb: str, content: Any = None) -> dict[str, Any] | None:
        """Return the answer of a server, `None` if there is no such subscription."""
        return self._request(method, f"/v1/subscriptions/{quote(name, safe='')}{verb}", content)

    def _request(self, method: str, path: str, content: Any = None) -> dict[str, Any] | None:
        return request(self._connection, self._address, method, path, content)


Access = _StoreAccess | _ServerAccess

in_store = _StoreAccess
"""Access to the subscriptions of a store, by its lane."""

on_server = _ServerAccess
"""Access to those of a server's store, by its URL."""
