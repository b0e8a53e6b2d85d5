"""Access to subscriptions: in the store itself, or through a server."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from bide.clock import SYSTEM_CLOCK
from bide.engines.http import address_of
from bide.engines.http.answers import request
from bide.engines.http.connection import Connection
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.errors import InvalidArgument
from bide.server.subscriptions.subscribe import Identity
from bide.server.subscriptions.subscription_wire import (
    PingOut,
    SubscriptionIn,
    SubscriptionOut,
    Subscriptions,
    all_shown,
)
from bide.targets.http.addresses import Gate
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription, key_of

Listed = list[tuple[str | None, SubscriptionOut]]
"""Subscriptions, each with its namespace."""


class _StoreAccess:
    """The subscriptions of a store that this process opens.

    Durations are seconds. Methods return `None` or `False` if there is no such subscription; `put`
    and `rotate` return a secret that bide made, or an empty text.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._records = Records(lane, SYSTEM_CLOCK)

    def listed(self, namespace: str | None, everywhere: bool) -> Listed:
        async def read() -> Listed:
            records = self._records
            found = await (records.listed() if everywhere else records.of(namespace))
            shown = await all_shown(records, found, SYSTEM_CLOCK.now())
            return [(one.namespace, out) for one, out in shown]

        return asyncio.run(read())

    def put(self, which: Identity, given: dict[str, Any], secret: str | None) -> str:
        fields = SubscriptionIn(**given).fields()
        new = Subscription(name=which.name, namespace=which.namespace, **fields)
        return asyncio.run(self._records.put(new, secret)).secret or ""

    def pause(self, which: Identity, reason: str) -> bool:
        return asyncio.run(self._records.pause(key_of(*which), reason)) is not None

    def resume(self, which: Identity) -> bool:
        return asyncio.run(self._records.resume(key_of(*which))) is not None

    def rotate(self, which: Identity, overlap: float, secret: str | None) -> str | None:
        rotated = asyncio.run(self._records.rotate(key_of(*which), round(overlap * 1000), secret))
        return None if rotated is None else rotated[1]

    def ping(self, which: Identity, networks: Sequence[str]) -> PingOut | None:
        from bide.targets.pusher import Pusher  # which needs a package of its own

        fix = (
            "this command sends it, whatever a server may do: name the network with "
            "--allow-network, or have a server send it with --url http://..."
        )

        async def ask() -> PingOut | None:
            pusher = Pusher(self._lane, gate=Gate(networks, fix))
            known = await pusher.records.get(key_of(*which))
            if known is None:
                return None
            try:
                answer = await pusher.ping(known)
            finally:
                await pusher.close()
            return PingOut(answer.good, answer.text)

        return asyncio.run(ask())

    def delete(self, which: Identity) -> bool:
        return asyncio.run(self._records.delete(key_of(*which)))

    def encrypt_all(self) -> tuple[int, int]:
        return asyncio.run(self._records.encrypt_all())


class _ServerAccess:
    """The subscriptions of a server's store; the same methods as `_StoreAccess`."""

    def __init__(self, url: str) -> None:
        opener(url)  # checks the URL
        self._address, timeout = address_of(urlsplit(url))
        self._connection = Connection(self._address, timeout)
        self.close = self._connection.close

    def listed(self, namespace: str | None, everywhere: bool) -> Listed:
        answer = msgspec.convert(self._request("GET", "/v1/subscriptions"), Subscriptions)
        mine = self._namespace
        wanted = mine if namespace is None else namespace
        named: Listed = []
        for one in answer.subscriptions:
            whose, _, one.name = one.name.rpartition("/")
            one.queue = one.queue.rpartition("/")[2]
            named.append((whose or mine, one))
        return [pair for pair in named if everywhere or pair[0] == wanted]

    def put(self, which: Identity, given: dict[str, Any], secret: str | None) -> str:
        if which.namespace is not None and self._namespace is None:
            given = {**given, "queue": f"{which.namespace}/{given['queue']}"}
        answer = self._ask("PUT", which, "", _with_secret(given, secret))
        return str((answer or {}).get("secret", ""))

    def pause(self, which: Identity, reason: str) -> bool:
        return self._ask("POST", which, "/pause", {"reason": reason}) is not None

    def resume(self, which: Identity) -> bool:
        return self._ask("POST", which, "/resume", {}) is not None

    def rotate(self, which: Identity, overlap: float, secret: str | None) -> str | None:
        answer = self._ask("POST", which, "/rotate", _with_secret({"overlap": overlap}, secret))
        return None if answer is None else str(answer.get("secret", ""))

    def ping(self, which: Identity, networks: Sequence[str]) -> PingOut | None:
        if networks:
            raise InvalidArgument(
                "the server pings, so it must allow the networks; start it with --allow-network"
            )
        answer = self._ask("POST", which, "/ping", {})
        return None if answer is None else msgspec.convert(answer, PingOut)

    def delete(self, which: Identity) -> bool:
        return self._ask("DELETE", which, "") is not None

    def encrypt_all(self) -> tuple[int, int]:
        raise InvalidArgument("a server cannot do this; use the URL of the store that it serves")

    @property
    def _namespace(self) -> str | None:
        """The namespace of the token."""
        found = self._request("GET", "/v1") or {}
        namespace: str | None = found["namespace"]
        return namespace

    def _ask(
        self, method: str, which: Identity, verb: str, content: Any = None
    ) -> dict[str, Any] | None:
        """Return the answer of a server, `None` if there is no such subscription."""
        namespace, name = which
        if namespace is not None:
            mine = self._namespace
            if mine not in (None, namespace):
                raise InvalidArgument(
                    f"namespace={namespace!r} is not that of the token, which is for {mine!r}; "
                    "leave it out, or use a token of that namespace"
                )
            name = name if mine else f"{namespace}/{name}"
        return self._request(method, f"/v1/subscriptions/{quote(name, safe='')}{verb}", content)

    def _request(self, method: str, path: str, content: Any = None) -> dict[str, Any] | None:
        return request(self._connection, self._address, method, path, content)


def _with_secret(content: dict[str, Any], secret: str | None) -> dict[str, Any]:
    return content if secret is None else {**content, "secret": secret}


Access = _StoreAccess | _ServerAccess

in_store = _StoreAccess
"""Access to the subscriptions of a store, by its lane."""

on_server = _ServerAccess
"""Access to those of a server's store, by its URL."""
