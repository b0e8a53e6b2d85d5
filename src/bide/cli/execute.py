"""Running a command for each message: `bide claim --exec`."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from bide.cli.errors import warn
from bide.cli.messages import body_bytes
from bide.cli.output import Output
from bide.cli.termination import TERMINATION_SIGNALS, raise_on_termination
from bide.cli.times import iso, rounded
from bide.model.errors import LeaseLost, StoreError
from bide.queue.delivery import Delivery
from bide.queue.sync import Queue

__all__ = ["Runner"]

IDLE = 3600.0
"""For how long one claim of a loop waits."""

AGAIN = 1.0
"""After how many seconds at most an extension that failed is tried again."""

PATIENCE, PAUSE = 5.0, 0.02
"""How many seconds a command gets to end when it is stopped, and how often that is looked at."""


class Runner:
    """Claims one message at a time, so that each is started when it is claimed.

    Args:
        queue: where the messages come from.
        url: of its store, for what `bide` the command itself may call.
        command: for the shell.
        lease: in seconds; a third of it is how often it is extended.
        retry: seconds until the next attempt after a failure.
        out: where outcomes go, as JSON, if that is wanted.
    """

    def __init__(
        self, queue: Queue, url: str, command: str, lease: float, retry: float, out: Output
    ) -> None:
        self._queue = queue
        self._url = url
        self._command = command
        self._lease = lease
        self._retry = retry
        self._out = out

    def run(self, count: int | None, wait: float | None) -> bool:
        """Handle messages until there were `count` (`None`: for ever); return whether all is well.

        Args:
            count: how many at most.
            wait: how many seconds to wait for each.
        """
        handled, well = 0, True
        with raise_on_termination(lambda number: SystemExit(128 + number)):
            while count is None or handled < count:
                patience = IDLE if count is None and wait is None else wait
                found = self._queue.claim(wait=patience, lease=self._lease)
                if found:
                    handled += 1
                    well = self._handle(found[0]) and well
                elif count is not None or wait is not None:
                    break
        return well and handled > 0

    def _handle(self, delivery: Delivery) -> bool:
        """Run the command for one message, and settle it by the exit code."""
        began = time.monotonic()
        try:
            with tempfile.TemporaryFile() as body:  # a pipe would need somebody to feed it
                body.write(body_bytes(delivery.message))
                body.seek(0)
                code = self._run(body, delivery)
        except BaseException:
            _hand_back(delivery)
            raise
        return self._settle(delivery, code, time.monotonic() - began)

    def _run(self, body: IO[bytes], delivery: Delivery) -> int:
        """Run the command to its end, and return its exit code; nothing of it outlives this."""
        environment = {**os.environ, **self._about(delivery)}
        # In a group of its own, what the shell has started can be stopped with it.
        with _deferred() as deliver:
            process = subprocess.Popen(
                self._command, shell=True, stdin=body, env=environment, process_group=0
            )
        try:
            deliver()
            return self._attend(process, delivery)
        except BaseException:
            _stop(process)
            raise

    def _about(self, delivery: Delivery) -> dict[str, str]:
        return {
            "BIDE_URL": self._url,
            "BIDE_QUEUE": self._queue.name,
            "BIDE_ID": delivery.id,
            "BIDE_ATTEMPT": str(delivery.attempt),
            "BIDE_LEASE_TOKEN": str(delivery.token),
            "BIDE_DUE": iso(delivery.message.due),
        }

    def _attend(self, process: "subprocess.Popen[bytes]", delivery: Delivery) -> int:
        """Wait for the command's end, and keep the lease until then."""
        beat = self._lease / 3
        pause: float | None = beat
        while True:
            try:
                return process.wait(pause)
            except subprocess.TimeoutExpired:
                pass
            try:
                delivery.extend(self._lease)
                pause = beat
            except LeaseLost as error:
                pause = None
                warn(f"{error}; the command goes on, and its result will not count")
            except StoreError as error:  # it may be back before the lease is over
                if pause == beat:
                    warn(f"the lease of {delivery.id} is to be extended again soon: {error}")
                pause = min(beat / 2, AGAIN)

    def _settle(self, delivery: Delivery, code: int, seconds: float) -> bool:
        reason = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        message = delivery.message
        try:
            if code == 0:
                delivery.ack()
                outcome = "acked"
            else:
                delivery.retry(self._retry, reason)
                last = message.attempt >= message.attempts
                outcome = "dead" if last else "retried"
        except LeaseLost as error:
            warn(str(error))
            outcome = "lost"
        self._report(delivery, code, outcome, seconds, reason)
        return outcome == "acked"

    def _report(
        self, delivery: Delivery, code: int, outcome: str, seconds: float, reason: str
    ) -> None:
        message = delivery.message
        if self._out.as_json:
            self._out.json({
                "id": delivery.id, "attempt": delivery.attempt, "exit": code, "outcome": outcome,
                "seconds": round(seconds, 3), "lateness": delivery.lateness,
            })  # fmt: skip
            self._out.flush()
        elif outcome in ("retried", "dead"):
            then = f"again in {rounded(self._retry * 1000)}"
            then = "it is a dead letter now" if outcome == "dead" else then
            warn(
                f"{delivery.id}: {reason}, attempt {message.attempt} of {message.attempts}; {then}"
            )


def _hand_back(delivery: Delivery) -> None:
    try:
        delivery.release()
    except LeaseLost as error:
        warn(str(error))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a command and all that it has started: ask, and after a while, or a second Ctrl-C, kill.

    Nothing of it may go on when its message is handed back: the work would be done twice.
    """
    try:
        _signal(process, signal.SIGTERM)
        _ended(process, PATIENCE)
    finally:
        if _signal(process, signal.SIGKILL):
            _ended(process, PATIENCE)


def _signal(process: "subprocess.Popen[bytes]", number: int) -> bool:
    """Send a signal to all of a command; return whether there was anybody."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # what is left of it has become somebody else's, as by sudo
        return True
    return True


def _ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for the end of all of a command; return whether it came in time."""
    deadline = time.monotonic() + seconds
    while process.poll() is None or _signal(process, 0):
        if time.monotonic() >= deadline:
            return False
        time.sleep(PAUSE)
    return True


@contextmanager
def _deferred() -> Iterator[Callable[[], None]]:
    """Hold back signals in the block: a start that is broken off leaves a command without master.

    Gives what delivers those that came, to be called after the block.
    """
    came: list[int] = []

    def deliver() -> None:
        for number in came[:1]:
            signal.raise_signal(number)

    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, *TERMINATION_SIGNALS)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield deliver
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
