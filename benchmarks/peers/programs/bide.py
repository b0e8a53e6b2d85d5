"""bide, as a program beside its peers: an async handler in `bide worker`."""

from collections.abc import Iterable, Sequence
from typing import Any

import bide
from benchmarks.peers.programs.protocol import Call, Peer, hold_async, note, run, run_module, store

__all__ = ["app"]

URL = f"sqlite:///{store()}" if store().startswith("/") else store()

app = bide.App(URL)


@app.handler("work")
async def work(call: tuple[int, float, float, str]) -> None:
    """Do nothing, or nothing for a while."""
    number, due, seconds, _ = call
    await hold_async(seconds)
    note(number, due)


class Bide(Peer):
    """A queue, used by one caller."""

    def __init__(self) -> None:
        self._queue = bide.Queue("work", URL)

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each."""
        return [self._queue.put(call.arguments, at=call.due).id for call in calls]

    def put_list(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put all with one call."""
        messages = [bide.NewMessage(call.arguments, at=call.due) for call in calls]
        return [outcome.id for outcome in self._queue.put_many(messages)]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Cancel by id."""
        for id in keys:
            assert self._queue.cancel(id)

    def work(self) -> None:
        """Run `bide worker`."""
        run_module("bide", "worker", "benchmarks.peers.programs.bide:app")


if __name__ == "__main__":
    run(Bide)
