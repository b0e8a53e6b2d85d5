"""Subscriptions: the queues that are pushed to URLs, and the state of their receivers."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from bide.model.commands import Count
from bide.model.errors import InvalidArgument
from bide.model.identity import check_subscription, split_name
from bide.model.replies import Counts
from bide.model.times import milliseconds
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.limits.request_bodies import unless_gone
from bide.server.operation import Answer, Handle, Routes
from bide.server.problem import Problem, invalid
from bide.server.routes.given import wants_fresh
from bide.server.subscriptions import subscription_wire as about
from bide.server.wire import CountsOut
from bide.targets.amqp import is_amqp, parse
from bide.targets.http.records import Overtaken
from bide.targets.http.subscription import Subscription, check_url, masked

route = Routes("subscriptions")

_SUBSCRIPTION_PATH = "/v1/subscriptions/{name}"
_IF_MATCH = {"if-match": "The etag of a GET: fails if the subscription was changed afterwards."}

T = TypeVar("T")


def _changing_route(name: str, verb: str) -> Callable[[Handle], Handle]:
    """Declare an operation that changes a subscription."""
    return route(
        name,
        "POST",
        f"{_SUBSCRIPTION_PATH}/{verb}",
        "admin",
        {200: about.SubscriptionOut},
        headers=_IF_MATCH,
        problems=(404, 412),
    )


@route("listSubscriptions", "GET", "/v1/subscriptions", "read")
async def list_subscriptions(call: ApiCall) -> about.Subscriptions:
    """List the subscriptions.

    Also shows how their receivers answer. Only callers who may change a subscription see the path
    and the query of its URL.
    """
    records, caller = call.records, call.caller
    subscriptions = [
        subscription
        for subscription in await records.listed()
        if caller.own(subscription.queue) is not None
    ]
    shown = await about.subscriptions_out(records, subscriptions, call.service.clock.now())
    return about.Subscriptions([_visible(call, subscription) for subscription in shown])


@route(
    "putSubscription",
    "PUT",
    _SUBSCRIPTION_PATH,
    "admin",
    {200: about.SubscriptionOut, 201: about.SubscriptionOut},
    problems=(412, 507),
    headers={**_IF_MATCH, "if-none-match": "*: only if there is none of this name."},
)
async def put(call: ApiCall, content: about.SubscriptionIn) -> Answer:
    """Push a queue to a URL.

    Creates a subscription (201; only this answer has its `secret`), or replaces the one of
    this name (200), which keeps its secrets and its pause. Fields that are left out get their
    defaults. A repeated request changes nothing.
    """
    name, must_be_fresh = await _name(call), wants_fresh(call)
    namespace, _ = split_name(name)
    with await call.service.quotas.exclusive(namespace):
        subscription = Subscription(name=name, **await _checked(call, name, content.fields()))
        tag = _expected_tag(call)
        work = call.records.put(subscription, content.secret, tag=tag, fresh=must_be_fresh)
        stored = await _result_of(call, work)
    return await _answer(call, stored.subscription, stored.secret, 201 if stored.fresh else 200)


@route(
    "getSubscription",
    "GET",
    _SUBSCRIPTION_PATH,
    "read",
    {200: about.SubscriptionOut},
    problems=(404,),
)
async def get(call: ApiCall) -> Answer:
    """Show a subscription.

    Its settings, its circuit, the results of its requests, and the last error.
    """
    return await _answer(call, await _result_of(call, call.records.get(await _name(call))))


@route(
    "changeSubscription",
    "PATCH",
    _SUBSCRIPTION_PATH,
    "admin",
    {200: about.SubscriptionOut},
    takes=about.SubscriptionChange,
    headers=_IF_MATCH,
    problems=(404, 412, 507),
)
async def change(call: ApiCall, content: msgspec.Struct) -> Answer:
    """Change fields of a subscription.

    After the answer, new requests use the new values; requests under way are finished.
    """
    name = await _name(call)
    namespace, _ = split_name(name)
    # One change at a time: each may use up what the quota has left.
    with await call.service.quotas.exclusive(namespace):
        fields = await _checked(call, name, about.fields_of(content))
        changing = call.records.change(name, _expected_tag(call), **fields)
        subscription = await _result_of(call, changing)
    return await _answer(call, subscription)


@route(
    "deleteSubscription",
    "DELETE",
    _SUBSCRIPTION_PATH,
    "admin",
    {204: None},
    headers=_IF_MATCH,
    problems=(404, 412),
)
async def delete(call: ApiCall) -> Answer:
    """Delete a subscription.

    Its messages stay in the queue.
    """
    await _change_named(call, call.records.delete)
    call.service.pushing.pusher.look()
    return Answer(204, b"")


@_changing_route("pauseSubscription", "pause")
async def pause(call: ApiCall, content: about.PauseRequest) -> Answer:
    """Send nothing more.

    The messages wait.
    """
    return await _answer(call, await _change_named(call, call.records.pause, content.reason))


@_changing_route("resumeSubscription", "resume")
async def resume(call: ApiCall, content: wire.EmptyRequest) -> Answer:
    """Resume sending at once.

    Also closes an open circuit.
    """
    return await _answer(call, await _change_named(call, call.records.resume))


@_changing_route("rotateSecret", "rotate")
async def rotate(call: ApiCall, content: about.RotateRequest) -> Answer:
    """Sign with a new secret.

    Only this answer shows the new `secret`. During `overlap`, each request has a signature of
    each secret.
    """
    overlap = milliseconds(wire.span(content.overlap), "overlap")
    stored = await _change_named(call, call.records.rotate, overlap, content.secret)
    return await _answer(call, stored.subscription, stored.secret)


@route("pingReceiver", "POST", f"{_SUBSCRIPTION_PATH}/ping", "admin", problems=(404,))
async def ping(call: ApiCall, content: wire.EmptyRequest) -> about.PingOut:
    """Send a request without a message.

    It is signed as all others; returns the receiver's answer.
    """
    subscription = await _result_of(call, call.records.get(await _name(call)))
    work = call.service.pushing.pusher.ping(subscription)
    reply = await unless_gone(call.request.body.receive, work, _stopping(call))
    return about.PingOut(reply.good, reply.text)


async def _stopping(call: ApiCall) -> None:
    """Wait until the server stops.

    Raises:
        Problem: always, when it does.
    """
    await call.service.stopping.wait()
    raise Problem("stopping", "the server is stopping and does not wait for receivers; ask again")


async def _name(call: ApiCall) -> str:
    """Return the name of the subscription in the path, with its namespace.

    Raises:
        InvalidArgument: the name is not valid.
        AccessDenied: the caller may not see its queue.
    """
    own = check_subscription(_within(call, "name", call.request.part("name")))
    name = call.caller.prefix(own)
    if not call.caller.of_all_queues and (known := await call.records.get(name)) is not None:
        call.caller.full(_within(call, "queue", known.queue))
    return name


def _within(call: ApiCall, field: str, given: str) -> str:
    """Return the caller's name of what may be given with the namespace of the token.

    Raises:
        Problem: it is given with another namespace.
    """
    namespace = call.caller.namespace
    if namespace is None:
        return given
    own = given.removeprefix(f"{namespace}/")
    if "/" in own:
        raise invalid(
            field,
            f"{field}={given!r} has a namespace that is not that of the token, which is for "
            f"{namespace!r}; leave it out, or use a token of that namespace",
        )
    return own


async def _checked(call: ApiCall, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Check fields and return them for the store.

    Raises:
        Problem: the queue belongs to another namespace, or the quotas have no room.
        InvalidArgument: this server does not send to the URL.
    """
    if "queue" in fields:
        fields["queue"] = call.caller.full(_within(call, "queue", fields["queue"]))
    if "url" in fields:
        check_url(fields["url"])
        if is_amqp(fields["url"]) and parse(fields["url"]).files:
            raise InvalidArgument(
                "url names files of this server; use the command line with the URL of the store"
            )
        call.service.pushing.pusher.gate.check(fields["url"])
    if "concurrency" in fields and call.service.quotas.any:
        await _find_room(call, name, fields["concurrency"])
    return fields


