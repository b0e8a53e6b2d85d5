"""A Redis of somebody else's, of any version, from which messages are imported."""

from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from redis import Redis
from redis import exceptions as raised
from redis.connection import ConnectionPool

from bide.engines.redis.faults import no_connection, translate
from bide.engines.redis.settings import read_url, shown_address
from bide.model.errors import StoreError


class ForeignRedis:
    """A connection to a server that need not know bide.

    Args:
        url: of the server, in one of the forms in which stores are named.

    Raises:
        InvalidArgument: the URL is of another form.
        StoreError: the server cannot be reached.
    """

    def __init__(self, url: str) -> None:
        settings = read_url(urlsplit(url))
        self.shown = settings.shown
        address = settings.address if settings.sentinels is None else settings.sentinels.master()
        self._place = shown_address(address)
        arguments = settings.arguments_at(address)
        self._pool = ConnectionPool(connection_class=settings.kind, **arguments)
        self._client: Any = Redis(connection_pool=self._pool)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
        self._pool.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, *command: Any) -> Any:
        """Execute a command; return its reply, text as bytes.

        Raises:
            StoreError: the server refused it, or cannot be reached.
        """
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Execute commands at once; return their replies. Raises what `ask` raises."""
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                replies: list[Any] = pipe.execute()
                return replies
        except (raised.ResponseError, raised.AuthenticationError) as error:
            raise self._closed(translate(error, self.shown)) from error
        except (raised.RedisError, OSError) as error:
            raise self._closed(no_connection(error, self.shown, self._place)) from error

    def _closed(self, error: StoreError) -> StoreError:
        self.close()
        return error
