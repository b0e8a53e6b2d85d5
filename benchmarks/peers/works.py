"""What is measured of each peer: one function for each column of the table."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.handled import Handled
from benchmarks.peers.session import Failed, NotOffered, Session, Stopped

__all__ = ["WORKS", "Cell", "Figures", "Scene", "Work", "measure", "number_text"]

Figures = dict[str, float]

FAR = 3600.0
PUT_SECONDS = 2.0
LIST = 500
DRAIN = 20_000
RATE, PACE_SECONDS = 200, 10
PACE_PATIENCE = 8.0
BEHIND, NEAR, NEAR_STEP, NEAR_PATIENCE = 10_000, 20, 0.1, 10.0
CANCELS = 4_000
PENDING, PENDING_SECONDS, SETTLE_SECONDS = 100_000, 20.0, 20.0
HELD, WAITING, HOLD_SECONDS = 20, 10, 1.0
EARLY = -1.0
"""Milliseconds; stores round due times to whole ones."""
TRIAL, TRIAL_SECONDS = 500, 5.0
"""Messages that show how fast a peer puts, and for how long at most."""


@dataclass
class Scene:
    """What a work needs to know.

    Args:
        session: the peer.
        scale: all numbers times this.
        seen: what is measured so far; it is shown if the cell is stopped.
    """

    session: Session
    scale: float
    seen: Figures = field(default_factory=dict)

    def scaled(self, count: int) -> int:
        """Return a number of messages, at least ten."""
        return max(round(count * self.scale), 10)


@dataclass(frozen=True)
class Cell:
    """One cell of the table.

    Args:
        work: the name of the column.
        state: "measured", "stopped" when the share was over, "not offered" or "failed".
        figures: what was measured.
        reason: why it was not.
        share: the seconds that it had.
    """

    work: str
    state: str
    figures: Figures = field(default_factory=dict)
    reason: str = ""
    share: float = 0

    @property
    def text(self) -> str:
        """What stands in the table."""
        if self.state in ("not offered", "failed"):
            return self.state
        text = WORKS[self.work].text(self.figures) if self.figures else ""
        if self.state == "stopped":
            return f"{text} (stopped after {self.share:.0f} s)".strip()
        return text

    @property
    def value(self) -> float | None:
        """What the peers are compared by; None if the work was not done as it should be."""
        work = WORKS[self.work]
        if self.state != "measured" or not work.is_whole(self.figures):
            return None
        return self.figures.get(work.key)


def _put_one(scene: Scene) -> None:
    _put(scene, 1)


def _put_list(scene: Scene) -> None:
    _put(scene, LIST)


def _put(scene: Scene, size: int) -> None:
    """Put messages that are due in an hour; the first ones open and prepare."""
    ask, seconds = scene.session.ask, max(PUT_SECONDS * scene.scale, 0.2)
    ask("put", seconds=0.01, size=size, delay=FAR, limit=size)
    answer = ask("put", seconds=seconds, size=size, delay=FAR, limit=1_000_000)
    scene.seen["rate"] = answer["count"] / answer["seconds"]


def _drain(scene: Scene) -> None:
    """Handle messages that are due at one instant, by one worker as it comes."""
    wanted = scene.scaled(DRAIN)
    scene.session.start_worker()
    trial = _put_far(scene.session, min(TRIAL, wanted), TRIAL_SECONDS)
    rate = trial["count"] / trial["seconds"]
    # They are due when twice the time has passed that it takes to put them: at most a third of what
    # is left, so that a peer that puts slowly has time to handle them, if fewer.
    count = min(wanted, max(int(rate * scene.session.remaining() / 6), 10))
    scene.seen |= {"wanted": wanted, "messages": count}
    due = time.time() + 2 + 2 * count / rate
    if scene.session.ask("put_at", first=TRIAL, count=count, due=due)["ended"] > due:
        raise Failed("not all was put before it was due")
    _rate(scene, count, due)


def _rate(scene: Scene, count: int, due: float) -> None:
    handled: list[Handled] = []
    try:
        handled = scene.session.wait_for(count)
    except Stopped:
        handled = scene.session.log.read()
        raise
    finally:
        if handled:
            last = max(message.at for message in handled)
            scene.seen["rate"] = len(handled) / max(last - due, 0.001)
        scene.seen["handled"] = len(handled)
        scene.seen["messages"] = count


def _lateness(scene: Scene) -> None:
    """Put 200 messages a second, each due in one to five seconds."""
    count = scene.scaled(RATE * PACE_SECONDS)
    scene.session.start_worker()
    ended = scene.session.ask("pace", rate=RATE, count=count)["ended"]
    _late(scene, count, scene.session.wait_for(count, ended + 5 + PACE_PATIENCE))


def _late(scene: Scene, count: int, handled: list[Handled]) -> None:
    scene.seen |= {"handled": len(handled), "messages": count}
    if handled:
        late = sorted(message.late for message in handled)
        scene.seen |= {
            "p50": statistics.median(late),
            "p99": late[int(len(late) * 0.99)],
            "max": late[-1],
            "early": sum(value < EARLY for value in late),
        }


def _behind(scene: Scene) -> None:
    """Put many messages that are due in an hour, then 20 that are due soon."""
    session, far = scene.session, scene.scaled(BEHIND)
    session.start_worker()
    session.ask("put_at", first=NEAR, count=far, due=time.time() + FAR)
    due = time.time() + 2
    session.ask("put_at", first=0, count=NEAR, due=due, step=NEAR_STEP)
    until = due + NEAR * NEAR_STEP + NEAR_PATIENCE
    _late(scene, NEAR, session.wait_for(NEAR, until))


def _cancel(scene: Scene) -> None:
    """Cancel messages by id, one by one."""
    scene.session.start_worker()
    seconds = max(PUT_SECONDS * scene.scale, 0.2)
    answer = scene.session.ask("cancel", seconds=seconds, count=scene.scaled(CANCELS))
    scene.seen["rate"] = answer["count"] / answer["seconds"]


def _memory(scene: Scene) -> None:
    """Put messages that are due in an hour, and see how server and worker grow."""
    session, count = scene.session, scene.scaled(PENDING)
    session.start_worker()
    server = session.server.used()
    scene.seen["worker"] = session.worker_memory() / 1e6
    put = _put_far(session, count, PENDING_SECONDS)["count"]
    after = _settled(session)
    scene.seen |= {
        "count": put,
        "server": (session.server.used() - server) / put * PENDING / 1e6,
        "worker_after": after / 1e6,
    }


def _put_far(session: Session, count: int, seconds: float) -> dict[str, Any]:
    """Put messages that are due in an hour, in the peer's fastest way."""
    limits = {"seconds": seconds, "delay": FAR, "limit": count}
    try:
        return session.ask("put", size=min(LIST, count), **limits)
    except NotOffered:
        return session.ask("put", size=1, **limits)


