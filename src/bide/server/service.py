"""The service of one server process: its store, its limits and its figures."""

import asyncio
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock, sleep
from bide.consuming.zone_update import keep_planned
from bide.engines import losses
from bide.engines.bounded_dict import BoundedDict
from bide.lane.shared import close_lane, open_lane
from bide.lane.steps import arun_steps
from bide.logs import logger
from bide.model.commands import Claim, Command, Count, History, Lease, Queues
from bide.model.ended import message_hint
from bide.model.errors import BideError, StoreUnavailable
from bide.model.limits import MAX_TALLIES, WAITING_BYTES
from bide.model.replies import Claimed, Counts, Explained, Reply, expect
from bide.observing.circumstances import Surroundings, look_further
from bide.observing.heartbeat import Heartbeat, Report
from bide.observing.recorder import PastRecorder
from bide.observing.tally import Tally, total
from bide.queue.delivery import wanted_at
from bide.server.access.admission import Admission
from bide.server.access.rights import Caller, is_readable
from bide.server.access.tokens import LeaseSecrets, Tokens
from bide.server.http.client_address import ClientAddress
from bide.server.limits.batches import Batches
from bide.server.limits.gate import Gate, Visit
from bide.server.limits.open_calls import Claimers, EventFanout, LongCalls
from bide.server.limits.quotas import Quotas
from bide.server.limits.request_bodies import LargeBodies
from bide.server.limits.slow_reads import SlowReads, Turns
from bide.server.logs import ActionLog
from bide.server.overdue_plans import OverduePlans
from bide.server.problem import ClientText
from bide.server.settings import Settings
from bide.server.shared_state import ServerStats, SharedState
from bide.server.subscriptions.pushing import Pushing
from bide.threads import deaths

_log = logger("bide.server")

WATCH_SECONDS = 10.0
"""Seconds for which a server waits for the end of a message on behalf of an `http://` client, which
polls each second."""

MOST_WATCHED = 1_000
"""The maximum number of watched messages; clients that wait for others poll each second."""

COUNTS_AGE = 0.1
"""Seconds for which event streams share the counts of a queue."""

WRITE_USES_EVERY = 10.0
"""Seconds between two writes of the times at which tokens were last used."""


SHARED_ERROR_SECONDS = 2.0
"""Seconds for which all event streams share the error of a store that is away."""


class FailedLook(NamedTuple):
    """A look of an event stream at the store that failed because the store is away."""

    error: StoreUnavailable
    failed_at: float
    """In seconds of the monotonic clock."""

    @property
    def is_recent(self) -> bool:
        """Whether other streams report this error instead of looking themselves."""
        return time.monotonic() - self.failed_at < SHARED_ERROR_SECONDS


