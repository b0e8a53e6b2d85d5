"""What is fuzzed: for each kind of input its seeds, and what takes an input.

A taker raises `Wrong` where the product did what it never may: answer with a status of 5xx other
than 503 and 507, raise anything but an error of bide, or end a command with a traceback.
"""

import base64
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

import msgspec
from click.testing import CliRunner

import bide
from bide.cli import main
from bide.engines.registry import opener
from bide.model import commands as cmd
from bide.model.errors import BideError
from bide.model.identity import SERVER_NAMESPACE
from bide.model.message import Item
from bide.model.times import LATEST, milliseconds
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.targets.http.subscription import check_url
from tests.system.server.conftest import running

__all__ = ["KINDS", "Kind", "Place", "Wrong", "place"]

OPEN = ("503", "507")
"""Statuses of 5xx that an answer may have."""


class Wrong(AssertionError):
    """The product did what it never may."""


class Place(NamedTuple):
    """Where inputs are tried: a server, and a store of its own for commands."""

    app: ServerApp
    port: int
    folder: Path

    @property
    def balanced(self) -> bool:
        """Whether all queues of the server's store balance."""
        with bide.Queue("q", f"sqlite:///{self.folder}/served.db") as queue:
            return bool(queue.audit())


class Kind(NamedTuple):
    """A kind of input."""

    seeds: list[bytes]
    take: Callable[[Place, bytes], None]


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """Start a server, and put a message there that requests may be about."""
    settings = Settings(
        store=f"sqlite:///{folder}/served.db?durability=normal",
        request_timeout=0.2,
        longest_wait=0.05,
        push=False,
    )
    app = ServerApp(settings)
    with running(app) as port:
        put = json.dumps({"id": "a", "body": {"b": [1, None, "ü"]}, "delay": 60}).encode()
        post(port, b"/v1/queues/q/messages", put, b"application/json")
        yield Place(app, port, folder)


def exchange(port: int, data: bytes, patience: float = 20) -> bytes:
    """Send bytes to the server, and return what comes until it closes or is silent."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as raw:
        try:
            raw.sendall(data)
            while piece := raw.recv(1 << 16):
                answer += piece
        except (ConnectionError, TimeoutError):
            pass  # refused before all of it was sent; or it waits for more
    for status in re.findall(rb"(?:^|\r\n)HTTP/1\.1 (5\d\d)", answer):
        if status.decode() not in OPEN:
            raise Wrong(f"the server answered {answer[:600]!r}")
    return answer


def post(port: int, path: bytes, body: bytes, kind: bytes, method: bytes = b"POST") -> bytes:
    """Send a request with a body."""
    head = b"%b %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n" % (method, path)
    head += b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
    return exchange(port, head + body)


def _raw(where: Place, data: bytes) -> None:
    exchange(where.port, data, 0.1)


def _json(where: Place, data: bytes) -> None:
    """The first line is a method and a path, the rest a body."""
    line, _, body = data.partition(b"\n")
    method, _, path = line.partition(b" ")
    if re.fullmatch(rb"[A-Z]{1,8}", method) and re.fullmatch(rb"/[!-~]*", path):
        post(where.port, path, body, b"application/json", method)


def _msgpack(where: Place, data: bytes) -> None:
    post(where.port, b"/v1/batch", data, b"application/msgpack")


def _query(where: Place, data: bytes) -> None:
    """A parameter's name, and its value as it is after decoding."""
    name, _, value = data.partition(b"=")
    query = quote_from_bytes(name).encode() + b"=" + quote_from_bytes(value).encode()
    for path in (
        b"/v1/queues/q/messages",
        b"/v1/queues/q/forecast",
        b"/v1/queues/q/past",
        b"/v1/queues/q/dead",
        b"/v1/search",
    ):
        exchange(
            where.port,
            b"GET %b?%b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n" % (path, query),
        )


def _text(function: Callable[[str], object]) -> Callable[[Place, bytes], None]:
    def take(_: Place, data: bytes) -> None:
        try:
            function(data.decode("utf-8", "surrogateescape"))
        except BideError:
            pass  # what refuses an input

    return take


