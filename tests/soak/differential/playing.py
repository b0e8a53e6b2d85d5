"""Playing a sequence on a store, and comparing what two stores answered."""

import itertools
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import bide
from bide.model.errors import BideError
from bide.queue.base import all_queues_in
from tests.soak.differential.alike import Plain, plain_error, plain_reply
from tests.soak.differential.sequences import IDS
from tests.soak.differential.steps import (
    DueTime,
    Exported,
    Held,
    Sequence,
    Step,
    UndoToken,
    Version,
)
from tests.soak.differential.store import Store, memory

__all__ = ["Difference", "difference", "last_look"]

NOTHING = "there is none yet"
"""The reply of a step that refers to a delivery or a token of which there is none."""

ALL = 10_000
"""More messages than a queue of a sequence has."""

_numbers = itertools.count()
"""Of the sequences that were played: each has queues of its own, so that stores can be reused."""


class Difference(NamedTuple):
    """A step that two stores have answered differently."""

    store: str
    number: int
    """Of the step: behind those of the sequence come those that look at what is left."""
    step: Step
    expected: Plain
    """The reply of the memory engine."""
    actual: Plain

    @property
    def kind(self) -> tuple[Any, ...]:
        """What stays the same while the sequence is shortened."""
        errors = [
            reply.get("raised") if isinstance(reply, dict) else None
            for reply in (self.expected, self.actual)
        ]
        return self.store, self.step.call, *errors


class NothingThere(Exception):
    """A step refers to what is not there."""


