"""Each limit of input holds: what is at the limit is taken, one past it is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.model import limits
from bide.model.errors import InvalidArgument
from bide.model.limits import (
    MAX_BATCH_MESSAGES,
    MAX_BODY,
    MAX_BUCKETS,
    MAX_BYTES,
    MAX_CLAIMERS,
    MAX_COMMANDS,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_DETAIL,
    MAX_DURATION_TEXT,
    MAX_FIELDS_TOTAL,
    MAX_HEADERS,
    MAX_HTTP_IDS,
    MAX_HTTP_MESSAGES,
    MAX_HTTP_PAGE,
    MAX_JSON,
    MAX_LEASE,
    MAX_LEASE_TOKEN,
    MAX_LOGGED_METHOD,
    MAX_LOGGED_PATH,
    MAX_NAME,
    MAX_OBJECTS,
    MAX_PAGE,
    MAX_PATTERNS,
    MAX_PUT_FAILURES,
    MAX_QUERY,
    MAX_QUEUE,
    MAX_ROW,
    MAX_TOKEN_NAME,
    MAX_TYPO,
    MAX_URL,
    MAX_VALUES,
)
from bide.model.message import MAX_ATTEMPT, MAX_ATTEMPTS
from bide.server.limits.open_calls import Claimers
from bide.server.limits.request_bodies import UNCHECKED_BYTES
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve

TESTS = Path(__file__).parents[2]

Send = Callable[[Client, int], Reply]


def batch(*commands: dict[str, Any]) -> Send:
    return lambda client, _: client.post("/v1/batch", {"commands": [*commands]})


def put(**fields: Any) -> Callable[[Client], Reply]:
    return lambda client: client.post(f"{Q}/messages", {"body": 1, **fields})


def command(client: Client, tag: str, **fields: Any) -> Reply:
    return client.post("/v1/batch", {"commands": [{"command": tag, "queue": "orders", **fields}]})


def nested(depth: int) -> bytes:
    return b'{"body": ' + b"[" * depth + b"]" * depth + b"}"


def leases(count: int) -> dict[str, Any]:
    return {"leases": [{"id": str(n), "token": 1} for n in range(count)]}


FAILURE = [1, 0, "w", "r"]

REQUESTS: dict[str, tuple[int, Send]] = {
    "MAX_BATCH_MESSAGES": (
        MAX_BATCH_MESSAGES,
        lambda client, n: client.post(
            "/v1/batch",
            {
                "commands": [
                    {"command": "claim", "queue": "none", "count": count, "lease": 1, "holder": "w"}
                    for count in (100_000, 50_000, n - 150_000)
                ]
            },
        ),
    ),
    "MAX_BODY": (MAX_BODY, lambda client, n: put(body="x" * (n - 2))(client)),
    "MAX_BUCKETS": (
        MAX_BUCKETS,
        lambda client, n: client.get(f"{Q}/forecast?bucket=1&horizon={n}"),
    ),
    "MAX_BYTES": (MAX_BYTES, lambda client, n: command(client, "scan", max_bytes=n)),
    "MAX_COMMANDS": (
        MAX_COMMANDS,
        lambda client, n: batch(*[{"command": "count", "queue": "q"}] * n)(client, n),
    ),
    "MAX_COUNT": (MAX_COUNT, lambda client, n: command(client, "scan", limit=n)),
    "MAX_DEPTH": (
        MAX_DEPTH,
        lambda client, n: client.send("POST", f"{Q}/messages", data=nested(n)),
    ),
    "MAX_DURATION_TEXT": (
        MAX_DURATION_TEXT,
        lambda client, n: put(delay="0" * (n - 2) + "1s")(client),
    ),
    "MAX_HTTP_IDS": (
        MAX_HTTP_IDS,
        lambda client, n: client.post(f"{Q}/revive", {"ids": [str(i) for i in range(n)]}),
    ),
    "MAX_HTTP_MESSAGES": (
        MAX_HTTP_MESSAGES,
        lambda client, n: client.post(f"{Q}/claim", {"count": n}),
    ),
    "MAX_HTTP_PAGE": (MAX_HTTP_PAGE, lambda client, n: client.get(f"{Q}/messages?limit={n}")),
    "MAX_LEASE": (MAX_LEASE, lambda client, n: client.post(f"{Q}/claim", {"lease": f"{n}ms"})),
    "MAX_NAME": (MAX_NAME, lambda client, n: client.put(f"{Q}/messages/{'i' * n}", {"body": 1})),
    "MAX_QUEUE": (
        MAX_QUEUE,
        lambda client, n: client.put(f"/v1/queues/{'q' * n}/messages/m", {"body": 1}),
    ),
    "MAX_PUT_FAILURES": (
        MAX_PUT_FAILURES,
        lambda client, n: command(
            client, "put", items=[{"id": "f", "data": "MQ==", "failures": [FAILURE] * n}]
        ),
    ),
    "MAX_QUERY": (
        MAX_QUERY,
        lambda client, n: client.get(f"{Q}/messages?{'&'.join(['limit=1'] * n)}"),
    ),
    "MAX_URL": (
        MAX_URL,
        lambda client, n: client.get(f"{Q}/messages?group={'x' * (n - 40)}&group=g"),
    ),
    "escaped characters of a name in a path": (
        3 * MAX_NAME,
        lambda client, n: client.put(
            f"{Q}/messages/{'%69' * (n // 3)}{'i' * (n % 3)}", {"body": 1}
        ),
    ),
    "MAX_ROW": (
        MAX_ROW,
        lambda client, n: command(
            client, "cancel", ids=["a"], origin={"outbox": "o" * n, "rows": ["r"]}
        ),
    ),
    "MAX_ATTEMPT": (
        MAX_ATTEMPT,
        lambda client, n: command(client, "put", items=[{"id": "a", "data": "MQ==", "attempt": n}]),
    ),
    "MAX_ATTEMPTS": (MAX_ATTEMPTS, lambda client, n: put(attempts=n)(client)),
    "priority": (255, lambda client, n: put(priority=n)(client)),
    "group": (MAX_NAME, lambda client, n: put(group="g" * n)(client)),
    "holder": (MAX_NAME, lambda client, n: client.post(f"{Q}/claim", {"holder": "h" * n})),
    "ack": (MAX_HTTP_MESSAGES, lambda client, n: client.post(f"{Q}/ack", leases(n))),
    "putMany": (
        MAX_HTTP_MESSAGES,
        lambda client, n: client.post(f"{Q}/put", {"messages": [{"body": 1}] * n}),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_at_the_limit_is_taken_and_one_past_it_is_not(client: Client, name: str) -> None:
    most, send = REQUESTS[name]
    assert send(client, most).status in (200, 201, 409)  # 409: there is no such lease
    refused = send(client, most + 1)
    assert refused.status == (413 if name == "MAX_BATCH_MESSAGES" else 400)
    assert refused.problem["detail"]


def test_a_lease_token_is_bounded(client: Client) -> None:
    def ack(length: int) -> Reply:
        token = "1" * 16 + "." + "s" * (length - 17)
        return client.post(f"{Q}/ack", {"leases": [{"id": "a", "token": token}]})

    assert (ack(MAX_LEASE_TOKEN).status, ack(MAX_LEASE_TOKEN + 1).status) == (409, 400)


def test_what_tokens_are_made_of_is_bounded(make_token: Any) -> None:
    for known, past in (
        ({"name": "n" * MAX_TOKEN_NAME}, {"name": "m" * (MAX_TOKEN_NAME + 1)}),
        (
            {"queues": [f"q{n}" for n in range(MAX_PATTERNS)]},
            {"queues": [f"q{n}" for n in range(MAX_PATTERNS + 1)]},
        ),
    ):
        assert make_token("shop", "read", **known)
        with pytest.raises(InvalidArgument):
            make_token("shop", "read", **past)


def large(one: bytes, count: int, begin: bytes, end: bytes) -> bytes:
    """Return a request of more than a megabyte: spaces are worth nothing."""
    return begin + b" " * UNCHECKED_BYTES + b",".join([one] * count) + end


@pytest.mark.parametrize(
    ("path", "one", "most", "begin", "end"),
    [
        ("/ack", b"{}", MAX_OBJECTS - 1, b'{"leases": [', b"]}"),
        ("/revive", b'"i"', MAX_VALUES + 1, b'{"ids": [', b"]}"),
    ],
)
def test_a_large_request_holds_a_bounded_number_of_objects(
    client: Client, path: str, one: bytes, most: int, begin: bytes, end: bytes
) -> None:
    def send(count: int) -> Reply:
        return client.send("POST", f"{Q}{path}", data=large(one, count, begin, end))

    assert send(most).status == 400  # too many, or wrong: found once it was read
    assert send(most + 1).status == 413


def test_a_large_message_may_hold_anything_in_its_body(serve: Serve) -> None:
    client = serve(max_body=4 << 20)
    body = b'{"body": [' + b",".join([b"{}"] * (MAX_OBJECTS + 300_000)) + b"]}"
    assert len(body) > UNCHECKED_BYTES
    assert client.send("POST", f"{Q}/messages", data=body).status == 201


def test_headers_of_a_request_are_bounded(client: Client) -> None:
    fields = b",".join(b'"%d":""' % number for number in range(10_000))
    message = b'{"body": 1, "headers": {' + fields + b"}}"
    assert MAX_FIELDS_TOTAL % 10_000 == 0

    def send(more: bytes) -> Reply:
        messages = b",".join([*[message] * (MAX_FIELDS_TOTAL // 10_000), more])
        return client.send("POST", f"{Q}/put", data=b'{"messages": [' + messages + b"]}")

    assert send(b'{"body": 1}').status == 200
    assert send(b'{"body": 1, "headers": {"a": "b"}}').status == 413


@pytest.mark.parametrize("path", ["messages", "put"])
def test_headers_of_a_message_are_bounded(client: Client, path: str) -> None:
    def send(size: int) -> Reply:
        message = b'{"id": "a", "body": 1, "headers": {"a":"%b"}}' % (b"b" * (size - 8))
        data = b'{"messages": [' + message + b"]}" if path == "put" else message
        return client.send("POST", f"{Q}/{path}", data=data)

    assert send(MAX_HEADERS).status in (200, 201)
    refused = send(MAX_HEADERS + 1)
    assert refused.status == 400
    assert "headers take 262,145 bytes, the limit is 262,144" in refused.problem["detail"]


def test_a_request_in_json_without_messages_is_bounded(client: Client) -> None:
    def send(size: int) -> Reply:
        begin = b'{"leases": [{"id": "a", "token": 1}]'
        return client.send("POST", f"{Q}/ack", data=begin + b" " * (size - len(begin) - 1) + b"}")

    assert (send(MAX_JSON).status, send(MAX_JSON + 1).status) == (409, 413)


def test_a_page_of_a_scan_is_bounded() -> None:
    with bide.Queue("orders", "memory://pages") as orders:
        assert list(orders.scan(page=MAX_PAGE)) == []
        with pytest.raises(InvalidArgument, match="page=10001"):
            list(orders.scan(page=MAX_PAGE + 1))


def test_claimers_are_remembered_up_to_a_number() -> None:
    claimers = Claimers()
    for number in range(MAX_CLAIMERS + 1):
        claimers.note_claim(f"w{number}", "orders")
    assert len(claimers.listed()) == MAX_CLAIMERS


def test_a_line_of_the_access_log_is_bounded(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bide.access")
    method, path = "M" * (MAX_LOGGED_METHOD + 1), "/" + "p" * MAX_LOGGED_PATH
    client.get(path[:-1])
    client.get(path)
    client.send("GET", path)
    lines = [record.getMessage() for record in caplog.records if record.name == "bide.access"]
    assert path[:-1] in lines[0]
    assert f"GET {path[:-2]}… 404" in lines[1]
    assert method not in str(lines)


def test_what_an_error_says_is_bounded(client: Client) -> None:
    cursor = client.get(f"{Q}/messages?state=dead&cursor={'c' * MAX_DETAIL}")
    assert (cursor.status, len(cursor.problem["detail"])) == (400, MAX_DETAIL + 3)
    unknown = client.post(f"{Q}/purge", {"u" * MAX_DETAIL * 2: 1})
    assert [len(unknown.problem[part]) for part in ("detail", "field")] == [MAX_DETAIL + 3] * 2
    assert cursor.problem["detail"].endswith("c...")
    for name in ("q" * 8_000, "%00" * 2_000):
        refused = client.get(f"/v1/queues/{name}")
        assert (refused.status, len(refused.problem["detail"]) < MAX_DETAIL) == (400, True)


def test_a_long_unknown_name_is_not_compared_with_known_ones(client: Client) -> None:
    def detail(name: str) -> str:
        return str(client.post(f"{Q}/messages", {"body": 1, name: 1}).problem["detail"])

    assert "prioritys" in detail("prioritys")
    assert "did you mean" in detail("prioritys")
    assert "did you mean" not in detail("priority" + "s" * MAX_TYPO)


ELSEWHERE = {
    "BULK": "../src/bide/testing/conformance/queues.py",
    "MAX_ACTOR": "model/test_identity.py",
    "MAX_AMQP_BODY": "rabbitmq/test_intake.py",
    "MAX_AMQP_HEADERS": "rabbitmq/test_fields.py",
    "MAX_ANSWER": "engines/http/test_channel.py",
    "MAX_EVENT_LINE": "engines/http/test_events.py",
    "MAX_INTERIM": "engines/http/test_channel.py",
    "MAX_FORM": "dashboard/test_actions.py",
    "MAX_LOGIN_FORM": "dashboard/test_served.py",
    "MAX_FORWARDED": "../src/bide/testing/conformance/forwarding.py",
    "MAX_RECEIVER_BODY": "targets/http/test_connections.py",
    "MAX_RECEIVER_HEAD": "targets/http/test_bad_receivers.py",
    "MAX_RECEIVER_INTERIM": "targets/http/test_bad_receivers.py",
    "MAX_RETURNED": "../src/bide/testing/conformance/scanning.py",
    "MAX_RESULT": "queue/test_reading.py",
    "MAX_PLAN": "model/test_recovery.py",
    "MAX_RULE": "server/test_repeating.py",
    "MAX_RUN": "server/test_repeating.py",
    "MAX_SUBSCRIPTIONS": "targets/http/test_subscriptions.py",
    "IMPORT_LINES": "queue/test_reading.py",
    "KEEP_ALIVE": "server/test_connection.py",
    "MAX_BUFFERED": "server/test_large_bodies.py",
    "MAX_DISCARDED": "server/test_connection.py",
    "MAX_DOCUMENT": "server/test_oidc.py",
    "MAX_FAILED_LOGINS": "server/test_access.py",
    "MAX_FIELDS": "server/test_connection.py",
    "MAX_HEAD": "server/test_connection.py",
    "MAX_HEADS": "server/test_connection.py",
    "SMALL_HEAD": "server/test_connection.py",
    "MAX_KEYS": "server/test_oidc.py",
    "MAX_PACKED": "server/test_pieces.py",
    "MAX_REPLIES": "server/test_reply_budget.py",
    "MAX_REPLIES_OF_NAMESPACE": "server/test_reply_budget.py",
    "MAX_SUBJECT": "server/test_oidc.py",
    "MAX_HINTS": "server/test_connection.py",
    "MAX_TALLIES": "server/test_metrics.py",
    "MAX_UNREAD": "server/test_connection.py",
    "WAITING_BYTES": "server/test_reply_budget.py",
    "STALLED": "server/test_connection.py",
}
"""Where other limits are tested."""


def test_every_limit_is_tested() -> None:
    mine = Path(__file__).read_text()
    for name in filter(str.isupper, vars(limits)):
        texts = [mine]
        if name in ELSEWHERE:
            path = ELSEWHERE[name]
            # Below the folder of any kind of test, or in the source.
            files = [*TESTS.glob(path if path.startswith("..") else f"*/{path}")]
            texts = [file.read_text() for file in files]
        assert any(name in text for text in texts), name
