"""The Redis engine: one store for many machines, on a Redis (7.0 or newer) or Valkey server."""

from collections.abc import Callable
from functools import partial
from urllib.parse import SplitResult

from bide.engines.redis.engine import RedisEngine
from bide.engines.redis.settings import read_url

__all__ = ["RedisEngine", "from_url"]


def from_url(parts: SplitResult) -> Callable[[], RedisEngine]:
    """Return what opens `redis://host:6379/0`, `rediss://...` or `unix:///path/redis.sock`.

    With `redis+cluster://host:6379,host:6379`: a cluster, by some of its nodes.
    With `redis+sentinel://host:26379,host:26379/master-name`: the master of a group.

    Options: `timeout=5s`, `reconnect=5s`, `wait_replicas=1`, `shards=1`, `db=0`; with rediss://
    also `ca`, `cert`, `cert_key` (files) and `verify=full|ca|none`; with sentinels also
    `sentinel_user`, `sentinel_password` and `sentinel_tls=yes|no`.

    Raises:
        InvalidArgument: when the URL is of another form.
    """
    return partial(RedisEngine, read_url(parts))