class Player:
    """Plays steps on a store.

    Args:
        store: the store.
        names: the names of the queues in it, by those in the steps.
    """

    def __init__(self, store: Store, names: Mapping[str, str]) -> None:
        self._store = store
        self._names = names
        self._queues: dict[tuple[str, str], bide.Queue] = {}
        self._deliveries: defaultdict[str, list[bide.Delivery]] = defaultdict(list)
        """Those of each queue, oldest first."""
        self._tokens: list[str] = []
        """Those of bulk changes, oldest first."""

    def play(self, step: Step) -> Plain:
        """Make a call; return what it returned or raised.

        Raises:
            Exception: what is no error of bide.
        """
        if step.call == "wait":
            self._store.advance(step.arguments["ms"])
            return None
        try:
            queue = self._queue(step.queue, step.worker)
            arguments = {
                name: self._resolved(value, step.queue) for name, value in step.arguments.items()
            }
            reply = self._call(step, queue, arguments)
        except NothingThere:
            return NOTHING
        except BideError as error:
            return plain_error(error)
        if token := getattr(reply, "undo", ""):
            self._tokens.append(token)
        return plain_reply(step, reply)

    def _queue(self, queue: str, worker: str) -> bide.Queue:
        """Return the queue object of a worker."""
        key = queue, worker
        if key not in self._queues:
            self._queues[key] = bide.Queue(self._names[queue], holder=worker)
        return self._queues[key]

    def _resolved(self, value: Any, queue: str) -> Any:
        """Return an argument in which is what it refers to.

        Raises:
            NothingThere: there is none.
        """
        match value:
            case Held(id, age):
                candidates = [
                    held for held in self._deliveries[queue] if id is None or held.id == id
                ]
                return _from_end(candidates, age)
            case UndoToken(age):
                return _from_end(self._tokens, age)
            case Version(id):
                return self._message(queue, id).version
            case DueTime(id):
                return self._message(queue, id).due_at
            case Exported(name):
                return sorted(self._queue(name, "w1").export())
            case [Held(), *_]:
                # The last one of each message: of several, a store may settle the good one first,
                # and answer for the others where the message is then.
                deliveries = [self._resolved(each, queue) for each in value]
                return list({delivery.id: delivery for delivery in deliveries}.values())
            case list():
                return [self._resolved(each, queue) for each in value]
        return value

    def _message(self, queue: str, id: str) -> bide.Message:
        """Return a message; raises `NothingThere` if there is none."""
        message = self._queue(queue, "w1").get(id)
        if message is None:
            raise NothingThere
        return message

    def _call(self, step: Step, queue: bide.Queue, arguments: dict[str, Any]) -> Any:
        """Make the call of a step, and return what it returns."""
        match step.call:
            case "claim":
                deliveries = queue.claim(**arguments)
                self._note(step.queue, deliveries)
                return deliveries
            case "take":
                return self._take(step.queue, queue, **arguments)
            case "put_if_same":
                return queue.put(**arguments)
            case "put_many":
                messages = [bide.NewMessage(**fields) for fields in arguments.pop("messages")]
                return queue.put_many(messages, **arguments)
            case "put_block":
                count = arguments.pop("count")
                messages = [bide.NewMessage(number, id=f"m{number:04}") for number in range(count)]
                return queue.put_many(messages, **arguments)
            case "recover":
                return queue.recover(**self._order_free(queue, **arguments))
            case "cancel_all":
                return queue.cancel(**arguments)
            case "reschedule_all":
                return queue.reschedule(**arguments)
            case "ack" | "retry" | "bury" | "extend":
                return getattr(queue, step.call)(**arguments)
            case "scan":
                return list(queue.scan(**arguments))
            case "ended":
                return list(queue.ended(**arguments))
            case "export":
                return list(queue.export())
            case "search":
                page = bide.search(queue=queue.name, limit=ALL, **arguments)
                return page.messages
        if step.call.startswith("delivery."):
            delivery = arguments.pop("delivery")
            return getattr(delivery, step.call.removeprefix("delivery."))(**arguments)
        return getattr(queue, step.call)(**arguments)

    @staticmethod
    def _order_free(
        queue: bide.Queue, plan: bide.Recovery, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Return the arguments of a recovery that does the same in whatever order messages come.

        A plan gives times to those of one priority in the order of the store, and each store has
        its own for messages that are due at one time. So for several it is only tried out.
        """
        has_order = plan.paces and len(list(queue.scan("ready"))) > 1
        return {"plan": plan, "dry_run": dry_run or has_order}

    def _note(self, queue: str, deliveries: list[bide.Delivery]) -> None:
        """Remember deliveries; their token must be greater than those before."""
        known = self._deliveries[queue]
        for delivery in deliveries:
            assert not known or delivery.token > known[-1].token, "a token did not grow"
        known += deliveries

    def _take(self, name: str, queue: bide.Queue, end: str, lease: float) -> Any:
        """Take a message for a block that ends well, with an error, or with an exit."""
        errors = {"error": ValueError("no"), "exit": SystemExit()}
        try:
            with queue.take(wait=0, lease=lease) as delivery:
                self._note(name, [delivery])
                if end in errors:
                    raise errors[end]
        except (ValueError, SystemExit) as error:
            if error is not errors.get(end):
                raise
        return delivery

    def close(self) -> None:
        """Close the queues."""
        for queue in self._queues.values():
            queue.close()


def _from_end(elements: list[Any], age: int) -> Any:
    """Return the element so far from the last one."""
    if age >= len(elements):
        raise NothingThere
    return elements[-1 - age]


LAST_CALLS = ("audit", "counts", "overdue", "closed_groups", "ended")
"""What is asked of each queue at the end, without arguments."""


def last_look() -> tuple[Step, ...]:
    """Return the steps that read all that is left: counts, scans, histories, audits."""
    steps = []
    for queue in ("q", "q2"):
        steps += [Step(call, {}, queue) for call in LAST_CALLS]
        states = ("delayed", "ready", "leased", "dead", "acked", "expired", None)
        steps += [Step("scan", {"state": state, "page": 50}, queue) for state in states]
        steps.append(Step("forecast", {"repeats": True}, queue))
        for id in IDS:
            steps += [Step(call, {"id": id}, queue) for call in ("history", "explain")]
    return tuple(steps)


def _replies(
    store: Store, sequence: Sequence, names: Mapping[str, str]
) -> Generator[Plain, None, None]:
    """Play a sequence on a store, and yield its replies.

    What is no error of bide is a reply of its own kind: no store may answer so.
    """
    store.begin(sequence.start)
    with ExitStack() as stack:
        stack.enter_context(all_queues_in(store.lane))
        player = Player(store, names)
        stack.callback(player.close)
        for step in (*sequence.steps, *last_look()):
            try:
                yield player.play(step)
            except Exception as error:  # noqa: BLE001  (any of them is a finding)
                yield {**plain_error(error), "bug": True}


def difference(sequence: Sequence, stores: list[Store]) -> Difference | None:
    """Play a sequence on the memory engine and on stores; return the first difference."""
    number = next(_numbers)
    names = {"q": f"q-{number}", "q2": f"q2-{number}"}
    steps = (*sequence.steps, *last_look())
    specification = memory()
    expected_replies = list(_replies(specification, sequence, names))
    specification.lane.close()
    for store in stores:
        with closing(_replies(store, sequence, names)) as replies:
            pairs = zip(expected_replies, replies, strict=True)
            for place, (step, (expected, actual)) in enumerate(zip(steps, pairs, strict=True)):
                is_bug = isinstance(actual, dict) and "bug" in actual
                if actual != expected or is_bug:
                    return Difference(store.name, place, step, expected, actual)
    return None
