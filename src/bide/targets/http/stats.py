"""The figures of push and of intakes: numbers that add up over processes, and their metrics."""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, Self, get_args

import msgspec

from bide.observing.families import Family, Metric, by_outcome
from bide.observing.tally import Stats, Tally
from bide.targets.http.receiver import Circuit, ReceiverAnswer, State
from bide.targets.http.subscription import Subscription

COUNTED = ("stored", "repeated", "renamed", "refused")
"""The fields of `IntakeStats` that count messages, which are values of the label `outcome`."""


class IntakeStats(Stats):
    """What the intakes of one exchange have done.

    Example:
        >>> IntakeStats(stored=2, connected=1).plus(IntakeStats(stored=1, connected=1).ceased())
        IntakeStats(stored=3, repeated=0, renamed=0, refused=0, connected=1, waiting=0)
    """

    CURRENT = "connected", "waiting"

    stored: int = 0
    """Messages that are new in the store."""
    repeated: int = 0
    """Messages that were stored already, since the broker had not seen their acknowledgement."""
    renamed: int = 0
    """Messages whose `message_id` another one has: they are stored under ids of their own."""
    refused: int = 0
    """Messages that went to the dead-letter exchange."""
    connected: int = 0
    """How many intakes are connected."""
    waiting: int = 0
    """How many intakes wait for a store that is full or away."""


FAMILIES = (
    Family(
        "counter",
        "bide.rabbitmq.messages",
        "{message}",
        "Messages that came from RabbitMQ, by what happened to them: stored; repeated, known "
        "already; renamed, stored under an id of their own; "
        "refused, published to the dead-letter exchange.",
        "exchange outcome",
        lambda taken: {outcome: getattr(taken, outcome) for outcome in COUNTED},
    ),
    Family(
        "sum",
        "bide.rabbitmq.connected",
        "{intake}",
        "Intakes that are connected.",
        "exchange",
        lambda taken: taken.connected,
    ),
    Family(
        "sum",
        "bide.rabbitmq.waiting",
        "{intake}",
        "Intakes that wait for the store.",
        "exchange",
        lambda taken: taken.waiting,
    ),
)


def intake_metrics(taken: Mapping[str, IntakeStats]) -> Iterator[Metric]:
    """Yield the metrics of intakes, by exchange."""
    for family in FAMILIES if taken else ():
        yield family.of(dict(sorted(taken.items())))


Class = Literal["2xx", "3xx", "4xx", "5xx", "none"]
"""The class of an answer's status; "none": no valid answer, or one below 200 or above 599."""

CLASSES: tuple[Class, ...] = get_args(Class)


class Deliveries(Stats, omit_defaults=True):
    """The requests since the running servers started. Times are Unix milliseconds."""

    CURRENT = ("running",)

    answers: dict[Class, int] = msgspec.field(default_factory=dict)
    """The number of requests by class of the answer."""
    running: int = 0
    """How many requests are running."""
    taken_at: int = 0
    """When the receiver last accepted a message."""
    failed_at: int = 0
    """When a request last failed."""
    error: str = ""
    """The error of that request."""

    def note(self, answer: ReceiverAnswer, now: int) -> None:
        """Count an answer.

        Example:
            >>> deliveries = Deliveries()
            >>> deliveries.note(ReceiverAnswer(503, "503 Service Unavailable"), 1_000)
            >>> deliveries.answers, deliveries.error
            ({'5xx': 1}, '503 Service Unavailable')
        """
        status = answer.status or 0
        status_class: Class = CLASSES[status // 100 - 2] if 200 <= status < 600 else "none"
        self.answers[status_class] = self.answers.get(status_class, 0) + 1
        if answer.good:
            self.taken_at = now
        else:
            self.failed_at, self.error = now, answer.text

    def plus(self, other: Self) -> Self:
        """Return the sum of both, with the last error."""
        last_failed = max(self, other, key=lambda deliveries: deliveries.failed_at)
        return msgspec.structs.replace(
            super().plus(other),
            # Times and texts do not add up, as the other fields do.
            taken_at=max(self.taken_at, other.taken_at),
            failed_at=last_failed.failed_at,
            error=last_failed.error,
        )


class Known(NamedTuple):
    """A subscription and its circuit."""

    subscription: Subscription
    circuit: Circuit


class PushStats(Stats):
    """The figures of push, by subscription."""

    tallies: Mapping[str, Tally] = {}
    """Lateness, duration and outcomes of deliveries."""
    deliveries: Mapping[str, Deliveries] = {}
    """The answers of receivers."""
    taken: Mapping[str, IntakeStats] = {}
    """What intakes took into the store, by exchange."""


DELIVERIES = (
    Family(
        "counter",
        "bide.push.deliveries",
        "{delivery}",
        "Deliveries that have ended, by how.",
        "subscription outcome",
        by_outcome,
    ),
    Family(
        "histogram",
        "bide.push.lateness",
        "s",
        "From the due time of a message to the start of its request.",
        "subscription",
        lambda tally: tally.lateness,
    ),
    Family(
        "histogram",
        "bide.push.duration",
        "s",
        "How long requests took.",
        "subscription",
        lambda tally: tally.duration,
    ),
)
REQUESTS = (
    Family(
        "counter",
        "bide.push.requests",
        "{request}",
        "Requests to receivers, by the first digit of the "
        "answer's status; none: nothing that could be read came back.",
        "subscription answer",
        lambda deliveries: dict.fromkeys(CLASSES, 0) | deliveries.answers,
    ),
    Family(
        "sum",
        "bide.push.in_flight",
        "{request}",
        "Requests under way.",
        "subscription",
        lambda deliveries: deliveries.running,
    ),
)
CIRCUIT = Family(
    "gauge",
    "bide.push.circuit",
    "1",
    "1 for the state that the circuit is in: open, and the receiver "
    "is left alone; half-open, and it is probed.",
    "subscription state",
    lambda current: {state: state == current for state in get_args(State)},
)
PAUSED = Family("gauge", "bide.push.paused", "1", "Whether nothing is sent.", "subscription")
PUSH = (*FAMILIES, *DELIVERIES, *REQUESTS, CIRCUIT, PAUSED)
"""All families of push."""


def push_metrics(known: Mapping[str, Known], sent: PushStats, now: int) -> Iterator[Metric]:
    """Yield the metrics of subscriptions.

    Args:
        known: the subscriptions, by the names that the reader knows them by.
        sent: the figures of these and other subscriptions.
        now: the time in Unix milliseconds.
    """
    known = dict(sorted(known.items()))
    # A reader of one namespace knows shop/hooks as hooks; the figures are by full names.
    full_names = {name: entry.subscription.name for name, entry in known.items()}
    yield from intake_metrics(sent.taken)
    for family in DELIVERIES:
        yield family.of(
            {name: sent.tallies.get(full) or Tally() for name, full in full_names.items()}
        )
    for family in REQUESTS:
        yield family.of(
            {name: sent.deliveries.get(full) or Deliveries() for name, full in full_names.items()}
        )
    yield CIRCUIT.of({name: entry.circuit.state(now) for name, entry in known.items()})
    yield PAUSED.of({name: entry.subscription.paused for name, entry in known.items()})
