"""The senders of batches, as the store knows them: no caller can name that of another."""

from functools import lru_cache
from hashlib import blake2b

from bide.server.access.rights import Caller


def sender_of(caller: Caller, client: str) -> str:
    """Return the sender of a client's batches; see `bide.engines.port.Identity`.

    It is `owner:client`, both as hashes. Its owner is the token, or all callers of a server without
    tokens: the store bounds how many senders of an owner it remembers.

    Args:
        caller: who sends the batch.
        client: the name that the client has given itself.
    """
    return _sender(caller.namespace, caller.token, client)


@lru_cache(maxsize=4_096)
def _sender(namespace: str | None, token: str | None, client: str) -> str:
    return f"{_hash(f'{namespace!r}:{token!r}')}:{_hash(client)}"


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()
