"""The master of a Sentinel group dies or falls silent in mid-load, again and again."""

import signal
import time
from pathlib import Path

import pytest

from tests.contract.conformance.shards import conforms
from tests.sentinels import SentinelGroup
from tests.system.faults.workload import Crew

pytestmark = pytest.mark.process

PROCESSES = 3


def test_nothing_confirmed_is_lost_when_the_master_dies_or_is_silent(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    group = SentinelGroup(tmp_path / "group")
    url = f"{group.url}?wait_replicas=1&timeout=2s&reconnect=20s"
    try:
        with Crew(url, tmp_path, PROCESSES, tolerant=True) as crew:
            for ending in (signal.SIGKILL, signal.SIGSTOP):
                crew.until_at_work()
                time.sleep(crew.chance.uniform(0, 0.5))  # a random point of whatever they are at
                old = group.master()
                assert old.process is not None
                old.process.send_signal(ending)
                group.wait_for_another(old)
                if ending == signal.SIGSTOP:
                    old.process.send_signal(signal.SIGCONT)
                else:
                    old.stop()
                    old.start()
                group.wait_for_replica()
            crew.until_at_work()
            crew.dismiss()
        conforms(url)
    finally:
        group.stop()
