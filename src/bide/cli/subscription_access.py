"""Access to subscriptions: in the store itself, or through a server."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from bide.cli.store import Store
from bide.cli.times import now_ms
from bide.clock import SYSTEM_CLOCK
from bide.model.errors import InvalidArgument

if TYPE_CHECKING:
    from bide.server.subscription_status import SubscriptionOut
    from bide.targets.http.records import Records

__all__ = ["Pinged", "access_to", "remote", "require_server_extra"]

T = TypeVar("T")


class Pinged(NamedTuple):
    """What a receiver said to a request without a message."""

    taken: bool
    answer: str


def remote(url: str | None) -> bool:
    """Tell whether a store is behind a server."""
    return urlsplit(url or "").scheme in ("http", "https")


def require_server_extra() -> None:
    """See that the packages that push needs are installed.

    Raises:
        InvalidArgument: one is missing.
    """
    from importlib.util import find_spec

    if find_spec("h11") is None:
        raise InvalidArgument(
            "this needs the package h11, which is not installed: pip install 'bide[server]'"
        )


class LocalAccess:
    """The subscriptions of a store that this process opens.

    Durations are seconds. `None` or `False` as an answer means that there is no such subscription;
    `put` returns the secret of a new one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _records(self) -> "Records":
        from bide.targets.http.records import Records

        return Records(self._store.lane, SYSTEM_CLOCK)

    def listed(
        self, namespace: str | None, everywhere: bool
    ) -> "list[tuple[str | None, SubscriptionOut]]":
        from bide.server.subscription_status import shown
        from bide.targets.http.circuit import Circuit

        records = self._records
        found = _wait(records.listed() if everywhere else records.of(namespace))
        circuits, told = _wait(records.peers.circuits()), _wait(records.peers.deliveries())
        now = now_ms()
        return [
            (
                one.namespace,
                shown(one, circuits.get(one.key, Circuit()), now, None, told.get(one.key)),
            )
            for one in found
        ]

    def put(
        self, namespace: str | None, name: str, given: dict[str, Any], secret: str | None
    ) -> str | None:
        from bide.server.subscription_wire import SubscriptionIn
        from bide.targets.http.subscription import Subscription

        fields = SubscriptionIn(**given).fields()
        new = Subscription(name=name, namespace=namespace, **fields)
        return _wait(self._records.put(new, secret)).secret

    def pause(self, namespace: str | None, name: str, reason: str) -> bool:
        return _wait(self._records.pause(namespace, name, reason)) is not None

    def resume(self, namespace: str | None, name: str) -> bool:
        return _wait(self._records.resume(namespace, name)) is not None

    def rotate(
        self, namespace: str | None, name: str, overlap: float, secret: str | None
    ) -> str | None:
        rotated = _wait(self._records.rotate(namespace, name, round(overlap * 1000), secret))
        return None if rotated is None else rotated[1]

    def ping(self, namespace: str | None, name: str, networks: Sequence[str]) -> Pinged | None:
        from bide.targets.http.addresses import Gate
        from bide.targets.http.pusher import Pusher

        mend = (
            "this command sends it, whatever a server may do: name the network with "
            "--allow-network, or have a server send it with --url http://..."
        )

        async def ask() -> Pinged | None:
            pusher = Pusher(self._store.lane, gate=Gate(networks, mend))
            known = await pusher.records.get(namespace, name)
            if known is None:
                return None
            try:
                answer = await pusher.ping(known)
            finally:
                await pusher.close()
            return Pinged(answer.good, answer.text)

        return _wait(ask())

    def delete(self, namespace: str | None, name: str) -> bool:
        return _wait(self._records.delete(namespace, name))


