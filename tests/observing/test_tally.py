"""Tallies: what they count, and that those of several processes add up."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.observing.tally import BOUNDS, Histogram, Tally, total
from tests.counting import count_calls


def test_a_value_on_a_bound_is_within_it() -> None:
    histogram = Histogram()
    for value in (0.0, 0.001, 0.0015, 1800.0, 1801.0):
        histogram.observe(value)
    found = dict(histogram.cumulative())
    assert (found["0.001"], found["0.0025"], found["1800.0"], found["+Inf"]) == (2, 3, 4, 5)
    assert histogram.count == 5
    assert round(histogram.sum, 4) == 3601.0025


@given(st.lists(st.floats(0, 5_000) | st.sampled_from(BOUNDS)))
def test_values_may_be_counted_together(values: list[float]) -> None:
    together, alone = Histogram(), Histogram()
    together.observe(*values)
    for value in values:
        alone.observe(value)
    assert together.buckets == alone.buckets
    assert together.sum == pytest.approx(alone.sum)


def test_a_quantile_is_a_bound() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.99) is None
    for _ in range(99):
        histogram.observe(0.003)
    histogram.observe(9_999)
    assert histogram.quantile(0.5) == histogram.quantile(0.99) == 0.005
    assert histogram.quantile(1) == float("inf")


def test_two_histograms_share_nothing() -> None:
    one, other = Tally(), Tally()
    one.lateness.observe(1)
    one.ended("acked")
    assert (other.lateness.count, other.outcomes) == (0, {})


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 5_000)), max_size=60))
def test_the_tallies_of_processes_add_up_to_that_of_one(seen: list[tuple[int, float]]) -> None:
    shares, whole = [Tally() for _ in range(3)], Tally()
    for process, seconds in seen:
        for tally in (shares[process], whole):
            tally.duration.observe(seconds)
            tally.ended("acked" if seconds < 1 else "dead")
            tally.claims += 1
    together = total([{"q": tally} for tally in shares])["q"]
    assert together.duration.buckets == whole.duration.buckets
    assert abs(together.duration.sum - whole.duration.sum) < 1e-6
    assert (together.outcomes, together.claims) == (whole.outcomes, whole.claims)


def test_a_tally_travels() -> None:
    tally = Tally(claims=1, claimed=2)
    tally.ended("retried", 3)
    tally.lateness.observe(0.1)
    assert msgspec.json.decode(msgspec.json.encode({"q": tally}), type=dict[str, Tally]) == {
        "q": tally
    }


def test_what_is_under_way_ends_with_its_process() -> None:
    ceased = Tally(claims=1, running=5, waiting=2, longest=9.5).ceased()
    assert ceased == Tally(claims=1)


def test_bounds_rise() -> None:
    assert sorted(set(BOUNDS)) == list(BOUNDS)


def test_a_name_that_no_other_process_has_costs_no_addition() -> None:
    parts = [{str(number): Tally()} for number in range(1_000)]
    calls = count_calls(lambda: total(parts))
    assert calls["total"] == 1
    assert calls.total() < len(parts) + 10  # a look at each part, and no copy of the sum so far
