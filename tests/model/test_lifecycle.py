from bide.model.commands import Command
from bide.model.lifecycle import TRANSITIONS
from bide.model.message import STATES
from bide.model.replies import Flow


def test_every_way_stands_there_once() -> None:
    ways = [(t.cause, t.before, t.after) for t in TRANSITIONS]
    assert len(set(ways)) == len(ways)


def test_states_causes_and_counters_exist() -> None:
    states = {*STATES, None}
    commands = {command.__struct_config__.tag for command in Command.__args__}
    causes = commands | {"replace", "release", "end lease", "time", "lapse", "succeed", "forget"}
    for transition in TRANSITIONS:
        assert {transition.before, transition.after} <= states
        assert transition.cause in causes
        assert set(transition.counts) <= set(Flow.__struct_fields__)


def test_two_ways_from_one_place_say_when() -> None:
    for one in TRANSITIONS:
        rivals = [t for t in TRANSITIONS if (t.cause, t.before) == (one.cause, one.before)]
        unsaid = [t for t in rivals if not t.when]
        assert len(unsaid) <= 1, f"{one.cause} from {one.before}: when which?"


def test_each_state_can_be_entered_and_left() -> None:
    for state in STATES:
        assert any(t.after == state != t.before for t in TRANSITIONS)
        assert any(t.before == state != t.after for t in TRANSITIONS)


def test_what_leaves_is_counted_and_what_is_counted_leaves() -> None:
    """The table itself keeps the law: put = gone + what is there."""
    there = {"delayed", "ready", "leased", "dead"}
    gone = {"acked", "cancelled", "expired", "purged"}
    for t in TRANSITIONS:
        enters = (t.after in there) - (t.before in there)
        assert enters == ("put" in t.counts) - len(gone & set(t.counts)), t