def _command(where: Place, data: bytes) -> None:
    """Arguments, one a line, for a command that ends by itself."""
    words = [word for word in data.decode("utf-8", "replace").split("\n") if "\0" not in word]
    if not words or words[0] not in COMMANDS or {"--wait", "--watch", "--exec"} & {*words}:
        return
    if any("=" in word or "://" in word or word.startswith("/") for word in words):
        return  # files and servers of this machine
    url = f"sqlite:///{where.folder}/commands.db?durability=normal"
    result = CliRunner().invoke(main, words, env={"BIDE_URL": url, "COLUMNS": "80"}, input="")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise Wrong(f"{words} raised {result.exception!r}")
    if "Traceback" in result.output or result.exit_code not in (0, 1, 2, 3):
        raise Wrong(f"{words}: {result.exit_code}, {result.output[-600:]!r}")


def _record(where: Place, data: bytes) -> None:
    """What bide keeps for itself in the store, written by somebody else."""
    name, _, content = data.partition(b"\n")
    lane = where.app.service.lane
    queue = f"{SERVER_NAMESPACE}/{name.decode('ascii', 'replace')}"
    text = content.decode("utf-8", "ignore")  # a store keeps JSON as text
    if not re.fullmatch(r"[a-z.]+/[a-z]+", queue):
        return
    ids = ["/x", "/x#1"]  # the second one as stores of an earlier version have it
    items = [Item(id, text.encode(), True, group="/x", at=LATEST) for id in ids]
    lane.call(cmd.Put(queue, items, "replace"))
    try:
        for path in (b"/v1/subscriptions", b"/v1/subscriptions/x", b"/v1/usage", b"/metrics"):
            exchange(
                where.port,
                b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n" % path,
            )
    finally:
        lane.call(cmd.Cancel(queue, ids))


COMMANDS = (
    "put",
    "get",
    "list",
    "cancel",
    "reschedule",
    "counts",
    "forecast",
    "queues",
    "dead",
    "purge",
    "claim",
    "ack",
    "retry",
    "audit",
    "subscription",
    "token",
    "explain",
    "edit",
    "search",
)

_GET = b"GET /v1/queues/q/messages/a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
_CHUNKED = (
    b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b'transfer-encoding: chunked\r\n\r\n10\r\n{"body": [1, 2]}\r\n0\r\n\r\n'
)
_RUN = "2030-01-01T09:00:00.000Z"
_ITEM = Item("m", b'{"a": 1}', True, delay=60_000)


def _batch(*commands: cmd.Command) -> bytes:
    return msgspec.msgpack.encode({"commands": commands})


def _lines(*words: str) -> bytes:
    return "\n".join(words).encode()


_CURSOR = base64.urlsafe_b64encode(b"123:456:abc").rstrip(b"=")

