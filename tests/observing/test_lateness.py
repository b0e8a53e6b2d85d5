"""Each millisecond of lateness has one cause."""

from hypothesis import given
from hypothesis import strategies as st

from bide.consuming.late_causes import Waited, blocks_of, causes_of
from bide.observing.workers import Span

times = st.integers(0, 60)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=4)


def one_by_one(waited: Waited, pauses: list[Span], unserved: list[Span]) -> dict[str, float]:
    """Return the same of one delivery, millisecond by millisecond."""
    due, retried, freed, asked, claimed, began = waited
    found: dict[str, float] = {}

    def within(moment: int, among: list[Span]) -> bool:
        return any(start <= moment < end for start, end in among)

    for moment in range(int(due), int(began)):
        if within(moment, pauses):
            cause = "paused"
        elif retried <= moment < freed:
            cause = "limit"
        elif within(moment, unserved):
            cause = "no-worker"
        elif moment < retried:
            cause = "retry"
        elif moment < asked or moment >= claimed:
            cause = "backlog"
        else:
            cause = "timer"
        found[cause] = found.get(cause, 0) + 1
    return found


@st.composite
def waits(draw: st.DrawFn) -> Waited:
    due, retried, claimed, began = sorted(draw(st.lists(times, min_size=4, max_size=4)))
    asked, freed = draw(times), draw(times)
    return due, retried, min(freed, claimed), min(asked, claimed), claimed, began


@given(st.lists(waits(), min_size=1), spans, spans)
def test_the_causes_add_up_to_the_lateness(
    late: list[Waited], pauses: list[Span], unserved: list[Span]
) -> None:
    found = causes_of(late, blocks_of(pauses, unserved))
    for place, waited in enumerate(late):
        mine = {cause: parts[place] for cause, parts in found.items() if parts[place]}
        assert mine == one_by_one(waited, pauses, unserved)
        assert sum(mine.values()) == waited[-1] - waited[0]


def test_who_is_early_or_on_time_has_no_cause() -> None:
    assert causes_of([(50, 50, 0, 10, 50, 50)]) == {}
    assert causes_of([(50, 50, 0, 10, 40, 40)], [("paused", 0, 100)]) == {}
