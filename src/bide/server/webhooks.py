"""What a receiver gets, as OpenAPI tells of it: the other side's operations."""

from typing import Any

JSON = "application/json"

_TEXT = {"type": "string"}
_NUMBER = {"type": "string", "pattern": "^[0-9]+$"}


def _header(name: str, text: str, schema: dict[str, Any], *, always: bool = True) -> dict[str, Any]:
    return {
        "name": name, "in": "header", "required": always, "description": text, "schema": schema,
    }  # fmt: skip


_SIGNED = [
    _header(
        "webhook-id",
        "Queue and id of the message, in ASCII: the same at each attempt. Remember it: a message "
        "can arrive twice.",
        _TEXT,
    ),
    _header("webhook-timestamp", "When the request was sent, in Unix seconds.", _NUMBER),
    _header(
        "webhook-signature",
        "As Standard Webhooks has it: `v1,` and HMAC-SHA256 in base64 over id, timestamp and body "
        "with dots between them; one for each secret that counts, with spaces between them.",
        _TEXT,
    ),
    _header("idempotency-key", "The same as `webhook-id`.", _TEXT),
    _header("bide-queue", "The queue's name.", _TEXT),
]

_OF_MESSAGE = [
    _header("bide-id", "The message's id, encoded as in a URL.", _TEXT),
    _header("bide-attempt", "Which attempt this is, from 1.", _NUMBER),
    _header("bide-due", "When the message was due, in Unix milliseconds.", _NUMBER),
    _header("traceparent", "That of the message, if it carries a trace.", _TEXT, always=False),
]

_ANSWERS = {
    "2XX": "The message is done.",
    "410": "The subscription is paused: the receiver wants nothing any more.",
    "429": "It is tried again, at the soonest after the time of `Retry-After`; nothing else is "
    "sent meanwhile. So it is with 503.",
    "default": "It is tried again after a pause, until its attempts are used up. So it is without "
    "an answer in time. Redirects are not followed.",
}

WEBHOOKS: dict[str, Any] = {
    "message": {
        "post": {
            "operationId": "message",
            "summary": "A message that is due",
            "description": "Sent to the `url` of a subscription, with its `headers`.",
            "tags": ["subscriptions"],
            "parameters": [*_SIGNED, *_OF_MESSAGE],
            "requestBody": {
                "required": True,
                "content": {
                    JSON: {"schema": {"description": "The body of the message."}},
                    "application/octet-stream": {
                        "schema": {
                            "type": "string", "format": "binary",
                            "description": "A body of bytes; the content type is the one that "
                            "stands in the message's headers.",
                        }
                    },
                },
            },
            "responses": {status: {"description": text} for status, text in _ANSWERS.items()},
            "security": [],
        }
    },
    "ping": {
        "post": {
            "operationId": "ping",
            "summary": "A request without a message",
            "description": "Sent when somebody asks for it, to see what the receiver says.",
            "tags": ["subscriptions"],
            "parameters": _SIGNED,
            "requestBody": {
                "required": True,
                "content": {
                    JSON: {
                        "schema": {
                            "type": "object",
                            "required": ["type"],
                            "properties": {"type": {"const": "bide.ping"}},
                        }
                    }
                },
            },
            "responses": {
                "2XX": {"description": "The receiver is well."},
                "default": {"description": "It is not; whoever asked is told what it said."},
            },
            "security": [],
        }
    },
}  # fmt: skip
"""By their names; see the specification, "Webhooks"."""