def _settled(session: Session) -> int:
    """Return the memory of the worker when it does not grow by more than 1 % in two seconds."""
    before, until = session.worker_memory(), time.time() + SETTLE_SECONDS
    while time.time() < until and session.remaining() > 0:
        time.sleep(2)
        now = session.worker_memory()
        if now < before * 1.01:
            return now
        before = now
    return before


def _killed(scene: Scene) -> None:
    """Kill a worker with -9 while it handles messages, start another, and see what is handled."""
    session, count = scene.session, HELD + WAITING
    scene.seen |= {"handled": 0, "messages": count}
    session.start_worker()
    due = time.time() + 2
    session.ask("put_at", first=0, count=HELD, due=due, seconds=HOLD_SECONDS)
    session.ask("put_at", first=HELD, count=WAITING, due=due + 6)
    session.wait_for_handler()
    time.sleep(HOLD_SECONDS / 4)
    session.kill_worker()
    killed = time.time()
    session.start_worker(probe=False)
    try:
        handled = session.wait_for(count)
        scene.seen["seconds"] = max(message.at for message in handled) - killed
    finally:
        scene.seen["handled"] = session.log.count()
        scene.seen["again"] = session.log.again


@dataclass(frozen=True)
class Work:
    """A column of the table.

    Args:
        heading: what it is called there.
        share: the seconds that a cell may take, servers included.
        measure: fills `Scene.seen`.
        text: how the figures are shown.
        key: the figure that peers are compared by.
        unit: of this figure.
        more_is_better: whether a larger figure is a better one.
        is_tuned: whether tuned settings are measured, too.
        is_whole: tells whether figures are of all messages, each at its time.
    """

    heading: str
    share: float
    measure: Callable[[Scene], None]
    text: Callable[[Figures], str]
    key: str = "rate"
    unit: str = "/s"
    more_is_better: bool = True
    is_tuned: bool = False
    is_whole: Callable[[Figures], bool] = bool