class RemoteAccess:
    """The subscriptions of a server's store; the same methods as `LocalAccess`."""

    def __init__(self, url: str) -> None:
        from bide.engines.http import address_of
        from bide.engines.http.connection import Connection

        self._address, timeout = address_of(urlsplit(url))
        self._connection = Connection(self._address, timeout)

    def close(self) -> None:
        self._connection.close()

    def listed(
        self, namespace: str | None, everywhere: bool
    ) -> "list[tuple[str | None, SubscriptionOut]]":
        import msgspec

        from bide.server.subscription_status import Subscriptions

        data = self._ask("GET", "")
        found = msgspec.json.decode(data or b"{}", type=Subscriptions).subscriptions
        mine = self._namespace
        named = []
        for one in found:
            whose, _, one.name = one.name.rpartition("/")
            one.queue = one.queue.rpartition("/")[2]
            named.append((whose or mine, one))
        wanted = mine if namespace is None else namespace
        return [pair for pair in named if everywhere or pair[0] == wanted]

    def put(
        self, namespace: str | None, name: str, given: dict[str, Any], secret: str | None
    ) -> str | None:
        if namespace is not None and self._namespace is None:
            given = {**given, "queue": f"{namespace}/{given['queue']}"}
        said = given if secret is None else {**given, "secret": secret}
        return self._secret(self._ask("PUT", self._named(namespace, name), said))

    def pause(self, namespace: str | None, name: str, reason: str) -> bool:
        path = f"{self._named(namespace, name)}/pause"
        return self._ask("POST", path, {"reason": reason}) is not None

    def resume(self, namespace: str | None, name: str) -> bool:
        return self._ask("POST", f"{self._named(namespace, name)}/resume", {}) is not None

    def rotate(
        self, namespace: str | None, name: str, overlap: float, secret: str | None
    ) -> str | None:
        said = {"overlap": overlap} | ({} if secret is None else {"secret": secret})
        data = self._ask("POST", f"{self._named(namespace, name)}/rotate", said)
        return None if data is None else self._secret(data) or secret

    def ping(self, namespace: str | None, name: str, networks: Sequence[str]) -> Pinged | None:
        import msgspec

        if networks:
            raise InvalidArgument(
                "networks are those of the server that pings, here; start it with --allow-network"
            )
        data = self._ask("POST", f"{self._named(namespace, name)}/ping", {})
        return None if data is None else Pinged(**msgspec.json.decode(data))

    def delete(self, namespace: str | None, name: str) -> bool:
        return self._ask("DELETE", self._named(namespace, name)) is not None

    @property
    def _namespace(self) -> str | None:
        """Whose queues the token is for."""
        import msgspec

        found: dict[str, str | None] = msgspec.json.decode(self._request("GET", "/v1") or b"")
        return found["namespace"]

    def _named(self, namespace: str | None, name: str) -> str:
        if namespace is None:
            return f"/{quote(name, safe='')}"
        mine = self._namespace
        if mine not in (None, namespace):
            raise InvalidArgument(
                f"namespace={namespace!r} is not that of the token, which is for {mine!r}; leave "
                "it out, or take a token of that namespace"
            )
        return f"/{quote(name if mine else f'{namespace}/{name}', safe='')}"

    def _secret(self, data: bytes | None) -> str | None:
        import msgspec

        found: dict[str, Any] = msgspec.json.decode(data or b"{}")
        return found.get("secret")

    def _ask(self, method: str, path: str, content: Any = None) -> bytes | None:
        """Return what a server answers, `None` if there is no such subscription."""
        from http import HTTPStatus

        return self._request(
            method, f"/v1/subscriptions{path}", content, HTTPStatus.NOT_FOUND if path else None
        )

    def _request(
        self, method: str, path: str, content: Any = None, missing: int | None = None
    ) -> bytes | None:
        """Return what a server answers, `None` if its status says that something is missing."""
        import msgspec

        from bide.engines.http.refusals import refusal

        data = None if content is None else msgspec.json.encode(content)
        status, answer = self._connection.ask(method, path, data, "application/json")
        if status == missing and b"/docs#problem-not-found" in answer:
            return None
        if not 200 <= status < 300:
            raise refusal(self._address, status, answer)
        return answer


def access_to(store: Store) -> LocalAccess | RemoteAccess:
    """Return access to the subscriptions of a store.

    Raises:
        InvalidArgument: a package is missing.
    """
    if remote(store.url):
        access = RemoteAccess(store.url)
        store.at_close(access.close)
        return access
    require_server_extra()
    return LocalAccess(store)


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
