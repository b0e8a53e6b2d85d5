"""Subscriptions: the queues that are pushed to URLs, and the state of their receivers."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from bide.model.commands import Count
from bide.model.errors import InvalidArgument
from bide.model.identity import check_subscription
from bide.model.replies import Counts
from bide.model.times import milliseconds
from bide.server import wire
from bide.server.call import Call
from bide.server.limits.request_bodies import unless_gone
from bide.server.operation import Answer, Handle, Routes
from bide.server.problem import Problem, invalid
from bide.server.routes.given import wants_fresh
from bide.server.subscriptions.subscription_wire import (
    PauseRequest,
    PingOut,
    RotateRequest,
    SubscriptionChange,
    SubscriptionIn,
    SubscriptionOut,
    Subscriptions,
    all_shown,
    fields_of,
    shown,
)
from bide.server.wire import CountsOut
from bide.targets.amqp import is_amqp, parse
from bide.targets.http.records import Overtaken
from bide.targets.http.subscription import Subscription, check_url, masked

route = Routes("subscriptions")

_ONE = "/v1/subscriptions/{name}"
_IF_MATCH = {"if-match": "The etag of a GET: fails if the subscription was changed afterwards."}

T = TypeVar("T")


def _changes(name: str, verb: str) -> Callable[[Handle], Handle]:
    """Declare an operation that changes a subscription."""
    return route(
        name, "POST", f"{_ONE}/{verb}", "admin", {200: SubscriptionOut}, headers=_IF_MATCH,
        problems=(404, 412),
    )  # fmt: skip


@route("listSubscriptions", "GET", "/v1/subscriptions", "read")
async def list_subscriptions(call: Call) -> Subscriptions:
    """List the subscriptions.

    Also shows how their receivers answer. Only callers who may change a subscription see the path
    and the query of its URL.
    """
    records, caller = call.records, call.caller
    mine = [one for one in await records.listed() if caller.own(one.source) is not None]
    found = await all_shown(records, mine, call.service.clock.now())
    return Subscriptions([_visible(call, one, out) for one, out in found])


@route(
    "putSubscription", "PUT", _ONE, "admin", {200: SubscriptionOut, 201: SubscriptionOut},
    problems=(412, 507),
    headers={**_IF_MATCH, "if-none-match": "*: only if there is none of this name."},
)  # fmt: skip
async def put(call: Call, asked: SubscriptionIn) -> Answer:
    """Push a queue to a URL.

    Creates a subscription (201; only this answer has its `secret`), or replaces the one of
    this name (200), which keeps its secrets and its pause. Fields that are left out get their
    defaults. A repeated request changes nothing.
    """
    namespace, _, name = (key := await _key(call)).rpartition("/")
    fresh = wants_fresh(call)
    async with call.service.subscribing[namespace]:
        fields = await _checked(call, key, asked.fields())
        new = Subscription(name=name, namespace=namespace or None, **fields)
        work = call.records.put(new, asked.secret, tag=_tag(call), fresh=fresh)
        kept = await _done(call, work)
    return await _answer(call, kept.subscription, kept.secret, 201 if kept.fresh else 200)


@route("getSubscription", "GET", _ONE, "read", {200: SubscriptionOut}, problems=(404,))
async def get(call: Call) -> Answer:
    """Show a subscription.

    Its settings, its circuit, the results of its requests, and the last error.
    """
    return await _answer(call, await _known(call))


@route(
    "changeSubscription", "PATCH", _ONE, "admin", {200: SubscriptionOut}, takes=SubscriptionChange,
    headers=_IF_MATCH, problems=(404, 412, 507),
)  # fmt: skip
async def change(call: Call, asked: msgspec.Struct) -> Answer:
    """Change fields of a subscription.

    After the answer, new requests use the new values; requests under way are finished.
    """
    key = await _key(call)
    async with call.service.subscribing[key.rpartition("/")[0]]:
        fields = await _checked(call, key, fields_of(asked))
        done = await _done(call, call.records.change(key, _tag(call), **fields))
    return await _answer(call, done)


@route(
    "deleteSubscription", "DELETE", _ONE, "admin", {204: None}, headers=_IF_MATCH,
    problems=(404, 412),
)  # fmt: skip
async def delete(call: Call) -> Answer:
    """Delete a subscription.

    Its messages stay in the queue.
    """
    await _changed(call, call.records.delete)
    call.service.pushing.pusher.look()
    return Answer(204, b"")


@_changes("pauseSubscription", "pause")
async def pause(call: Call, asked: PauseRequest) -> Answer:
    """Send nothing more.

    The messages wait.
    """
    return await _answer(call, await _changed(call, call.records.pause, asked.reason))


@_changes("resumeSubscription", "resume")
async def resume(call: Call, asked: wire.Empty) -> Answer:
    """Resume sending at once.

    Also closes an open circuit.
    """
    return await _answer(call, await _changed(call, call.records.resume))


@_changes("rotateSecret", "rotate")
async def rotate(call: Call, asked: RotateRequest) -> Answer:
    """Sign with a new secret.

    Only this answer shows the new `secret`. During `overlap`, each request has a signature of
    each secret.
    """
    overlap = milliseconds(wire.span(asked.overlap), "overlap")
    one, secret = await _changed(call, call.records.rotate, overlap, asked.secret)
    return await _answer(call, one, None if asked.secret else secret)


@route("pingReceiver", "POST", f"{_ONE}/ping", "admin", problems=(404,))
async def ping(call: Call, asked: wire.Empty) -> PingOut:
    """Send a request without a message.

    It is signed as all others; returns the receiver's answer.
    """
    known = await _known(call)
    work = call.service.pushing.pusher.ping(known)
    reply = await unless_gone(call.receive, work, _stopping(call))
    return PingOut(reply.good, reply.text)


async def _stopping(call: Call) -> None:
    await call.service.stopping.wait()
    raise Problem("stopping", "the server is stopping and does not wait for receivers; ask again")


async def _key(call: Call) -> str:
    """Return the key of the subscription in the path.

    A caller without a namespace names that of the subscription: shop/hooks.

    Raises:
        InvalidArgument: the name is not valid.
        AccessDenied: the caller may not see its queue.
    """
    mine, given = call.caller.namespace, call.part("name")
    name = check_subscription(given if mine is None else f"{mine}/{given}")
    key = name if "/" in name else f"/{name}"
    if not call.caller.of_all_queues and (known := await call.records.get(key)) is not None:
        call.caller.full(known.source if mine is None else known.queue)
    return key


async def _checked(call: Call, key: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Check fields and return them for the store.

    Raises:
        Problem: the queue belongs to another namespace, or the quotas have no room.
        InvalidArgument: this server does not send to the URL.
    """
    namespace = key.rpartition("/")[0]
    if "queue" in fields:
        its, _, queue = call.caller.full(fields["queue"]).rpartition("/")
        if its != namespace:
            raise invalid(
                "queue",
                f"queue={fields['queue']!r} is not in the namespace of the subscription "
                f"{key.removeprefix('/')!r}; use one that is",
            )
        fields["queue"] = queue
    if "url" in fields:
        check_url(fields["url"])
        if is_amqp(fields["url"]) and parse(fields["url"]).files:
            raise InvalidArgument(
                "url names files of this server; use the command line with the URL of the store"
            )
        call.service.pushing.gate.check(fields["url"])
    if "concurrency" in fields and call.service.quotas.any:
        await _find_room(call, key, fields["concurrency"])
    return fields


