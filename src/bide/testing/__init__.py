"""For tests of bide and of programs that use it: a clock, a store, a worker, crashes, the suite.

Most of it is available as pytest fixtures. `bide.testing.history` proves from the journals of
processes that a store kept its promises. Only `bide.testing.conformance` needs more than bide
itself: the extra `bide[testing]`.
"""

from bide.testing.clock import FakeClock
from bide.testing.crashing.crash_report import CrashFinding, CrashReport
from bide.testing.crashing.effects import Effect
from bide.testing.crashing.points import CrashTester, crash_points
from bide.testing.faults import Fault, FlakyEngine
from bide.testing.manual_consumer import Handled
from bide.testing.store import PutRecord, ScratchStore
from bide.testing.worker import AsyncManualWorker, AsyncWorkerFactory, ManualWorker, WorkerFactory

__all__ = [
    "AsyncManualWorker",
    "AsyncWorkerFactory",
    "CrashFinding",
    "CrashReport",
    "CrashTester",
    "Effect",
    "FakeClock",
    "Fault",
    "FlakyEngine",
    "Handled",
    "ManualWorker",
    "PutRecord",
    "ScratchStore",
    "WorkerFactory",
    "crash_points",
]
