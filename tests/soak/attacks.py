"""What hostile clients do to a server: each attack runs until its time is over, from loopback.

An attack is a coroutine function of a `Target`. It opens its own connections, from several loopback
addresses, and swallows what the server answers: refusing is what the server should do.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable

import msgspec

from tests.soak.target import Target, at_once, connected, request_of, send_on, stream_on

__all__ = ["ATTACKS", "SEEN"]

Attack = Callable[[Target], Awaitable[None]]


async def endless_header(target: Target) -> None:
    """One header field without an end."""
    await at_once(2, lambda: stream_on(target, b"GET / HTTP/1.1\r\nX: ", b"a" * 16_384))


async def endless_fields(target: Target) -> None:
    """Short header lines without an end."""
    await at_once(2, lambda: stream_on(target, b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 2_000))


async def silent_connections(target: Target) -> None:
    """Connections that never say anything."""

    async def wait() -> None:
        async with connected(target) as (reader, _):
            await reader.read()

    await at_once(300, wait)


async def slow_heads(target: Target) -> None:
    """Heads that come a byte at a time."""
    await at_once(100, lambda: stream_on(target, b"GET / HTTP/1.1\r\nX: ", b"a", 0.5))


async def half_bodies(target: Target) -> None:
    """Bodies that are announced, begun and never ended."""
    head = request_of(target, "POST", "/v1/queues/q/put").replace(
        b"Content-Length: 0", b"Content-Length: 30000000"
    )
    await at_once(40, lambda: stream_on(target, head + b'{"messages": [', b" " * 4_096, 0.05))


async def deep_null(target: Target) -> None:
    """A body with a null and long keys, whose places are expensive to write down."""
    body = {"k" * 5_000: [*range(200_000), None]}
    request = request_of(target, "POST", "/v1/queues/q/messages", {"body": body})
    await at_once(2, lambda: send_on(target, request))


async def many_objects(target: Target) -> None:
    """Thirty megabytes of empty messages, and a message that is nothing but headers."""
    empty = b'{"messages": [' + b"{}," * 10_000_000 + b"{}]}"
    fields = b",".join(b'"%x":""' % number for number in range(2_500_000))
    headers = b'{"messages": [{"body": 1, "headers": {' + fields + b"}}]}"
    await _large(target, "/v1/queues/q/put", empty, headers)


async def dense_bodies(target: Target) -> None:
    """Thirty megabytes of bodies in which each byte or two is a value.

    They are refused at the last message: to store them is one commit, for which others wait.
    """
    lists = b'{"body": [' + b"[]," * 300_000 + b"1]}"
    deep = b'{"body": [' + b"[" * 490 + b"]" * 490 + b"," + b"1," * 400_000 + b"1]}"
    await _large(
        target,
        "/v1/queues/q/put",
        *(b'{"messages": [' + b",".join([one] * 30) + b', {"nope": 1}]}' for one in (lists, deep)),
    )


async def nested_bodies(target: Target) -> None:
    """Bodies that are mostly brackets, and too large once they are read."""
    levels = b"[" * 490 + b"]" * 490
    nested = b'{"body": [' + b",".join([levels] * 6_000) + b"]}"
    brackets = b'{"body": [' + b"[]," * 1_900_000 + b"1]}"
    many = b'{"messages": [' + b",".join([nested] * 5) + b"]}"
    async with asyncio.TaskGroup() as group:
        group.create_task(_large(target, "/v1/queues/q/messages", nested, brackets))
        group.create_task(_large(target, "/v1/queues/q/put", many))


async def dense_json(target: Target) -> None:
    """Names, holds and unknown fields by the million, where there may be ten thousand."""
    names = b'{"commands": [{"command": "cancel", "queue": "q", "ids": [%b""]}]}'
    leases = b'{"leases": [' + b'{"id":"","token":1},' * 1_400_000 + b"{}]}"
    nested = b'{"leases": [' + b"[" * 490 + b"]" * 490
    async with asyncio.TaskGroup() as group:
        group.create_task(_large(target, "/v1/batch", names % (b'"",' * 390_000)))
        group.create_task(_large(target, "/v1/queues/q/ack", leases, nested * 30_000))


async def packed(target: Target) -> None:
    """Batches in msgpack: as many messages, ids and holds as may be, and junk between them."""
    ids = [str(number) for number in range(100_000)]
    items = [{"id": id, "data": b"1"} for id in ids]
    headers = dict.fromkeys(ids, "")
    dense = b"[" + b"[]," * 21_000 + b"1]"
    nested = b"\xdd\0\0\xea\x60" + (b"\x91" * 499 + b"\x90") * 60_000
    commands: list[dict[str, object]] = [
        {"command": "cancel", "ids": ids},
        {"command": "ack", "leases": [[id, 1] for id in ids]},
        {"command": "put", "items": [*items, {"id": ""}]},
        {"command": "put", "items": [{"id": "a", "data": b"1", "headers": headers}]},
        {"command": "cancel", "ids": [], "versions": [""] * 20_000_000},
        {"command": "cancel", "junk": msgspec.Raw(nested)},
        {"command": "find", "ids": [], **dict.fromkeys(map(str, range(2_000_000)))},
        {"command": "ack", "leases": [[id, 1] for id in ids[:400]], "results": [dense] * 400},
    ]
    batches = [msgspec.msgpack.encode({"commands": [{"queue": "q", **c}]}) for c in commands]
    await _large(target, "/v1/batch", *batches, kind="msgpack")


async def _large(target: Target, path: str, *bodies: bytes, kind: str = "json") -> None:
    """Send large requests, each again and again on two connections."""

    async def send(data: bytes) -> None:
        head = request_of(target, "POST", path).replace(b"/json", b"/" + kind.encode())
        length = b"Content-Length: %d" % len(data)
        await send_on(target, head.replace(b"Content-Length: 0", length) + data)

    async with asyncio.TaskGroup() as group:
        for data in bodies:
            group.create_task(at_once(2, lambda data=data: send(data)))  # type: ignore[misc]


async def slow_reads(target: Target) -> None:
    """Batches of a thousand audits of a queue that is not small, behind a put."""
    messages = [{"body": 1, "delay": 3_600, "group": f"g{n}"} for n in range(10_000)]
    fill = request_of(target, "POST", "/v1/queues/slow/put", {"messages": messages})
    put = {"command": "put", "queue": "slow", "items": [{"id": "a", "data": "MQ=="}]}
    audit = {"command": "count", "queue": "slow", "recount": True}
    filtered = {"command": "scan", "queue": "slow", "state": "delayed", "where": {"group": "none"}}
    batch = request_of(target, "POST", "/v1/batch", {"commands": [put] + [audit, filtered] * 499})

    await asyncio.wait_for(
        _send_once(target, fill.replace(b"Host", b"Connection: close\r\nHost")), 60
    )
    await at_once(8, lambda: send_on(target, batch))


async def many_queues(target: Target) -> None:
    """Messages in as many queues as there may be, and all figures of these again and again."""
    numbers = itertools.count()

    async def put() -> None:
        async with connected(target) as (reader, writer):
            while True:
                path = f"/v1/queues/many{next(numbers)}/messages"
                writer.write(request_of(target, "POST", path, {"body": 1, "delay": 3_600}))
                if not await reader.read(1 << 16):
                    return

    look = request_of(target, "GET", "/v1/events?counts=0.1")
    async with asyncio.TaskGroup() as group:
        group.create_task(at_once(2, put))
        group.create_task(
            at_once(2, lambda: send_on(target, request_of(target, "GET", "/metrics")))
        )
        group.create_task(
            at_once(2, lambda: send_on(target, request_of(target, "GET", "/v1/queues")))
        )
        group.create_task(at_once(50, lambda: _send_once(target, look)))


async def unknown_fields(target: Target) -> None:
    """A megabyte of fields that no message has."""
    body = {"body": 1, **{f"delai{number}": number for number in range(60_000)}}
    request = request_of(target, "POST", "/v1/queues/q/messages", body)
    await at_once(2, lambda: send_on(target, request))


async def huge_scans(target: Target) -> None:
    """Batches of a thousand scans over messages of 100 kB."""
    messages = [{"id": f"big{n}", "body": "x" * 100_000, "delay": 3_600} for n in range(100)]
    put = request_of(target, "POST", "/v1/queues/big/put", {"messages": messages})
    scans = [{"command": "scan", "queue": "big", "limit": 1_000}] * 1_000
    batch = request_of(target, "POST", "/v1/batch", {"commands": scans})

    async def scan() -> None:
        async with connected(target) as (reader, writer):
            writer.write(put)
            await reader.read(1 << 16)
            writer.write(batch)
            while await reader.read(1 << 20):
                pass

    await at_once(2, scan)


async def slow_readers(target: Target) -> None:
    """Requests for large answers that are never read."""
    messages = [{"id": f"m{n}", "body": "x" * 100_000, "delay": 3_600} for n in range(80)]
    await _accepted(
        target, request_of(target, "POST", "/v1/queues/unread/put", {"messages": messages})
    )
    get = request_of(target, "GET", "/v1/queues/unread/messages?limit=1000") * 50

    async def ask() -> None:
        async with connected(target) as (reader, writer):
            writer.write(get)
            await writer.drain()
            await asyncio.sleep(5)
            await reader.read(1)

    await at_once(10, ask)


async def gone_readers(target: Target) -> None:
    """Lists, searches, claims and pages of large messages, from clients that do not wait."""
    cookie = await _filled(target)
    page = f"GET /dashboard/queue?queue=large HTTP/1.1\r\nHost: {target.host}\r\n{cookie}\r\n\r\n"
    requests = [
        request_of(target, "GET", "/v1/queues/large/messages?limit=1000"),
        request_of(target, "GET", "/v1/search?body=none"),
        request_of(target, "POST", "/v1/queues/large/claim", {"count": 1_000, "lease": "1s"}),
        page.encode(),
    ]

    async def leave(request: bytes) -> None:
        async with connected(target) as (_, writer):
            writer.write(request)
            await writer.drain()

    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(at_once(4, lambda request=request: leave(request)))  # type: ignore[misc]


async def open_readers(target: Target) -> None:
    """The same from clients that wait, each on many connections at once."""
    cookie = await _filled(target)
    scans = {"commands": [{"command": "scan", "queue": "large"}] * 100}
    requests = [
        request_of(target, "GET", "/v1/queues/large/messages?limit=1000"),
        request_of(target, "POST", "/v1/batch", scans),
        f"GET /dashboard/message?queue=large&id=m1 HTTP/1.1\r\nHost: {target.host}\r\n{cookie}"
        "\r\n\r\n".encode(),
    ]
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(at_once(50, lambda request=request: send_on(target, request)))  # type: ignore[misc]


async def explanations(target: Target) -> None:
    """Batches of a thousand explanations, on many connections."""
    await _filled(target)
    explain = {"command": "explain", "queue": "large", "id": "m1"}
    batch = request_of(target, "POST", "/v1/batch", {"commands": [explain] * 1_000})
    await at_once(150, lambda: send_on(target, batch))


async def _filled(target: Target) -> str:
    """Put large messages; return the header with the cookie of a session of the dashboard."""
    for number in range(60):
        body = {"body": "ab" * 200_000, "delay": 3_600}
        put = request_of(target, "PUT", f"/v1/queues/large/messages/m{number}", body)
        await _accepted(target, put)
    form = f"token={target.token}".encode()
    login = (
        f"POST /dashboard/login HTTP/1.1\r\nHost: {target.host}\r\nContent-Type: "
        f"application/x-www-form-urlencoded\r\nContent-Length: {len(form)}\r\n\r\n"
    )
    while True:
        with contextlib.suppress(OSError):
            async with connected(target) as (reader, writer):
                writer.write(login.encode() + form)
                head = (await reader.read(1 << 16)).decode()
                if "set-cookie: " in head:
                    cookie = head.partition("set-cookie: ")[2].partition(";")[0]
                    return f"Cookie: {cookie}"
        await asyncio.sleep(0.1)


async def event_streams(target: Target) -> None:
    """Two thousand event streams, and puts that each of them is told of."""
    stream = request_of(target, "GET", "/v1/events?prefix=q")
    put = request_of(target, "POST", "/v1/queues/q/messages", {"body": 1, "delay": 3_600})

    async with asyncio.TaskGroup() as group:
        group.create_task(at_once(500, lambda: _send_once(target, stream)))
        group.create_task(at_once(2, lambda: send_on(target, put)))


async def long_polls(target: Target) -> None:
    """A thousand claims that wait."""
    claim = request_of(target, "POST", "/v1/queues/none/claim", {"count": 1, "wait": 300})
    await at_once(400, lambda: _send_once(target, claim))


async def _send_once(target: Target, request: bytes) -> None:
    async with connected(target) as (reader, writer):
        writer.write(request)
        while await reader.read(1 << 16):
            pass


async def failed_logins(target: Target) -> None:
    """Tokens that are guessed."""
    guess = target._replace(token="bide_0123456789ab_" + "x" * 43)
    await at_once(8, lambda: send_on(target, request_of(guess, "GET", "/v1/queues")))


async def escaped(target: Target) -> None:
    """Forms, queries and paths of nothing but escaped characters."""
    head = (
        "POST /dashboard/login HTTP/1.1\r\nHost: a\r\nContent-Type: "
        "application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n"
    )
    forms = [b"token=" + b"%41" * number for number in (1_300, 340_000)]
    async with asyncio.TaskGroup() as group:
        for form in forms:
            request = head.format(len(form)).encode() + form
            group.create_task(at_once(4, lambda request=request: send_on(target, request)))  # type: ignore[misc]
        for path in ("/dashboard/", "/dashboard/?prefix=", "/v1/queues?prefix=", "/v1/queues/"):
            request = request_of(target, "GET", path + "%41" * 20_000)
            group.create_task(at_once(2, lambda request=request: send_on(target, request)))  # type: ignore[misc]


async def long_paths(target: Target) -> None:
    """Requests for unknown paths of 60 kB, for the access log to hold."""
    await at_once(4, lambda: send_on(target, request_of(target, "GET", "/" + "p" * 60_000)))


async def pipelined(target: Target) -> None:
    """Requests in a row whose answers nobody reads."""
    get = request_of(target, "GET", "/healthz") * 200

    async def flood() -> None:
        async with connected(target) as (_, writer):
            while not writer.transport.is_closing():
                writer.write(get)
                await asyncio.wait_for(writer.drain(), 5)

    await at_once(4, flood)


async def hanging_receivers(target: Target) -> None:
    """Push to a receiver that takes connections and never answers."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await reader.read()
        writer.close()

    await _pushed(target, hang, "hang")


