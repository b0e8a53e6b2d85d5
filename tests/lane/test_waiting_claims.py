"""Which claim asks next, of the claims that wait for many queues."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.lane import waiting_claims
from bide.lane.inbox import FOREVER, LaneRequest
from bide.lane.waiting_claims import LOOK_AGAIN, WaitingClaims
from bide.model.replies import Claimed
from tests.lane.commands import claim


def request(queue: str) -> LaneRequest:
    return LaneRequest(claim(queue=queue), deadline=1e9)


def wait(claims: WaitingClaims, one: LaneRequest, now: float, next_ms: int | None = None) -> None:
    """Give a claim, which has asked at `now`, an empty reply."""
    one.reply = Claimed([], 0, 0, next=next_ms)
    claims.has_asked(one, now, closed=False)


def test_a_hint_costs_the_same_however_many_queues_have_waiting_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = WaitingClaims()
    for number in range(2_000):
        claims.enter(one := request(f"q{number}"))
        wait(claims, one, now=0.0)
    moment: Callable[[Any], float | None] = waiting_claims._Waiting.moment
    looked_at = Mock(side_effect=moment)
    monkeypatch.setattr(waiting_claims._Waiting, "moment", lambda self: looked_at(self))

    claims.hint("q1999", 0.5)
    assert [one.command.queue for one in claims.due(0.5)] == ["q1999"]
    assert claims.next_moment() == LOOK_AGAIN
    assert looked_at.call_count < 20


Steps = st.lists(
    st.tuples(
        st.sampled_from(("enter", "reply", "end", "hint", "withdraw")),
        st.integers(0, 3),  # the queue
        st.integers(0, 20),  # which of its claims; or after how many tenths of a second
        st.none() | st.integers(0, 2_000),  # ms to the next message
        st.integers(0, 7),  # tenths of a second that pass before the step
    ),
    max_size=40,
)


@given(Steps)
def test_the_claims_that_are_due_are_those_whose_moment_has_come(steps: Any) -> None:
    claims, now = WaitingClaims(), 0.0
    asking: list[LaneRequest] = []
    for what, number, which, next_ms, pause in steps:
        now += pause / 10
        queue = f"q{number}"
        mine = [one for one in asking if one.command.queue == queue]
        parked = list(claims.queues[queue].requests) if queue in claims.queues else []
        if what == "enter":
            claims.enter(one := request(queue))
            asking.append(one)
        elif what in ("reply", "end") and mine:
            asking.remove(one := mine[which % len(mine)])
            if what == "end":
                claims.leave(one, now, asked=True)
            else:
                wait(claims, one, now, next_ms)
        elif what == "hint":
            claims.hint(queue, now + which / 10)
        elif what == "withdraw" and parked:
            claims.withdraw(parked[which % len(parked)], now)

        moments = {name: waiting.moment() for name, waiting in claims.queues.items()}
        known = [moment for moment in moments.values() if moment < FOREVER]
        deadlines = [1e9] if claims.queues else []
        assert claims.next_moment() == min(known + deadlines, default=None)
        if pause % 2:
            due = claims.due(now)
            asking += due
            expected = {name for name, at in moments.items() if at <= now}
            assert sorted(one.command.queue for one in due) == sorted(expected)
