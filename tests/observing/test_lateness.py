"""Each millisecond of lateness has one cause."""

from hypothesis import given
from hypothesis import strategies as st

from bide.consuming.late_causes import Waited, blocks_of, causes_of
from bide.observing.workers import Span

times = st.integers(0, 60)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=4)


def one_by_one(waited: Waited, pauses: list[Span], unserved: list[Span]) -> dict[str, float]:
    """Return the same, millisecond by millisecond."""
    found: dict[str, float] = {}

    def within(moment: int, among: list[Span]) -> bool:
        return any(start <= moment < end for start, end in among)

    for moment in range(int(waited.due), int(waited.began)):
        if within(moment, pauses):
            cause = "paused"
        elif waited.retried <= moment < waited.freed:
            cause = "limit"
        elif within(moment, unserved):
            cause = "no-worker"
        elif moment < waited.retried:
            cause = "retry"
        elif moment < waited.asked or moment >= waited.claimed:
            cause = "backlog"
        else:
            cause = "timer"
        found[cause] = found.get(cause, 0) + 1
    return found


@given(st.lists(times, min_size=5, max_size=5), times, times, spans, spans)
def test_the_causes_add_up_to_the_lateness(
    moments: list[int], asked: int, freed: int, pauses: list[Span], unserved: list[Span]
) -> None:
    due, retried, claimed, began, _ = sorted(moments)
    waited = Waited(due, retried, min(freed, claimed), min(asked, claimed), claimed, began)
    found = causes_of(waited, blocks_of(pauses, unserved))
    assert found == one_by_one(waited, pauses, unserved)
    assert sum(found.values()) == began - due


def test_who_is_early_or_on_time_has_no_cause() -> None:
    assert causes_of(Waited(50, 50, 0, 10, 50, 50)) == {}
    assert causes_of(Waited(50, 50, 0, 10, 40, 40), [("paused", 0, 100)]) == {}
