"""The story of a message: all events that name it, as lines for people."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from bide.testing.history.journal import Event
from bide.testing.history.message_history import name_of

_HIDDEN = {"tries", "did", "unknown", "at", "elapsed", "id", "ids", "dues", "messages", "name"}
"""Facts that a line has in other words, or that are about other messages."""

_TIMES = {"now", "until", "due"}
"""Facts that are times of the store's clock."""


def stories_of(
    ids: Collection[str], journals: Sequence[Iterable[Event]]
) -> dict[str, tuple[str, ...]]:
    """Return the stories of some messages."""
    wanted = set(ids)
    lines: dict[str, list[tuple[int, str]]] = {id: [] for id in wanted}
    killed: dict[str, tuple[int, str]] = {}
    faults: list[tuple[int, str]] = []
    processes: dict[str, set[str]] = {id: set() for id in wanted}
    for number, journal in enumerate(journals, 1):
        process = name_of(journal, number)
        for event in journal:
            if event.get("did") == "start":
                process = event.get("name", process)
            if event.get("did") == "kill":
                line = f"{clock_time(event['at'])}  {event['name']} was killed"
                killed[event["name"]] = event["at"], line
            elif event.get("did") == "fault":
                line = f"{clock_time(event['at'])}  the fault was run"
                faults.append((event["at"], line))
            for id in wanted.intersection(_named(event)):
                lines[id].append((event["at"], _line(process, id, event)))
                processes[id].add(process)
    for id, names in processes.items():
        lines[id] += [killed[name] for name in names & killed.keys()]
        lines[id] += _around(faults, lines[id])
    # A stable sort: the events of a process stay in their order.
    return {
        id: tuple(line for _, line in sorted(told, key=lambda entry: entry[0]))
        for id, told in lines.items()
    }


def _around(faults: list[tuple[int, str]], lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the faults of the time of a story: those within it, and the first one after it."""
    times = [at for at, _ in lines]
    if not times:
        return []
    later = sorted(fault for fault in faults if fault[0] >= min(times))
    count = sum(at <= max(times) for at, _ in later)
    return later[: count + 1]


def story_of(id: str, journals: Sequence[Iterable[Event]]) -> tuple[str, ...]:
    """Return everything that the journals tell of a message, in the order of time.

    Args:
        id: of the message.
        journals: one for each process, see `journals_in`.

    Example:
        >>> story_of("a", [[{"tries": "put", "ids": ["a"], "at": 0}]])
        ('00:00:00.000  process 1 tries to put it',)
    """
    return stories_of([id], journals)[id]


def clock_time(ms: int) -> str:
    """Return the time of day of Unix milliseconds, in UTC."""
    return f"{datetime.fromtimestamp(ms / 1_000, UTC):%H:%M:%S}.{ms % 1_000:03}"


def _named(event: Event) -> Iterable[str]:
    """Return the messages that an event is about."""
    if "messages" in event:
        return [facts["id"] for facts in event["messages"]]
    if "ids" in event:
        ids: list[str] = event["ids"]
        return ids
    return [event["id"]] if "id" in event else []


def _line(process: str, id: str, event: Event) -> str:
    """Return what an event says of one message."""
    facts = {name: fact for name, fact in event.items() if name not in _HIDDEN}
    if "messages" in event:
        own = next(facts for facts in event["messages"] if facts["id"] == id)
        facts |= {name: fact for name, fact in own.items() if name != "id"}
    if "dues" in event:
        facts["due"] = event["dues"][event["ids"].index(id)]
    if (verb := event.get("tries")) is not None:
        text = f"tries to {verb} it"
    elif (verb := event.get("unknown")) is not None:
        text = f"does not know what became of its {verb}"
    elif event["did"] == "left":
        text = "finds it in the queue at the end"
    else:
        done = facts.pop("done", True)
        text = f"{event['did']} {'confirmed' if done else 'refused'}"
    details = ", ".join(f"{name} {_fact(name, fact)}" for name, fact in facts.items())
    return f"{clock_time(event['at'])}  {process} {text}{f' ({details})' if details else ''}"


def _fact(name: str, fact: Any) -> str:
    """Return a fact as text; a time of the store as a time of day."""
    return clock_time(fact) if name in _TIMES and isinstance(fact, int) else str(fact)
