"""The PostgreSQL engine: the queue in the user's own database."""

from collections.abc import Callable
from functools import partial
from urllib.parse import SplitResult

from bide.engines.postgres.engine import PostgresEngine
from bide.engines.postgres.settings import read_url

__all__ = ["PostgresEngine", "from_url"]


def from_url(parts: SplitResult) -> Callable[[], PostgresEngine]:
    """Return what opens `postgresql://user@host/database`.

    Options: `schema=bide` (the schema that is the store), `listen=URL` (a direct address for
    LISTEN, where the URL is that of a pooler such as PgBouncer), `reconnect=5s` (how long to try to
    connect to a lost server again), and all of libpq's.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    return partial(PostgresEngine, read_url(parts))
