"""Huey, on Redis or SQLite: a task with an ETA, and its consumer."""

from collections.abc import Iterable, Sequence
from typing import Any

from huey import RedisHuey, SqliteHuey

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

__all__ = ["huey"]

huey: Any = (
    SqliteHuey("peer", filename=store())
    if store().startswith("/")
    else RedisHuey("peer", url=store())
)


@huey.task(name="work")  # type: ignore[untyped-decorator]
def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    hold(seconds)
    note(number, due)


class Huey(Peer):
    """Its calls from one thread."""

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each; Huey cuts a naive time to the second, an aware one is kept."""
        return [work.schedule(call.arguments, eta=call.moment) for call in calls]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Store that the task is revoked; it stays until it is due."""
        for result in keys:
            result.revoke()

    def work(self) -> None:
        """Run `huey_consumer`."""
        run_module(
            "huey.bin.huey_consumer", "benchmarks.peers.programs.huey.huey", *setting_options()
        )


if __name__ == "__main__":
    # A message names the module of its task, which is not to be `__main__`.
    from benchmarks.peers.programs import huey as program

    run(program.Huey)
