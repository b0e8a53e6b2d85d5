"""Dramatiq: a message with a delay, and its worker processes."""

import time
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.programs.protocol import (
    Call,
    Peer,
    hold,
    note,
    run,
    run_module,
    setting_options,
    store,
)

__all__ = ["work"]

dramatiq.set_broker(RedisBroker(url=store()))


@dramatiq.actor(actor_name="work")  # type: ignore[untyped-decorator]
def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    hold(seconds)
    note(number, due)


class Dramatiq(Peer):
    """Its calls from one thread."""

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Send each with a delay, of whole milliseconds, so that none is early."""
        return [
            work.send_with_options(args=call.arguments, delay=_delay(call.due)) for call in calls
        ]

    def work(self) -> None:
        """Run `dramatiq`."""
        run_module("dramatiq", "benchmarks.peers.programs.dramatiq", *setting_options())


def _delay(due: float) -> int:
    return max(0, -int((time.time() - due) * 1000 // 1))


if __name__ == "__main__":
    run(Dramatiq)
