"""What a receiver gets, as OpenAPI tells of it: the other side's operations."""

from typing import Any

JSON = "application/json"

_NUMBERS = ("webhook-timestamp", "bide-attempt", "bide-due")

_SIGNED = {
    "webhook-id": "Queue and id of the message, in ASCII: the same at each attempt. Remember it: a "
    "message can arrive twice.",
    "webhook-timestamp": "When the request was sent, in Unix seconds.",
    "webhook-signature": "As Standard Webhooks has it: `v1,` and HMAC-SHA256 in base64 over id, "
    "timestamp and body with dots between them; one for each secret that counts, with spaces "
    "between them.",
    "idempotency-key": "The same as `webhook-id`.",
    "bide-queue": "The queue's name.",
}

_OF_MESSAGE = {
    "bide-id": "The message's id, encoded as in a URL.",
    "bide-attempt": "Which attempt this is, from 1.",
    "bide-due": "When the message was due, in Unix milliseconds.",
    "traceparent": "That of the message, if it carries a trace.",
}

_ANSWERS = {
    "2XX": "The message is done.",
    "410": "The subscription is paused: the receiver wants nothing any more.",
    "429": "It is tried again, at the soonest after the time of `Retry-After`; nothing else is "
    "sent meanwhile. So it is with 503.",
    "default": "It is tried again after a pause, until its attempts are used up. So it is without "
    "an answer in time. Redirects are not followed.",
}

_BODY = {
    JSON: {"schema": {"description": "The body of the message."}},
    "application/octet-stream": {
        "schema": {
            "type": "string", "format": "binary",
            "description": "A body of bytes; the content type is the one that stands in the "
            "message's headers.",
        }
    },
}  # fmt: skip

_PING = {
    "type": "object", "required": ["type"], "properties": {"type": {"const": "bide.ping"}},
}  # fmt: skip


def _post(
    name: str, summary: str, description: str, headers: dict[str, str], content: dict[str, Any],
    answers: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Return a request of bide's, which a receiver answers."""
    return {"post": {
        "operationId": name, "summary": summary, "description": description,
        "tags": ["subscriptions"],
        "parameters": [_header(*header) for header in headers.items()],
        "requestBody": {"required": True, "content": content},
        "responses": {status: {"description": text} for status, text in answers.items()},
        "security": [],
    }}  # fmt: skip


def _header(name: str, text: str) -> dict[str, Any]:
    return {
        "name": name, "in": "header", "required": name != "traceparent", "description": text,
        "schema": {"type": "string"} | ({"pattern": "^[0-9]+$"} if name in _NUMBERS else {}),
    }  # fmt: skip


WEBHOOKS = {
    "message": _post(
        "message", "A message that is due",
        "Sent to the `url` of a subscription, with its `headers`.", _SIGNED | _OF_MESSAGE, _BODY,
        _ANSWERS,
    ),
    "ping": _post(
        "ping", "A request without a message",
        "Sent when somebody asks for it, to see what the receiver says.", _SIGNED,
        {JSON: {"schema": _PING}},
        {
            "2XX": "The receiver is well.",
            "default": "It is not; whoever asked is told what it said.",
        },
    ),
}  # fmt: skip
"""By their names; see the specification, "Webhooks"."""
