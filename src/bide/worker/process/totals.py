"""The figures of all processes of a supervisor."""

import threading
from collections import Counter
from collections.abc import Iterator

from bide.engines import losses
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.model.replies import Counts
from bide.observing.families import Metric, worker_metrics
from bide.observing.store_counts import counts_of
from bide.observing.tally import Tally, total
from bide.threads import deaths
from bide.worker.process.processes import Process


class Totals:
    """Adds up the tallies of processes, and reads the queues they work on.

    A process reports all that it has done since it began. Its last report is kept when it ends. If
    it is killed, its last second is missing here; the store's own counters have it. The
    supervisor's loop writes, and a thread reads at each scrape.
    """

    def __init__(self) -> None:
        self.living: list[Process] = []
        """The processes that have not ended."""
        self._lock = threading.Lock()
        self._ended_tallies: dict[str, Tally] = {}
        """What processes that have ended have done, by queue."""
        self._ended_threads: Counter[str] = Counter()
        """How often threads and tasks of processes that have ended were restarted, by name."""
        self._ended_losses: dict[str, int] = {}
        """How many changes processes that have ended have seen to be lost, by queue."""
        self._lane: Lane | None = None
        """Opened when it is first needed."""
        self.ready = 0
        """How many processes claim messages."""
        self.restarts = 0
        """How many processes were started in place of one that had died."""

    def ended(self, process: Process) -> None:
        """Keep the figures of a process that has ended."""
        last = {queue: tally.ceased() for queue, tally in process.report.tallies.items()}
        with self._lock:
            self.living.remove(process)
            self._ended_tallies = total([self._ended_tallies, last])
            self._ended_threads.update(process.report.threads)
            self._ended_losses = losses.together([self._ended_losses, process.lost])

    def tallies(self) -> dict[str, Tally]:
        """Return what was done on each queue."""
        with self._lock:
            living = [process.report.tallies for process in self.living]
            return total([self._ended_tallies, *living])

    def threads(self) -> Counter[str]:
        """Return how often threads and tasks died and were restarted, here and in the processes."""
        with self._lock:
            restarts = self._ended_threads + deaths
            for process in self.living:
                restarts.update(process.report.threads)
            return restarts

    def lost(self) -> dict[str, int]:
        """Return how many changes are lost, at least, by queue, as far as any process has seen."""
        with self._lock:
            living = [process.lost for process in self.living]
            return losses.together([self._ended_losses, losses.counted(), *living])

    def lane(self) -> Lane | None:
        """Return the lane to the store of the processes; `None` before the first report."""
        with self._lock:
            # The supervisor never imports the app, so a process has to tell which store it is.
            urls = [process.report.store for process in self.living if process.report.store]
            if self._lane is None and urls:
                self._lane = open_lane(urls[0])
            return self._lane

    def counts(self) -> dict[str, Counts]:
        """Read the queues; empty before the first report, and for a store in memory.

        Raises:
            StoreError: the store cannot be read.
        """
        lane = self.lane()
        if lane is None or not lane.capabilities.shared:
            return {}
        return counts_of(lane, self.tallies())

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the processes."""
        yield from worker_metrics(self.ready, self.restarts, self.tallies(), self.threads())

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            lane, self._lane = self._lane, None
        if lane is not None:
            close_lane(lane)
