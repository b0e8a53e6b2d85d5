"""Run a shell command for each message: `bide claim --exec`."""

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import Process
from types import SimpleNamespace
from typing import Any

from bide.cli.errors import TERMINATION_SIGNALS, flush_output
from bide.cli.message_output import body_bytes
from bide.cli.output import Output
from bide.cli.times import iso
from bide.clock import SYSTEM_CLOCK
from bide.consuming.consumer import Consumer
from bide.consuming.graceful_stop import FAREWELL
from bide.consuming.handling import Handler, Handling
from bide.consuming.queue_handlers import QueueHandlers, lease_of
from bide.consuming.store_client import StoreClient
from bide.consuming.verdict import RELEASE, Verdict
from bide.lane.lane import Lane
from bide.model.commands import Claim
from bide.model.replies import Claimed
from bide.tasks import first_of

PATIENCE = 5.0
"""Seconds that a stopped command may take to end."""

PAUSE = 0.02
"""Seconds between two checks whether it has ended."""


class CommandFailed(Exception):
    """The command ended with a code other than 0."""


class CommandConsumer(Consumer):
    """Claims one message at a time, runs the command for it, and settles it by the exit code.

    Args:
        queue: the name of the queue.
        lane: the lane to the store.
        holder: the name of the holder in its claims.
        lease: in seconds.
        command: for the shell.
        environment: of the command, beside what is known of the message.
        retry: the delay in seconds before a failed message is retried.
        count: how many messages to handle; `None`: no limit.
        wait: how many seconds to wait for each message; `None` with a count: not at all; `None`
            without a count: for ever.
        out: prints the results as JSON, if that is wanted.
    """

    def __init__(
        self,
        queue: str,
        lane: Lane,
        holder: str,
        lease: float,
        *,
        command: str,
        environment: dict[str, str],
        retry: float,
        count: int | None,
        wait: float | None,
        out: Output,
    ) -> None:
        handler = Handler(command, self._handle, is_async=True)
        handlers = QueueHandlers(queue, lease_of(lease), 1, {None: handler})
        super().__init__(handlers, (), SimpleNamespace(), StoreClient(lane, SYSTEM_CLOCK), holder)
        self._stopping = asyncio.Event()
        """Set by the first call of `stop`."""
        self._second_stop = asyncio.Event()
        """Set by the second call of `stop`."""
        self.results: set[str] = set()
        """How deliveries have ended."""
        self._start_error: Exception | None = None
        """Why a command could not be started."""
        self._exit_code: int | None = None
        """The exit code of the last command; `None` before it has ended."""
        self._command = command
        self._environment = environment
        self._retry = round(retry * 1000)
        self._count = count
        self._patience = wait
        self._out = out

    def stop(self) -> None:
        """Stop the command, even if its lease was lost, or the wait for a message.

        A command that is stopped for the second time is killed at once.
        """
        if self._stopping.is_set():
            self._second_stop.set()
            return
        self._stopping.set()
        self.recall()
        self.release_running()
        for handling in self.running:
            handling.cancel()

    async def claim(self) -> None:
        """Handle one message after another, until there is none or enough were handled."""
        remaining = float("inf") if self._count is None else self._count
        while remaining and not self._stopping.is_set():
            reply = await self.claimed(1)
            if reply is None or not reply.messages:  # it was told to stop, or no message came
                return
            await self._handle_one(reply)
            remaining -= 1

    async def _handle_one(self, reply: Claimed) -> None:
        """Run the command for the message of a claim, settle it, and print the result."""
        self._exit_code = None
        self.start(reply)
        (handling,) = self.running  # a claim takes one message, after the one before is settled
        if self._stopping.is_set():  # the message came with the signal
            self.release_running()
        if handling.task is not None:
            await asyncio.wait([handling.task])
        # The store may be away: then a stopped command does not wait for it for ever.
        await first_of(self.until_quiet(), self._time_to_settle())
        if self._start_error is not None:
            raise self._start_error
        if self._exit_code is not None and handling.outcome:
            self._report(handling, self._exit_code)

    async def ask(self, command: Claim) -> Claimed:
        """Wait for a message as long as the user wants to."""
        if self._count is None and self._patience is None:
            # An empty reply only says that messages died, or that the store is back.
            while not (reply := await super().ask(command)).messages:
                pass
            return reply
        # With a count or a wait, an empty reply ends `bide claim`.
        return await self._store_client.once(Claimed, command, self, self._patience)

    def judge(self, handling: Handling, error: BaseException) -> Verdict:
        """Retry a message whose command failed; release one whose command could not start."""
        if isinstance(error, CommandFailed):
            return Verdict("retried", self._retry, str(error))
        if isinstance(error, Exception):
            self._start_error = error
        return RELEASE

    async def _handle(self, handling: Handling) -> None:
        """Run the command for a message.

        Raises:
            CommandFailed: its exit code is not 0.
            OSError: it could not be started.
        """
        process = await self._started(handling)
        try:
            exit_code = await self._exit_code_of(process, handling)
        except BaseException:
            await self._end(process)
            raise
        self._exit_code = exit_code
        if exit_code:
            raise CommandFailed(
                f"exit code {exit_code}" if exit_code > 0 else f"killed by signal {-exit_code}"
            )

    async def _started(self, handling: Handling) -> Process:
        """Start the command with the body of the message on stdin."""
        with tempfile.TemporaryFile() as body:  # a pipe would need a writer
            body.write(body_bytes(handling.message))
            body.seek(0)
            # In a new process group, so that what the shell starts can be stopped with it.
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_shell(
                    self._command, stdin=body, env=self._environment_of(handling), process_group=0
                )
            )
            try:
                return await asyncio.shield(starting)
            except asyncio.CancelledError:  # a process that has just started must not go on
                await self._end(await starting)
                raise

    def _environment_of(self, handling: Handling) -> dict[str, str]:
        return {
            **self._environment,
            "BIDE_QUEUE": handling.message.queue,
            "BIDE_ID": handling.id,
            "BIDE_ATTEMPT": str(handling.attempt),
            "BIDE_LEASE_TOKEN": handling.lease.text,
            "BIDE_DUE": iso(handling.message.due),
        }

    async def _exit_code_of(self, process: Process, handling: Handling) -> int:
        """Wait for the exit code. A command whose lease was lost goes on; its result is ignored."""
        while True:
            try:
                return await process.wait()
            except asyncio.CancelledError:
                if self._stopping.is_set() or not handling.outcome_ignored:
                    raise

    async def _end(self, process: Process) -> None:
        """End a command and all that it started, so that the work is not done twice.

        Sends SIGTERM, waits until all have ended, at most `PATIENCE` seconds or until a second
        Ctrl-C, and kills what is left.
        """
        _signal(process, signal.SIGTERM)
        try:
            await first_of(_ended(process), asyncio.sleep(PATIENCE), self._second_stop.wait())
        finally:  # also if this task is cancelled while it waits
            was_left = _signal(process, signal.SIGKILL)
        if was_left:
            await first_of(_ended(process), asyncio.sleep(PATIENCE))

    async def _time_to_settle(self) -> None:
        """Wait until `FAREWELL` seconds after a stop."""
        await self._stopping.wait()
        await asyncio.sleep(FAREWELL)

    def _report(self, handling: Handling, code: int) -> None:
        """Note the outcome of a delivery, for the exit code; with `--json` print it as a line."""
        self.results.add(handling.outcome)
        if self._out.as_json:
            self._out.json(
                {
                    "id": handling.id,
                    "attempt": handling.attempt,
                    "exit": code,
                    "outcome": handling.outcome,
                    "took": round(handling.took * 1000),
                    "lateness": round(handling.lateness * 1000),
                }
            )
            flush_output()