async def _find_room(call: ApiCall, name: str, concurrency: int) -> None:
    """Check whether the quotas have room for a subscription.

    Raises:
        Problem: the namespace would have too many, or too many requests under way.
    """
    namespace, _ = split_name(name)
    quota = call.service.quotas.of(namespace)
    all_subscriptions = await call.records.listed()
    others = [
        subscription
        for subscription in all_subscriptions
        if subscription.namespace == namespace and subscription.name != name
    ]
    if quota.subscriptions is not None and len(others) >= quota.subscriptions:
        raise Problem(
            "quota-exceeded",
            f"the namespace may have {quota.subscriptions:,} subscriptions and has "
            f"{len(others):,}; delete one, or ask for a larger quota",
        )
    if quota.push_concurrency is not None:
        free = quota.push_concurrency - sum(subscription.concurrency for subscription in others)
        if concurrency > free:
            raise Problem(
                "quota-exceeded",
                f"the subscriptions of the namespace may have {quota.push_concurrency:,} requests "
                f"under way together, of which {max(0, free):,} are left; take a smaller "
                "concurrency, or ask for a larger quota",
                field="concurrency",
            )


def _expected_tag(call: ApiCall) -> str | None:
    """Return the version in if-match, `None` for any version."""
    tag = call.request.header("if-match")
    return tag if tag is None or tag == "*" else tag.removeprefix('"').removesuffix('"')


