"""What a queue remembers of messages that have ended, as Redis stores it: see lua/_ends.lua."""

from bide.engines.redis.calls import Call, Step, raised
from bide.engines.redis.keys import shard_of
from bide.engines.redis.records import DAMAGED, as_failures
from bide.model.commands import History
from bide.model.ended import End, within_budget
from bide.model.errors import StoreCorrupt
from bide.model.replies import Ends


def history(command: History, shards: int) -> Step:
    """Look at how messages with an id have ended."""
    shard = shard_of(command.id, shards)
    script = "watch" if command.watch else "history"
    answers = yield [Call(script, command.queue, (command.id,), shard, shards, reads=True)]
    ((head, text),) = raised(answers)
    now, _change, state, history, result_ttl = head
    try:
        ends = _ends_of(text or b"", now - max(history, result_ttl), now - result_ttl)
    except DAMAGED:
        raise StoreCorrupt(
            f"what queue {command.queue!r} remembers of {command.id!r} cannot be read: something "
            "else has written to the keys of bide"
        ) from None
    return [Ends(state, within_budget(ends, command.max_bytes))]


def _ends_of(text: bytes, since: int, fresh: int) -> list[End]:
    """Return the ends after a moment; of those after `fresh` with their results."""
    ends: list[End] = []
    while text:
        line, _, text = text.partition(b"\n")
        moment, how, due, attempt, began, *sizes = line.split(b" ")
        parts: list[bytes | None] = []
        for size in map(_part, sizes):
            parts.append(None if size is None else text[:size])
            text = text[size or 0 :]
        by, failures, result = parts
        if int(moment) > since:
            ends.append(
                End(
                    how.decode(), int(moment), None if by is None else by.decode(),  # type: ignore[arg-type]
                    int(due), int(attempt), _part(began), as_failures(failures) if failures else (),
                    result if int(moment) > fresh else None,
                )
            )  # fmt: skip
    return ends


def _part(size: bytes) -> int | None:
    return None if size == b"-" else int(size)