async def execute(queue: str, lane: Lane, holder: str, lease: float, **options: Any) -> bool:
    """Run a command for each message; return whether there were any, and all were acked.

    Takes the arguments of `CommandConsumer`.

    Raises:
        SystemExit: a signal stopped it; the message was released.
        OSError: a command could not be started; its message was released.
        StoreError: the store failed.
    """
    consumer = CommandConsumer(queue, lane, holder, lease, **options)
    loop = asyncio.get_running_loop()
    signals: list[int] = []

    def interrupt(number: int) -> None:
        signals.append(number)
        consumer.stop()

    for number in (signal.SIGINT, *TERMINATION_SIGNALS):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, interrupt, number)
    consumer.open()
    try:
        await first_of(consumer.claims, *consumer.chores)
    finally:
        await consumer.close()
    if signals:
        first, *_ = signals
        raise SystemExit(128 + first)  # as shells report a command that a signal has ended
    return consumer.results == {"acked"}


def _signal(process: Process, number: int) -> bool:
    """Send a signal to all of a command; return whether any of it is left."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # what is left runs as another user, as by sudo
    return True


async def _ended(process: Process) -> None:
    """Wait until nothing of a command is left."""
    await process.wait()
    while _signal(process, 0):  # noqa: ASYNC110  (the end of a group sends no event)
        await asyncio.sleep(PAUSE)
