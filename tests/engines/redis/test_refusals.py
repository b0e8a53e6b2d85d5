"""What the engine for Redis cannot do is refused, and never done to more than was meant."""

import pytest

import bide
from bide.engines.redis.engine import RedisEngine
from bide.engines.redis.verbs.change import purge
from bide.model.commands import Purge


def test_a_purge_by_id_deletes_nothing() -> None:
    assert not RedisEngine.capabilities.purge_by_id
    with pytest.raises(bide.Unsupported, match="cannot purge by id"):
        next(purge(Purge("q", "dead", ids=["a"])))
