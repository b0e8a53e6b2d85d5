"""Holds every answer that a caller gets against the store, while its calls are interrupted."""

import random
from collections.abc import Callable
from typing import Protocol, TypeVar

import bide
from tests.faults.strikes import Struck

R = TypeVar("R")


class Strikes(Protocol):
    """Interrupts some of the calls that are made through it."""

    def during(self, call: Callable[[], R]) -> "R | Struck":
        """Return the answer of a call, or that it has none."""


class Ledger:
    """Calls a queue, and knows of each message what its answers say.

    A message is put, read and cancelled in random order until a call is struck. From then on it is
    not touched: that call was executed, or was not, or will be, so the message may be there or not.
    In a second queue messages are put, claimed and acked, each call may be struck.

    Nothing else may use the two queues.

    Args:
        url: of the store.
        strikes: interrupts the calls.
        seed: of the order of calls.
    """

    def __init__(self, url: str, strikes: Strikes, *, seed: int = 1) -> None:
        self._url = url
        self._strikes = strikes
        self._random = random.Random(seed)
        self._changes = bide.Queue("changes", url)
        self._work = bide.Queue("work", url)
        self._number = 0
        self._present: dict[str, bool] = {}
        """By id: whether the message is in the queue; those in doubt are left out."""
        self._put: set[str] = set()
        """What was put into the second queue for certain,"""
        self._tried: set[str] = set()
        """or perhaps;"""
        self._acked: set[str] = set()
        """what was acked,"""
        self._ack_tried: set[str] = set()
        """or perhaps."""
        self.false: list[str] = []
        """False answers, in words."""

    def turn(self) -> None:
        """Make some calls of each queue."""
        self._number += 1
        self._change(f"c{self._number}")
        self._deliver(f"w{self._number}")

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
        """Put a message, claim some, and ack them."""
        self._tried.add(id)
        if self._strikes.during(lambda: self._work.put({"id": id}, id=id)) is not Struck.STRUCK:
            self._put.add(id)
        deliveries = self._strikes.during(lambda: self._work.claim(3, lease="1h"))
        if deliveries is Struck.STRUCK:
            return
        for delivery in deliveries:
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
        with self._changes as changes, self._work as work:
            with bide.Queue("empty", self._url) as empty:
                empty.claim(wait=0.001)  # is executed after what struck calls have left to the lane
            there = {message.id for message in changes.scan()}
            problems += [
                f"{id} is {'not ' if present else ''}there, against the last answer"
                for id, present in self._present.items()
                if (id in there) is not present
            ]
            left = {message.id for message in work.scan()}
            problems += [f"{id} was put and is lost" for id in self._put - self._ack_tried - left]
            problems += [f"{id} was acked and is still there" for id in self._acked & left]
            problems += [f"{id} is there, and was never put" for id in left - self._tried]
            for queue in (changes, work):
                if not (audit := queue.audit()):
                    problems.append(str(audit))
        return problems
