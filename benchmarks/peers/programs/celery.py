"""Celery: a task with an ETA, and a worker of its default pool."""

from collections.abc import Iterable, Sequence
from typing import Any

from celery import Celery, group

from benchmarks.peers.programs.protocol import (
    Call,
    Peer,
    hold,
    note,
    run,
    run_module,
    settings,
    store,
)

__all__ = ["app"]

app = Celery("peer", broker=store())
app.conf.update(settings())


@app.task(name="work", shared=False)  # type: ignore[untyped-decorator]
def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    hold(seconds)
    note(number, due)


class CeleryPeer(Peer):
    """Its calls from one thread."""

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Send each task."""
        return [work.apply_async(call.arguments, eta=call.moment).id for call in calls]

    def put_list(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Send a group, each of whose tasks has an ETA."""
        tasks = group(work.s(*call.arguments).set(eta=call.moment) for call in calls)
        return [result.id for result in tasks.apply_async().results]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Tell all workers that the task is revoked."""
        for id in keys:
            app.control.revoke(id)

    def work(self) -> None:
        """Run `celery worker`."""
        run_module("celery", "-A", "benchmarks.peers.programs.celery", "worker", "-l", "error")


if __name__ == "__main__":
    run(CeleryPeer)
