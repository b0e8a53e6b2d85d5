"""The search for differences between engines: it finds a planted one, and tells it shortly."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

import bide
from bide.engines.memory import MemoryEngine
from bide.engines.port import Identities
from bide.model import commands as cmd
from bide.model.message import Message
from bide.model.replies import Claimed, Counts, Outcome, Outcomes, Page, Reply
from bide.testing.faults import EngineWrapper
from tests.soak.differential.playing import Difference, difference
from tests.soak.differential.searching import search, short_story
from tests.soak.differential.sequences import drawn
from tests.soak.differential.shrinking import shortened
from tests.soak.differential.steps import Held, Step, UndoToken
from tests.soak.differential.steps import Sequence as Steps
from tests.soak.differential.store import Store
from tests.start import START

Lie = Callable[[cmd.Command, Reply], Reply]
"""Makes a false reply of a true one."""


class LyingEngine(EngineWrapper):
    """Answers falsely."""

    def __init__(self, lie: Lie) -> None:
        super().__init__(MemoryEngine())
        self._lie = lie

    def execute(
        self, commands: Sequence[cmd.Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        replies = super().execute(commands, now, identities)
        return [self._lie(*pair) for pair in zip(commands, replies, strict=True)]


def truth(command: cmd.Command, reply: Reply) -> Reply:
    return reply


def late_claim(command: cmd.Command, reply: Reply) -> Reply:
    """A claim says that a second attempt is a first one."""
    if not isinstance(reply, Claimed):
        return reply
    return replace(reply, messages=[_first_attempt(message) for message in reply.messages])


def _first_attempt(message: Message) -> Message:
    return replace(message, attempt=1) if message.attempt == 2 else message


def closed_put(command: cmd.Command, reply: Reply) -> Reply:
    """A put into a closed group says that it stored the message."""
    if not (isinstance(command, cmd.Put) and isinstance(reply, Outcomes)):
        return reply
    outcomes = [
        Outcome(outcome.id, True, "ready", START) if outcome.state == "closed" else outcome
        for outcome in reply.outcomes
    ]
    return replace(reply, outcomes=outcomes)


def lost_cancel(command: cmd.Command, reply: Reply) -> Reply:
    """The counters of a queue forget cancelled messages."""
    if not isinstance(reply, Counts):
        return reply
    return replace(reply, flow=replace(reply.flow, cancelled=0))


def blind_scan(command: cmd.Command, reply: Reply) -> Reply:
    """A scan of dead letters finds none."""
    if isinstance(command, cmd.Scan) and command.state == "dead" and isinstance(reply, Page):
        return replace(reply, messages=[], cursor=None)
    return reply


def broken(command: cmd.Command, reply: Reply) -> Reply:
    """A bury raises what is no error of bide."""
    if isinstance(command, cmd.BuryCommand):
        raise KeyError("bury")
    return reply


LIES = {
    "late_claim": (late_claim, 4),
    "closed_put": (closed_put, 2),
    "lost_cancel": (lost_cancel, 3),
    "blind_scan": (blind_scan, 4),
    "broken": (broken, 3),
}
"""By name: a lie, and the most steps of the story that shows it."""


@contextmanager
def lying(lie: Lie) -> Iterator[Store]:
    store = Store("lying", lambda: LyingEngine(lie))
    yield store
    store.lane.close()


def most(count: int) -> Callable[[int], bool]:
    """Return what ends a search after so many sequences."""
    return lambda played: played >= count


@pytest.mark.parametrize("name", LIES)
def test_a_planted_difference_is_told_in_a_few_steps(name: str) -> None:
    lie, longest = LIES[name]
    with lying(lie) as store:
        finding = search([store], 1, 40, most(50))
        assert finding is not None
        seed, sequence, shown = finding
        assert sequence == drawn(seed, 40)
        assert shown.store == "lying"
        text = short_story(sequence, shown, [store])
    lines = text.splitlines()
    steps = [line for line in lines if line.lstrip()[0].isdigit()]
    assert 1 <= len(steps) <= longest, text
    assert any(line.startswith("     memory: ") for line in lines)
    assert any(line.startswith("     lying: ") for line in lines)
    assert any(line.startswith("     differs: ") for line in lines)


def test_engines_that_answer_alike_show_no_difference() -> None:
    with lying(truth) as store:
        assert search([store], 7, 40, most(3)) is None


def test_a_queue_that_another_test_has_left_open_changes_nothing() -> None:
    with bide.Queue("left", "memory://"), lying(truth) as store:
        assert search([store], 7, 10, most(2)) is None


def test_a_seed_is_one_sequence() -> None:
    assert drawn(5, 60) == drawn(5, 60)
    assert [str(step) for step in drawn(5, 60).steps] == [str(step) for step in drawn(5, 60).steps]
    assert drawn(5, 60) != drawn(6, 60)


def test_a_seed_shows_one_difference() -> None:
    shown: list[Difference | None] = []
    for _ in range(2):
        with lying(lost_cancel) as store:
            shown.append(difference(drawn(1, 60), [store]))
    first, second = shown
    assert first is not None
    assert second is not None
    assert first[:3] == second[:3]


def test_what_is_not_needed_is_left_out() -> None:
    """A sequence fails if it has a put of `b` with a priority, and later a wait."""

    heavy = {"id": "b", "priority": 9}

    def is_heavy(step: Step) -> bool:
        return step.call == "put_many" and heavy in step.arguments.get("messages", [])

    def shows(sequence: Steps) -> bool:
        heavy_at = [place for place, step in enumerate(sequence.steps) if is_heavy(step)]
        waits_at = [place for place, step in enumerate(sequence.steps) if step.call == "wait"]
        return bool(heavy_at and waits_at) and heavy_at[0] < waits_at[-1]

    messages = [{"id": "a"}, heavy]
    put = Step("put_many", {"messages": messages, "delay": 5}, "q2", "w2")
    waits = [Step("wait", {"ms": ms}) for ms in (1, 2, 3)]
    others = [Step("claim", {"count": number}) for number in range(9)]
    sequence = Steps(START, (*others, waits[0], put, *others, *waits[1:]))
    shorter = shortened(sequence, shows)
    assert shorter.steps == (
        Step("put_many", {"messages": [heavy]}),
        Step("wait", {}),
    )


def test_a_story_names_what_a_step_refers_to() -> None:
    ack = Step("delivery.ack", {"delivery": Held("a", 1), "result": "done"}, "q2", "w2")
    assert str(ack) == (
        "w2: q2.delivery.ack(delivery=<the delivery of 'a' 1 before the last>, result='done')"
    )
    assert str(Step("undo", {"undo": UndoToken()})) == "w1: q.undo(undo=<the last token>)"
    assert str(Step("wait", {"ms": 4_999})) == "4999 ms pass"
    assert str(Step("wait", {"ms": 60_000})) == "60 s pass"
