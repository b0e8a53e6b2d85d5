"""A Redis server that need not know bide, of any version: what imports read there."""

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis import exceptions as redis_errors
from redis.connection import ConnectionPool

from bide.engines.redis.faults import no_connection
from bide.engines.redis.settings import read_url, shown_address
from bide.engines.registry import split_url
from bide.importing.source import SetMember
from bide.model.errors import NotAStore


class ForeignRedis:
    """A connection to a server that need not know bide.

    Args:
        url: of the server, in one of the forms in which stores are named.

    Raises:
        InvalidArgument: the URL is of another form.
        StoreError: the server cannot be reached.
    """

    def __init__(self, url: str) -> None:
        settings = read_url(split_url(url))
        self.shown = settings.shown
        """The URL without its password."""
        address = settings.address if settings.sentinels is None else settings.sentinels.master()
        self._place = shown_address(address)
        """The server, for errors: with Sentinels the URL does not name it."""
        pool = ConnectionPool(connection_class=settings.kind, **settings.arguments_at(address))
        self._client: Any = Redis.from_pool(pool)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self, *command: Any) -> Any:
        """Execute a command; return its reply, text as bytes.

        Raises:
            StoreError: the server refused it, or cannot be reached.
        """
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Execute commands in one round trip; return their replies. Raises what `ask` raises."""
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                replies: list[Any] = pipe.execute()
                return replies
        except (redis_errors.RedisError, OSError) as error:
            self.close()
            raise no_connection(error, self.shown, self._place) from error
        except BaseException:  # as Ctrl-C: the reply must not be taken for that of another command
            self.close()
            raise


# A member that was given another score meanwhile is another message: it stays.
_REMOVE = """
local count = 0
for i = 1, #ARGV, 2 do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    count = count + redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
return count
"""


class SortedSet(ForeignRedis):
    """A sorted set on a server that need not know bide, of any version.

    Args:
        url: of the server, in one of the forms in which stores are named.
        key: of the set.

    Raises:
        InvalidArgument: the URL is of another form.
        StoreError: the server cannot be reached.
        NotAStore: the key holds something else.
    """

    def __init__(self, url: str, key: str | bytes) -> None:
        super().__init__(url)
        self._key = key
        key_type = self.ask("TYPE", key)
        if key_type not in (b"zset", b"none"):
            self.close()
            raise NotAStore(
                f"{self.shown}: {key!r} is a {key_type.decode()}, not a sorted set; it was left "
                "alone"
            )

    def size(self) -> int:
        """Return how many members it has; 0 also when there is no such key."""
        return int(self.ask("ZCARD", self._key))

    def page(self, low: bytes, skip: int, count: int) -> list[SetMember]:
        """Return up to `count` members of a score from `low` on, after the first `skip` of them."""
        command = "ZRANGEBYSCORE", self._key, low, "+inf", "WITHSCORES", "LIMIT", skip, count
        flat = self.ask(*command)  # each member, and behind it its score
        return [
            SetMember(member, score) for member, score in zip(flat[::2], flat[1::2], strict=True)
        ]

    def remove(self, entries: Sequence[SetMember]) -> int:
        """Remove the members that still have the given score; return how many it removed."""
        if not entries:
            return 0
        flat = [part for entry in entries for part in entry]
        return int(self.ask("EVAL", _REMOVE, 1, self._key, *flat))