async def endless_continue(target: Target) -> None:
    """Push to a receiver that answers 100 Continue without an end."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while not writer.is_closing():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 500)
                await writer.drain()
        writer.close()

    await _pushed(target, repeat, "continue")


async def _pushed(
    target: Target,
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    name: str,
) -> None:
    """Have the server push messages to a receiver of ours."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        wanted = {"queue": name, "url": f"http://127.0.0.1:{port}/", "concurrency": 64}
        subscribe = request_of(target, "PUT", f"/v1/subscriptions/{name}", wanted)
        messages = [{"body": number} for number in range(500)]
        put = request_of(target, "POST", f"/v1/queues/{name}/put", {"messages": messages})
        for request in (subscribe, put):
            await _accepted(target, request)
        await asyncio.Event().wait()


async def _accepted(target: Target, request: bytes) -> None:
    """Send a request until the server accepts it: in a crowd it drops connections."""
    while True:
        with contextlib.suppress(OSError):
            async with connected(target) as (reader, writer):
                writer.write(request)
                if (await reader.read(1 << 16)).startswith(b"HTTP/1.1 2"):
                    return
        await asyncio.sleep(0.1)


SEEN = {
    "escaped": r"POST /dashboard/login 401",
    "event_streams": r"GET /v1/events (200|499)",
    "hanging_receivers": r"PUT /v1/subscriptions/hang 20",
    "endless_continue": r"PUT /v1/subscriptions/continue 20",
    "gone_readers": r"GET /v1/queues/large/messages (200|499)",
    "open_readers": r"GET /dashboard/message 200",
    "explanations": r"POST /v1/batch 200",
    "slow_readers": r"GET /v1/queues/unread/messages (200|499)",
}
"""What the log of the server tells if an attack is one: it needs a right, or a valid request."""

ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        endless_header,
        endless_fields,
        silent_connections,
        slow_heads,
        half_bodies,
        deep_null,
        many_objects,
        dense_bodies,
        nested_bodies,
        dense_json,
        packed,
        gone_readers,
        open_readers,
        explanations,
        unknown_fields,
        huge_scans,
        slow_reads,
        many_queues,
        slow_readers,
        event_streams,
        long_polls,
        failed_logins,
        escaped,
        long_paths,
        pipelined,
        hanging_receivers,
        endless_continue,
    )
}
