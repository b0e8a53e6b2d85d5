from hypothesis import given
from hypothesis import strategies as st

from bide.model.rank import delayed_rank, delayed_reach, ready_rank
from bide.model.times import LATEST

dues = st.integers(0, LATEST)
priorities = st.integers(0, 255)


@given(dues, priorities)
def test_a_rank_is_held_exactly_by_a_double(due: int, priority: int) -> None:
    for rank in (delayed_rank(due, priority), ready_rank(due, priority), delayed_reach(due)):
        assert 0 <= rank < 2**53
        assert int(float(rank)) == rank


@given(dues, priorities, dues, priorities)
def test_delayed_goes_by_due_and_then_by_weight(d1: int, p1: int, d2: int, p2: int) -> None:
    assert (delayed_rank(d1, p1) < delayed_rank(d2, p2)) == ((d1, -p1) < (d2, -p2))


@given(dues, priorities, dues, priorities)
def test_ready_goes_by_weight_and_then_by_age(d1: int, p1: int, d2: int, p2: int) -> None:
    assert (ready_rank(d1, p1) < ready_rank(d2, p2)) == ((-p1, d1) < (-p2, d2))


@given(dues, priorities, dues)
def test_the_reach_of_a_moment_is_all_that_is_due_at_it(due: int, priority: int, now: int) -> None:
    assert (delayed_rank(due, priority) <= delayed_reach(now)) == (due <= now)
