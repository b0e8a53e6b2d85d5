"""Signing as Standard Webhooks has it: HMAC-SHA256 over id, timestamp and body.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable

import msgspec

from bide.model.errors import InvalidArgument

PREFIX = "whsec_"
LEAST, MOST = 24, 64
"""The least and the most bytes of a secret."""


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """One secret of a subscription, in clear text: the server signs with it."""

    text: str
    created: int
    until: int | None = None
    """The end of its use in Unix milliseconds; set when it is replaced."""

    def __repr__(self) -> str:
        return f"Secret(created={self.created}, until={self.until})"


def new_secret() -> str:
    """Return a new secret: `whsec_` and 32 bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_secret(text: str) -> str:
    """Return a secret of the user after a check.

    Raises:
        InvalidArgument: it is not a secret; the text does not repeat it.
    """
    try:
        size = len(_bytes(text)) if text.startswith(PREFIX) else 0
    except (binascii.Error, ValueError):
        size = 0
    if not LEAST <= size <= MOST:
        raise InvalidArgument(
            f"secret must be {PREFIX} and {LEAST} to {MOST} bytes in base64; without one, bide "
            "makes one"
        )
    return text


def signed(texts: Iterable[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that prove the sender of a request, with a signature for each secret.

    Args:
        texts: the secrets.
        id: of the message; the same at each attempt.
        timestamp: when it is sent, in Unix seconds.
        body: as it is sent.

    Example:
        >>> signed(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "msg", 1, b"{}")["webhook-signature"]
        'v1,JV10oUOb4Ge3hyDXQV+NgLAqirzfPknzw+iKUoxRs40='
    """
    content = b"%b.%d.%b" % (id.encode(), timestamp, body)
    signatures = [hmac.digest(_bytes(text), content, hashlib.sha256) for text in texts]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(s).decode()}" for s in signatures),
    }


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.removeprefix(PREFIX), validate=True)
