"""Encrypt what subscriptions keep secret: their URL, headers and signing secrets.

The key comes from the environment, never from the store: a copy of the store, such as a
backup, is not enough to send as a subscription does.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.targets.http.subscription import Secret, Subscription, masked

KEY = "BIDE_SECRETS_KEY"
"""The environment variable with the keys: the first one encrypts, all of them decrypt."""

KEY_FILE = "BIDE_SECRETS_KEY_FILE"
"""The environment variable that names a file with them instead, one a line."""

LOST = (
    f"its secrets cannot be decrypted: {KEY} or {KEY_FILE} lacks their key; add it, or put the "
    "subscription again"
)
"""Why a subscription is paused whose key is missing."""


REMEMBERED = 10_000
"""How many subscriptions are decrypted only once."""


class _Secrets(msgspec.Struct):
    """What is encrypted. With the URL, so that a writer of the store cannot redirect the rest."""

    url: str
    headers: dict[str, str]
    secrets: tuple[Secret, ...]


class _Cipher(Protocol):
    """What `MultiFernet` of the package cryptography does, which may not be installed."""

    def encrypt(self, msg: bytes) -> bytes: ...

    def decrypt(self, msg: str) -> bytes: ...


class SecretKeys:
    """Encrypts and decrypts subscriptions; without keys it leaves them in clear text.

    Args:
        keys: as `new_key` makes them; the first one encrypts, all of them decrypt.

    Raises:
        InvalidArgument: one of them is no key; the text does not repeat it.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        key_list = list(keys)
        self._fernet: _Cipher | None = None
        """`None`: there is no key."""
        if key_list:
            library = _library()
            try:
                self._fernet = library.MultiFernet([library.Fernet(key) for key in key_list])
            except ValueError:
                raise InvalidArgument(
                    f"{KEY} or {KEY_FILE} holds something that is not a key: bide subscription "
                    "new-key "
                    "makes one"
                ) from None
        # All subscriptions are read every second; what one text holds does not change.
        self._decrypted = lru_cache(maxsize=REMEMBERED)(partial(_decrypted, self._fernet))

    @classmethod
    def of_environment(cls) -> "SecretKeys":
        """Read the keys of this process.

        Raises:
            InvalidArgument: the file cannot be read, or there is no key in it.
        """
        file = os.environ.get(KEY_FILE)
        if not file:
            return cls(os.environ.get(KEY, "").split())
        try:
            keys = Path(file).read_text("utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{KEY_FILE}={file!r} cannot be read: {error}") from None
        if not keys:
            raise InvalidArgument(
                f"{KEY_FILE}={file!r} is empty; bide subscription new-key makes a key"
            )
        return cls(keys)

    def __bool__(self) -> bool:
        """Whether there is a key."""
        return self._fernet is not None

    def encrypt(self, subscription: Subscription) -> Subscription:
        """Return a subscription as it is stored."""
        if self._fernet is None or subscription.encrypted:
            return subscription
        data = msgspec.json.encode(
            _Secrets(subscription.url, subscription.headers, subscription.secrets)
        )
        return msgspec.structs.replace(
            subscription,
            encrypted=self._fernet.encrypt(data).decode(),
            url=masked(subscription.url),
            headers={},
            secrets=(),
        )

    def decrypt(self, stored: Subscription) -> Subscription:
        """Return a stored subscription as it works; without the key still encrypted, and paused."""
        if not stored.encrypted:
            return stored
        data = self._decrypted(stored.encrypted)
        if data is None:
            return msgspec.structs.replace(stored, paused=True, reason=LOST)
        clear = msgspec.structs.asdict(msgspec.json.decode(data, type=_Secrets))
        return msgspec.structs.replace(stored, encrypted="", **clear)


def new_key() -> str:
    """Return a new key: 32 random bytes in base64.

    Raises:
        InvalidArgument: the package for it is missing.
    """
    key: bytes = _library().Fernet.generate_key()
    return key.decode()


def stored(message: Message) -> Subscription:
    """Decode a subscription; return one that cannot be decrypted where its record is damaged."""
    try:
        subscription = msgspec.json.decode(message.data, type=Subscription)
        return subscription if subscription.encrypted else subscription.check()
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidArgument):
        return Subscription(
            name=message.id, queue=message.id, url="https://damaged.invalid/", encrypted="damaged"
        )


def change_of_lost(last: Subscription, known: Subscription, wanted: Subscription) -> Subscription:
    """Return a subscription with a change, although the key of its secrets is missing here.

    Without the key, the subscription is read as paused. What is encrypted must stay as it is.

    Args:
        last: as it is stored.
        known: as it is read without the key.
        wanted: `known` with the change.

    Raises:
        InvalidArgument: the change is of an encrypted field: the other ones would be lost.
    """
    encrypted_fields = "url", "headers", "secrets"
    # A put of the whole subscription has nothing encrypted: it replaces all three fields.
    if wanted.encrypted and any(
        getattr(wanted, field) != getattr(known, field) for field in encrypted_fields
    ):
        raise InvalidArgument(f"{known.name!r} cannot be changed: {LOST}")
    if (wanted.paused, wanted.reason) != (known.paused, known.reason):
        return wanted
    # It is paused only because the key is missing, not by the user: so that is not stored.
    return msgspec.structs.replace(wanted, paused=last.paused, reason=last.reason)


def _decrypted(fernet: _Cipher | None, text: str) -> bytes | None:
    """Return what was encrypted; `None` if no key fits."""
    if fernet is not None:
        with suppress(_library().InvalidToken):
            return fernet.decrypt(text)
    return None


def _library() -> Any:
    """Return the module `cryptography.fernet`.

    Raises:
        InvalidArgument: it is not installed.
    """
    try:
        from cryptography import fernet
    except ModuleNotFoundError:
        raise InvalidArgument(
            f"{KEY} needs the package cryptography, which is not installed: "
            "pip install 'bide[secrets]'"
        ) from None
    return fernet
