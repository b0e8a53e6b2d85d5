"""A pause of a queue of several shards ends at one time: no shard delivers before the others."""

import pytest

from bide.engines.redis.queue_wide import configure
from bide.model.commands import Configure

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("is_paused", "end"), [(NOW + 1_500, NOW + 1_500), (False, NOW)], ids=["lasts", "is over"]
)
def test_the_first_shard_says_when_the_pause_ends(is_paused: int | bool, end: int) -> None:
    step = configure(Configure("mails", paused=True, paused_for=1_500), 3)
    (first_call,) = next(step)
    assert first_call.shard == 0
    calls = step.send([[NOW, 1, is_paused]])
    assert [call.shard for call in calls] == [1, 2]
    for call in calls:
        _paused, _keep, _actor, paused_until, paused_for, *_ = call.args
        assert (paused_until, paused_for) == (end, None)
