"""Holds every answer that a caller gets against the store, while its calls are interrupted."""

import itertools
import random
from collections.abc import Callable
from typing import Any, Protocol

import bide
from tests.system.faults.strikes import Struck


class Strikes(Protocol):
    """Interrupts some of the calls that are made through it."""

    def during(self, call: Callable[[], Any]) -> Any:
        """Return the answer of a call, or `Struck.STRUCK`: it has none."""


class Ledger:
    """Calls a queue, and knows of each message what its answers say.

    A message is put, read and cancelled in random order until a call is struck. From then on it is
    not touched: that call was executed, or was not, or will be, so the message may be there or not.
    In a second queue messages are put, claimed and acked, each call may be struck.

    Only ledgers with other names may use its store besides. Threads share no ledger; greenlets may.

    Args:
        url: of the store.
        strikes: interrupts the calls.
        queue: returns a queue by its name and the URL. If it is no `bide.Queue`, `strikes` makes
            answers of what its methods return, and the caller closes it.
        name: of the ledger: its queues and messages have it in their names.
        wait: how many seconds a claim waits for a message.
        releases: what a struck claim got has to be released: no strike comes as it returns, and no
            reply is lost.
        seed: of the order of calls.
    """

    def __init__(
        self,
        url: str,
        strikes: Strikes,
        *,
        queue: Callable[[str, str], Any] = bide.Queue,
        name: str = "",
        wait: float | None = None,
        releases: bool = False,
        seed: int = 1,
    ) -> None:
        self._url = url
        self._strikes = strikes
        self._random = random.Random(seed)
        self._names = f"changes{name}", f"work{name}"
        self._changes, self._work = (queue(name, url) for name in self._names)
        self._wait = wait
        self._releases = releases
        self._numbers = itertools.count(1)
        self._present: dict[str, bool] = {}
        """By id: whether the message is in the queue; those in doubt are left out."""
        self._put: set[str] = set()
        """What was put into the second queue for certain,"""
        self._tried: set[str] = set()
        """or perhaps;"""
        self._delivered: set[str] = set()
        """what a claim has returned,"""
        self._acked: set[str] = set()
        """what was acked,"""
        self._ack_tried: set[str] = set()
        """or perhaps."""
        self.false: list[str] = []
        """False answers, in words."""

    def turn(self) -> None:
        """Make some calls of each queue."""
        number = next(self._numbers)
        self._change(f"c{number}")
        self._deliver(f"w{number}")

    def _change(self, id: str) -> None:
        """Put, read and cancel one message until a call is struck."""
        present = False
        for _ in range(self._random.randrange(1, 5)):
            verb = self._random.choice(("put", "cancel", "get"))
            calls: dict[str, Callable[[], object]] = {
                "put": lambda: self._changes.put({"id": id}, id=id, delay="1h"),
                "cancel": lambda: self._changes.cancel(id),
                "get": lambda: self._changes.get(id),
            }
            answer = self._strikes.during(calls[verb])
            if answer is Struck.STRUCK:
                self._present.pop(id, None)
                return
            right = {"put": not present, "cancel": present, "get": present}[verb]
            if bool(answer) is not right:
                self.false.append(f"{verb} of {id} answered {answer!r}; it was there: {present}")
            present = {"put": True, "cancel": False, "get": present}[verb]
            self._present[id] = present

    def _deliver(self, id: str) -> None:
        """Put a message, claim some, and ack them. If claims wait, some have to: put none."""
        if self._wait is None or self._random.random() < 0.5:
            self._tried.add(id)
            put = self._strikes.during(lambda: self._work.put({"id": id}, id=id))
            if put is not Struck.STRUCK:
                self._put.add(id)
        deliveries = self._strikes.during(lambda: self._work.claim(3, lease="1h", wait=self._wait))
        if deliveries is Struck.STRUCK:
            return
        for delivery in deliveries:
            self._delivered.add(delivery.id)
            if delivery.id in self._acked or delivery.id not in self._tried:
                self.false.append(f"{delivery.id} was delivered, and was not there")
            if delivery.body != {"id": delivery.id}:
                self.false.append(f"{delivery.id} was delivered with the body {delivery.body!r}")
            self._ack_tried.add(delivery.id)
            try:
                answer = self._strikes.during(delivery.ack)
            except bide.LeaseLost as lost:
                self.false.append(f"ack of {delivery.id} raised {lost!r}")
            else:
                if answer is not Struck.STRUCK:
                    self._acked.add(delivery.id)

    def problems(self) -> list[str]:
        """Return what the store contradicts: nothing, if all is well. Closes the queues."""
        problems = list(self.false)
        changes, work = (bide.Queue(name, self._url) for name in self._names)
        for queue in (self._changes, self._work):
            if isinstance(queue, bide.Queue):
                queue.close()
        with changes, work:
            with bide.Queue("empty", self._url) as empty:
                empty.claim(wait=0.001)  # is executed after what struck calls have left to the lane
            there = {message.id for message in changes.scan()}
            problems += [
                f"{id} is {'not ' if present else ''}there, against the last answer"
                for id, present in self._present.items()
                if (id in there) is not present
            ]
            messages = list(work.scan())
            left = {message.id for message in messages}
            if self._releases:
                leased = {message.id for message in messages if message.state == "leased"}
                problems += [
                    f"{id} is leased, and no claim returned it" for id in leased - self._delivered
                ]
            problems += [f"{id} was put and is lost" for id in self._put - self._ack_tried - left]
            problems += [f"{id} was acked and is still there" for id in self._acked & left]
            problems += [f"{id} is there, and was never put" for id in left - self._tried]
            for queue in (changes, work):
                if not (audit := queue.audit()):
                    problems.append(str(audit))
        return problems