def _rate_text(figures: Figures) -> str:
    text = f"{number_text(figures['rate'])} /s" if "rate" in figures else ""
    missing = figures.get("messages", 0) - figures.get("handled", 0)
    return text if not missing else f"{text}, {missing:,.0f} missing".removeprefix(", ")


def _drain_text(figures: Figures) -> str:
    text = _rate_text(figures)
    if "wanted" not in figures or figures["messages"] == figures["wanted"]:
        return text
    return f"{text}, {figures['messages']:,.0f} messages".removeprefix(", ")


def _late_text(figures: Figures) -> str:
    of_all = f"{figures['handled']:,.0f} of {figures['messages']:,.0f}"
    if "p50" not in figures:
        return of_all
    text = " / ".join(number_text(figures[name]) for name in ("p50", "p99", "max")) + " ms"
    text += f", {figures['early']:,.0f} early" if figures["early"] else ""
    return text if figures["handled"] == figures["messages"] else f"{text}, {of_all}"


def _is_whole(figures: Figures) -> bool:
    return figures["handled"] == figures["messages"] and not figures["early"]


def _memory_text(figures: Figures) -> str:
    if "count" not in figures:
        return ""
    worker = f"{number_text(figures['worker'])} to {number_text(figures['worker_after'])} MB"
    text = f"{number_text(figures['server'])} MB / {worker}"
    return text if figures["count"] == PENDING else f"{text}, {figures['count']:,.0f} put"


def _killed_text(figures: Figures) -> str:
    text = f"{figures['handled']:,.0f} of {figures['messages']:,.0f}"
    return f"{text} in {number_text(figures['seconds'])} s" if "seconds" in figures else text


def number_text(value: float) -> str:
    """Return a number with as many digits as a figure of one run is good for."""
    if abs(value) >= 1_000:
        return f"{round(value, 3 - len(str(abs(round(value))))):,.0f}"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


_LATE: dict[str, Any] = {
    "text": _late_text,
    "unit": "ms",
    "more_is_better": False,
    "is_whole": _is_whole,
}

WORKS = {
    "put": Work("put one by one", 25, _put_one, _rate_text),
    "list": Work("put in lists of 500", 25, _put_list, _rate_text),
    "drain": Work("20,000 due at one instant", 60, _drain, _drain_text, is_tuned=True),
    "late": Work(
        "lateness at 200/s: p50 / p99 / max", 60, _lateness, key="p99", is_tuned=True, **_LATE
    ),
    "behind": Work("20 near behind 10,000 far: p50 / p99 / max", 60, _behind, key="p99", **_LATE),
    "cancel": Work("cancel", 40, _cancel, _rate_text),
    "memory": Work(
        "memory per 100,000 pending: server / worker",
        75,
        _memory,
        _memory_text,
        key="server",
        unit="MB",
        more_is_better=False,
    ),
    "killed": Work(
        "30 messages, a worker killed with -9",
        90,
        _killed,
        _killed_text,
        key="seconds",
        unit="s",
        more_is_better=False,
        is_tuned=True,
    ),
}
"""The columns, in their order."""


def measure(name: str, scene: Scene, share: float) -> Cell:
    """Do a work until it is done or its share is over."""
    try:
        WORKS[name].measure(scene)
    except NotOffered as reason:
        return Cell(name, "not offered", reason=str(reason), share=share)
    except Stopped:
        return Cell(name, "stopped", scene.seen, share=share)
    except Failed as reason:
        return Cell(name, "failed", scene.seen, str(reason), share)
    return Cell(name, "measured", scene.seen, share=share)