async def _change_named(
    call: ApiCall, change: Callable[..., Coroutine[Any, Any, T | None]], *arguments: Any
) -> T:
    """Change the subscription in the path; return the result.

    Args:
        call: the call.
        change: a method of `Records`, which takes the name, then `arguments`, and last the version
            that the subscription must have.
        arguments: its other arguments.
    """
    return await _result_of(call, change(await _name(call), *arguments, _expected_tag(call)))


async def _result_of(call: ApiCall, work: Coroutine[Any, Any, T | None]) -> T:
    """Return the result of work with the subscription in the path.

    Raises:
        Problem: there is no such subscription, or it has another version.
    """
    try:
        result = await work
    except Overtaken as error:
        raise Problem(
            "precondition-failed",
            "there is no such subscription; create it without if-match"
            if error.now is None
            else "the subscription was created or changed since you looked; look again",
            headers={} if error.now is None else {"etag": f'"{error.now.tag}"'},
        ) from None
    if not result:
        name = call.request.part("name")
        raise Problem(
            "not-found",
            f"there is no subscription {name!r}; GET /v1/subscriptions lists them",
        )
    return result


async def _answer(
    call: ApiCall, subscription: Subscription, secret: str | None = None, status: int = 200
) -> Answer:
    """Return the answer about one subscription, and let the pusher notice its change.

    Args:
        call: the call.
        subscription: the subscription.
        secret: a new secret, which only this answer shows; `None`: it has none.
        status: the status of the answer.
    """
    call.service.pushing.pusher.look()
    (out,) = await about.subscriptions_out(call.records, [subscription], call.service.clock.now())
    out = _visible(call, out)
    out.secret = secret
    out.messages = CountsOut.of(await call.ask(Counts, Count(subscription.queue)))
    headers = {"etag": f'"{subscription.tag}"', "cache-control": "no-store"}
    return Answer(status, out, headers)


def _visible(call: ApiCall, out: about.SubscriptionOut) -> about.SubscriptionOut:
    """Return a subscription with the caller's names, and without secrets for readers."""
    out.name, out.queue = call.caller.name_of(out.name), call.caller.name_of(out.queue)
    if not call.caller.may("admin"):
        out.url = masked(out.url)  # its path may be a key
    return out