KINDS: dict[str, Kind] = {
    "http": Kind([_GET, _CHUNKED, _GET * 3], _raw),
    "json": Kind(
        [
            b'POST /v1/queues/q/messages\n{"id": "b", "body": {"x": [1, 2.5, null, "\\u00fc"]}, '
            b'"delay": "1h", "priority": 7, "group": "g", "headers": {"h": "v"}}',
            b'POST /v1/queues/q/put\n{"messages": [{"body": 1, "at": 4102444800}, '
            b'{"bytes": "AAEC", "delay": 5}]}',
            b'PATCH /v1/queues/q/messages/a\n{"delay": "1h 30m"}',
            b'PATCH /v1/queues/q/messages/a\n{"body": [1], "group": null, "headers": {"h": "v"}, '
            b'"priority": 7, "attempts": 2, "expires": "1h"}',
            b'PATCH /v1/queues/q/messages?group=g&cursor=0.0.1\n{"delay": "1h"}',
            b'POST /v1/queues/q/messages\n{"id": "r", "body": 1, "repeat": {"cron": "0 9 * * MON", '
            b'"timezone": "Europe/Berlin", "start": 4102444800, "times": 3, "missed": "skip"}}',
            b'PATCH /v1/queues/q/messages/a\n{"repeat": {"every": "1h", '
            b'"until": "2099-01-01T00:00:00Z"}}',
            b'POST /v1/queues/q/messages/r/backfill\n{"after": "2026-01-01T00:00:00Z", '
            b'"before": 1893488400}',
            b"POST /v1/queues/q/messages/r/run-now\n{}",
            b'POST /v1/queues/q/claim\n{"count": 5, "lease": "30s", "holder": "h"}',
            b'POST /v1/queues/q/ack\n{"leases": [{"id": "a", "token": 1}]}',
            b'POST /v1/queues/q/retry\n{"leases": [{"id": "a", "token": 1}], "delay": 3}',
            b'POST /v1/queues/q/purge\n{"state": "dead"}',
            b'PUT /v1/subscriptions/shop\n{"queue": "q", "url": "https://shop.example/hook", '
            b'"headers": {"a": "b"}, "rate": 5.5, "timeout": "3s"}',
            b'POST /v1/batch\n{"commands": [{"command": "scan", "queue": "q", "limit": 5}]}',
            b"DELETE /v1/queues/q/messages?group=g&after=2026-01-01T00:00:00Z\n",
        ],
        _json,
    ),
    "msgpack": Kind(
        [
            _batch(cmd.Put("q", [_ITEM]), cmd.Claim("q", 1, 1_000, "h")),
            _batch(cmd.Scan("q", "delayed", limit=5), cmd.Count("q"), cmd.Queues("")),
            _batch(cmd.Ack("q", [cmd.Lease("a", 5)]), cmd.Cancel("q", ["a"])),
            _batch(
                cmd.Put(
                    "q", [Item("r", b"1", at=LATEST, rule='{"every":"1h"}', run=f"{_RUN} held")]
                ),
                cmd.Edit("q", ["a"], rule='{"cron":"0 9 * * MON","times":3}', run=f"{_RUN} left=3"),
                cmd.Renew("q", [cmd.Lease("r", 5)], [cmd.NextRun(LATEST, _RUN)], results=[b"1"]),
            ),
            _batch(cmd.Reschedule("q", ["a"], delay=5), cmd.Find("q", ["a", "b"])),
            _batch(
                cmd.Edit("q", ["a"], b"[1]", priority=7, expires=None, group="g", delay=5),
                cmd.Scan("q", prefix="a", limit=5),
            ),
        ],
        _msgpack,
    ),
    "query": Kind(
        [
            b"cursor=" + _CURSOR,
            b"cursor=123:456",
            b"limit=10",
            b"state=delayed",
            b"cursor=WyJxIiwwLG51bGwsMF0",
            b"id=a",
            b"body=1",
            b"header=a=b",
            b"after=2026-01-01T00:00:00Z",
            b"before=1893488400",
            b"bucket=1h",
            b"group=g",
        ],
        _query,
    ),
    "duration": Kind(
        [b"1h30m", b"5m", b"1.5", b"2 days", b"90d", b"P1DT2H", b"-3s", b"1e3"],
        _text(lambda text: milliseconds(text, "delay")),
    ),
    "url": Kind(
        [
            b"sqlite:///bide.db?mode=0660&timeout=3s",
            b"memory://x",
            b"http://:t@h:8642/x?timeout=1s",
            b"https://[::1]:8642/?ca=f&cert=g",
            b"redis://u:p@h:6379/0?timeout=5s&shards=4",
            b"redis+sentinel://h:1,h:2/main/0",
            b"rediss+cluster://h:1",
            b"unix:///run/redis.sock?db=1",
        ],
        _text(opener),
    ),
    "target": Kind(
        [
            b"https://shop.example/hook?key=1",
            b"http://127.0.0.1:80/",
            b"https://[::1]/x",
            b"amqp://u:p@mq:5672/vhost?exchange=shop&key=order.timeout&heartbeat=5",
            b"amqps://mq/%2F?exchange=x&queue=q",
        ],
        _text(check_url),
    ),
    "command": Kind(
        [
            _lines("put", "q", '{"a": 1}', "--delay", "1h", "--id", "x", "--priority", "3"),
            _lines("get", "q", "x", "--json"),
            _lines("list", "q", "--limit", "3"),
            _lines("cancel", "q", "x"),
            _lines("reschedule", "q", "x", "--delay", "2h"),
            _lines("edit", "q", "x", "[1]", "--priority", "3", "--no-group", "--header", "a=b"),
            _lines("search", "--id", "x", "--body", "1", "--cursor", "WyJxIiwwLG51bGwsMF0"),
            _lines("forecast", "q", "--bucket", "1h"),
            _lines("counts", "q", "--json"),
            _lines("dead", "list", "q"),
            _lines("claim", "q", "--lease", "5s", "--count", "2"),
            _lines("subscription", "list", "--all"),
            _lines("token", "list"),
            _lines("audit"),
        ],
        _command,
    ),
    "record": Kind(
        [
            b'subscriptions\n{"name": "x", "queue": "q", "url": "https://x.example/", "rate": 1}',
            b'subscriptions\n{"name": "x", "queue": "q", "url": "https://x/", "encrypted": "gA"}',
            b'tokens\n{"id": "x", "hash": "00", "scopes": ["admin"], "created": 1}',
            b'circuits\n{"opened": 1, "failures": 3}',
            b'workers\n{"queues": {}}',
        ],
        _record,
    ),
}