async def _find_room(call: Call, key: str, concurrency: int) -> None:
    """Check whether the quotas have room for a subscription.

    Raises:
        Problem: the namespace would have too many, or too many requests under way.
    """
    namespace = key.rpartition("/")[0] or None
    quota = call.service.quotas.of(namespace)
    others = [one for one in await call.records.of(namespace) if one.key != key]
    if quota.subscriptions is not None and len(others) >= quota.subscriptions:
        raise Problem(
            "quota-exceeded",
            f"the namespace may have {quota.subscriptions:,} subscriptions and has "
            f"{len(others):,}; delete one, or ask for a larger quota",
        )
    if quota.push_concurrency is not None:
        left = quota.push_concurrency - sum(one.concurrency for one in others)
        if concurrency > left:
            raise Problem(
                "quota-exceeded",
                f"the subscriptions of the namespace may have {quota.push_concurrency:,} requests "
                f"under way together, of which {max(0, left):,} are left; take a smaller "
                "concurrency, or ask for a larger quota",
                field="concurrency",
            )


def _tag(call: Call) -> str | None:
    """Return the version in if-match, `None` for any version."""
    tag = call.header("if-match")
    return tag if tag is None or tag == "*" else tag.removeprefix('"').removesuffix('"')


async def _changed(
    call: Call, change: Callable[..., Coroutine[Any, Any, T | None]], *given: Any
) -> T:
    """Change the subscription in the path; return the result."""
    return await _done(call, change(await _key(call), *given, _tag(call)))


async def _done(call: Call, work: Coroutine[Any, Any, T | None]) -> T:
    """Return the result of work with the subscription in the path.

    Raises:
        Problem: there is no such subscription, or it has another version.
    """
    try:
        done = await work
    except Overtaken as error:
        raise Problem(
            "precondition-failed",
            "there is no such subscription; create it without if-match"
            if error.now is None
            else "the subscription was created or changed since you looked; look again",
            headers={} if error.now is None else {"etag": f'"{error.now.tag}"'},
        ) from None
    if not done:
        raise Problem(
            "not-found",
            f"there is no subscription {call.part('name')!r}; GET /v1/subscriptions lists them",
        )
    return done


async def _known(call: Call) -> Subscription:
    return await _done(call, call.records.get(await _key(call)))


async def _answer(
    call: Call, one: Subscription, secret: str | None = None, status: int = 200
) -> Answer:
    call.service.pushing.pusher.look()
    peers = call.records.peers
    circuit, deliveries = await peers.circuit(one.key), (await peers.deliveries()).get(one.key)
    out = _visible(call, one, shown(one, circuit, call.service.clock.now(), secret, deliveries))
    out.messages = CountsOut.of(await call.ask(Counts, Count(one.source)))
    headers = {"etag": f'"{one.tag}"', "cache-control": "no-store"}
    return Answer(status, out, headers)


def _visible(call: Call, one: Subscription, out: SubscriptionOut) -> SubscriptionOut:
    """Return a subscription with the caller's names, and without secrets for readers."""
    if call.caller.namespace is None:
        out.name, out.queue = one.full_name, one.source
    if not call.caller.may("admin"):
        out.url = masked(out.url)  # its path may be a key
    return out