class Service:
    """The store of a server process, and all state of the process.

    Args:
        settings: the settings of the server.
        clock: the clock of the store.
        shared: the state that the processes of the server share.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock = SYSTEM_CLOCK,
        shared: SharedState | None = None,
    ) -> None:
        settings.check()
        self.settings = settings
        self.clock = clock
        self.lane = open_lane(settings.store, self.clock)
        self.events = EventFanout(self.lane)
        self.tokens = Tokens(self.lane, self.clock)
        self.addresses = ClientAddress(settings.trusted_proxies)
        self.client_text = ClientText(settings.store)
        self.action_log = ActionLog(settings.action_log)
        self.large_bodies = LargeBodies(settings.max_request)
        self.lease_secrets = LeaseSecrets(self.lane, self.large_bodies)
        self.shared = shared or SharedState()
        self.admission = Admission(settings, self.tokens, self.clock, self.shared.logins)
        self.slow_reads = SlowReads(self.lane)
        self.quotas = Quotas(
            settings,
            self.lane,
            self.slow_reads,
            self.shared,
            self.admission,
            self.clock,
        )
        self.gate = Gate(
            self.lane,
            self.slow_reads,
            LongCalls("slow reads", "max_slow_reads", settings.max_slow_reads),
            settings.max_body,
            self.quotas,
            self.admission,
        )
        self.batches = Batches(self.gate, self.clock)
        self.pushing = Pushing(self.lane, self.clock, settings)
        self.overdue_plans = OverduePlans(self.lane, self.clock)
        self.stopping = asyncio.Event()
        self.requests: Counter[tuple[str, int]] = Counter()
        """Requests answered, by operation and status."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds that they took, by operation."""
        self.tallies: BoundedDict[str, Tally] = BoundedDict(MAX_TALLIES)
        """What was claimed through the claim route, by queue. A `Queue` on an http:// store claims
        in batches, and its program measures the lateness."""
        self.claimers = Claimers()
        self.streams = LongCalls("event streams", "max_streams", settings.max_streams)
        self.waits = LongCalls("waiting claims", "max_waiting", settings.max_waiting)
        self.looks = Turns()
        """The turns of event streams that look at all their queues."""
        self.failed_look: FailedLook | None = None
        """The last of these that failed."""
        self.scrapes = Turns()
        """The turns of scrapes of the metrics."""
        self._deaths_before = deaths.copy()
        """Deaths of threads and tasks of this process before this service began."""
        self._counts: dict[str, Counts] = {}
        """By queue: the counts that event streams share."""
        self._counts_until = 0.0
        """Until when they are used, in seconds of the monotonic clock."""
        self.watches: dict[str, asyncio.Task[Reply]] = {}
        """Waits for the ends of messages, by the names of these ends; see `watch`."""
        self._ended = False
        """Whether `end` was called."""

    async def begin(self) -> None:
        """Open the store, and find out whether requests need a token.

        Raises:
            StoreError: the store cannot be opened.
            InvalidArgument: other machines can reach the server, and there are no tokens.
        """
        await asyncio.to_thread(lambda: self.lane.capabilities)
        self.quotas.begin()
        await self.admission.begin()

    async def explained(
        self,
        visit: Visit,
        queue: str,
        id: str | None,
        reply: Explained,
        surroundings: Surroundings | None = None,
    ) -> Explained:
        """Add to the store's explanation of a message its possible workers, or how it ended.

        Args:
            visit: the request.
            queue: the name of the queue in the store.
            id: the id of the message.
            reply: the reply of the store.
            surroundings: what was read for other explanations of the request.

        Raises:
            Problem: the caller has too many slow reads under way: reports of workers are many.
        """
        present = self.claimers.listed()
        steps = look_further(
            queue, id, reply, around=True, present=present, surroundings=surroundings
        )
        with visit.slowly():
            return await arun_steps(steps, visit.execute)

    async def checked_leases(self, caller: Caller, queue: str, leases: list[Lease]) -> list[Lease]:
        """Check the secrets in the tokens of a caller's leases; return them without, for the store.

        Raises:
            LeaseLost: a token lacks its secret part.
        """
        if not self.admission.requires_tokens:
            return leases
        return await self.lease_secrets.checked(queue, leases, trusted=caller.may("admin"))

    async def wait(self, command: Command, seconds: float) -> Reply:
        """Execute a command that waits: for messages, or for the end of one.

        Many may get their replies at the same moment, so these are small.
        """
        if isinstance(command, Claim | History):
            most = min(command.max_bytes, WAITING_BYTES)
            command = msgspec.structs.replace(command, max_bytes=most)
        longest = 0.0 if self.stopping.is_set() else self.settings.longest_wait
        return await self.lane.acall(command, self, min(seconds, longest))

    async def claim(self, command: Claim, wait: float) -> Claimed:
        """Claim messages; wait if none is due."""
        with self.claimers.wait(command.holder, command.queue):
            return expect(Claimed, await self.wait(command, wait))

    def watch(self, command: History) -> None:
        """Wait for the end of a message for some seconds, so that event streams report it."""
        name = message_hint(command.queue, command.id)
        has_listeners = len(self.events) > 0
        if not has_listeners or name in self.watches or len(self.watches) >= MOST_WATCHED:
            return

        def forget(task: asyncio.Task[Reply]) -> None:
            del self.watches[name]
            if not task.cancelled() and task.exception() is not None:
                _log.debug("waiting for the end of %s failed", name, exc_info=task.exception())

        watch = asyncio.create_task(self.lane.acall(command, self, WATCH_SECONDS))
        self.watches[name] = watch
        watch.add_done_callback(forget)

    def handed_out(self, command: Claim, reply: Claimed) -> None:
        """Count the messages of a claim and remember its holder."""
        self.claimers.note_claim(command.holder, command.queue)
        if reply.messages:
            tally = self.tallies.get(command.queue) or Tally()
            self.tallies[command.queue] = tally  # again: the latest one is forgotten last
            tally.claims += 1
            tally.claimed += len(reply.messages)
            for message in reply.messages:
                tally.lateness.observe(max(0, reply.now - wanted_at(message)) / 1000)

    async def counts(self, queue: str) -> Counts:
        """Return the counts of a queue, as they were at most `COUNTS_AGE` ago."""
        now = time.monotonic()
        if now >= self._counts_until:
            self._counts, self._counts_until = {}, now + COUNTS_AGE
        if (counts := self._counts.get(queue)) is None:
            counts = expect(Counts, await self.lane.acall(Count(queue), self))
            self._counts[queue] = counts
        return counts

    async def ready(self) -> str | None:
        """Return why the service is not ready, `None` if it is."""
        if self.stopping.is_set():
            return "the server is stopping"
        try:
            async with asyncio.timeout(5):
                await self.lane.acall(Queues("-"), self)  # the cheapest command
        except TimeoutError:
            return "the store does not answer within 5 s"
        except BideError as error:
            return self.client_text.of(error)
        failure = self.pushing.pusher.failure
        return None if failure is None else self.client_text.without_places(failure)

    @property
    def degraded(self) -> str | None:
        """What an operator should look at although the service is ready; `None` if nothing."""
        if self.lane.notifications_lost:
            return "notifications of other processes are lost, so waiting claims poll the store"
        return None

    @property
    def thread_restarts(self) -> dict[str, int]:
        """How often threads and tasks of this process died and were restarted, by name."""
        return dict(deaths - self._deaths_before)

    def note(self, operation: str, status: int, began: float) -> float:
        """Count a request; return how many seconds it took."""
        took = time.perf_counter() - began
        self.requests[operation, status] += 1
        self.seconds[operation] += took
        return took

    @property
    def stats(self) -> ServerStats:
        """What this process has done so far."""
        return ServerStats(
            requests=self.requests,
            seconds=self.seconds,
            tallies=self.tallies,
            sent=self.pushing.pusher.sent,
            waiting=self.claimers.waiting,
            threads=self.thread_restarts,
            lost=total([self.shared.stats.lost_before, losses.counted()]),
        )

    async def keep_tokens(self) -> None:
        """Write regularly when tokens were last used, until cancelled."""
        while True:
            await sleep(self.clock, WRITE_USES_EVERY)
            with suppress(BideError):  # the store is away or full: the next use is noted again
                await self.tokens.write_uses()

    async def keep_planned(self) -> None:
        """Plan messages again that were planned by older time zone data than this process has."""
        await keep_planned(self.lane.acall, self.clock)

    async def keep_past(self) -> None:
        """Record what happens in queues, unless the store is behind another server, which does."""
        capabilities = self.lane.capabilities
        if not capabilities.has_server:
            # Of a store of this process alone nobody else knows the lateness.
            tallies = None if capabilities.shared else self._tallies_of_process
            await PastRecorder(self.lane.acall, self.clock, tallies).keep()

    def _tallies_of_process(self) -> dict[str, Tally]:
        """Return what was claimed through this server, and pushed by it, by queue."""
        return total([self.tallies, self.pushing.pusher.tallies()])

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat that reports in the store who claims at this process."""
        process_name = f"serve:{socket.gethostname()}:{os.getpid()}"
        return Heartbeat(
            self.lane,
            SYSTEM_CLOCK,
            process_name,
            lambda: Report(self.claimers.listed()),
            lambda: self.tallies,
        )

    def stop(self, *, hurry: bool = False) -> None:
        """Answer waiting claims, end event streams, and push no more messages.

        Args:
            hurry: release at once the messages that are being pushed.
        """
        self.stopping.set()
        self.events.wake()
        self.lane.release(self)
        self.pushing.stop(hurry=hurry)

    async def end(self) -> None:
        """Close the store, once pushes are finished or released."""
        if not self._ended:
            self._ended = True
            self.stop()
            await self.pushing.end()
            await self.overdue_plans.close()
            await self.quotas.close()
            self.shared.stats.post(self.stats)
            await asyncio.to_thread(self.slow_reads.close)
            await asyncio.to_thread(close_lane, self.lane)
            # Not in a thread: requests that were broken off still use these.
            self.action_log.close()
            self.shared.close()


def own_names(caller: Caller, names: Sequence[str]) -> list[str]:
    """Return the caller's names of those queues that the caller may see and read."""
    by_admin = caller.may("admin")
    own = (caller.own(name) for name in names if is_readable(name, by_admin=by_admin))
    return [name for name in own if name is not None]
