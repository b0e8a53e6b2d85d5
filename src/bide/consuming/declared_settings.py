"""Settings of queues that an app declares: applied when a worker starts, if they have changed.

For each queue, a message in an internal queue remembers what was declared last. A declaration that
is the same is not applied again, so a restart does not undo what `bide set` has changed since.
"""

from collections.abc import Iterable, Mapping

import msgspec

from bide.clock import sleep
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.store_client import PAUSES, R, StoreClient
from bide.lane.steps import Steps
from bide.logs import logger
from bide.model.commands import Command, Configure, Find, Put, Queues
from bide.model.errors import (
    AccessDenied,
    InvalidArgument,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
)
from bide.model.identity import actor_of, split_name
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item, Message
from bide.model.replies import Found, Names, Outcomes, QueueSettings, expect
from bide.model.times import LATEST, rate_text, settings_text

DECLARED = InternalQueue.DECLARED

_log = logger("bide.worker")


async def apply_declared(
    store_client: StoreClient, queues: Iterable[QueueHandlers], holder: str
) -> None:
    """Apply the settings that the app declares, where they differ from those declared last.

    A worker that may not change them, or finds no room in the store, logs that, and works with
    those that are there.

    Args:
        store_client: runs the commands; it waits for a store that is away.
        queues: those that the worker works on.
        holder: the name of the worker, for the action log.

    Raises:
        InvalidArgument: the store cannot have such a setting.
    """
    for queue_handlers in queues:
        queue, declared = queue_handlers.queue, queue_handlers.settings
        if not declared:
            continue
        try:
            await _apply(store_client, queue, declared, actor_of(holder))
        except (AccessDenied, StoreFull) as error:
            _log.warning(
                "%s: the declared settings (%s) are not applied: %s",
                queue,
                settings_text(declared),
                error,
            )
        except InvalidArgument as error:
            raise InvalidArgument(
                f"queue {queue!r} cannot have the declared settings "
                f"({settings_text(declared)}): {error}"
            ) from error


async def _apply(
    store_client: StoreClient, queue: str, declared: Mapping[str, int | str], actor: str
) -> None:
    """Apply the declared settings of a queue that differ from those declared last."""
    memory_queue, name = _place_of(queue)
    listed = await _ask(store_client, Names, Queues(queue))
    memory = await _ask(store_client, Found, Find(memory_queue, [name]))
    exists = queue in listed.names  # it may have been deleted, with its settings
    before = _settings_in(memory.messages[0]) if exists else {}
    changed = {
        setting: value for setting, value in declared.items() if before.get(setting) != value
    }
    if not changed:
        return
    # In this order: a worker that dies in between has applied what the next one applies again.
    command = msgspec.structs.replace(Configure(queue, actor=actor), **changed)
    await _ask(store_client, QueueSettings, command)
    _log.info("%s: set as the app declares: %s", queue, settings_text(changed))
    item = Item(name, msgspec.json.encode({**before, **declared}), at=LATEST)
    try:
        await _ask(store_client, Outcomes, Put(memory_queue, [item], "replace"))
    except (AccessDenied, InvalidArgument, StoreFull) as error:
        _log.warning("%s: each start applies its settings again, as here: %s", queue, error)


async def _ask(store_client: StoreClient, kind: type[R], command: Command) -> R:
    """Run a command; retry as long as the store is away, and no longer if it is refused."""
    attempt = 0
    while True:
        try:
            return expect(kind, await store_client.lane.acall(command))
        except (StoreBusy, StoreUnavailable):
            attempt += 1
            await sleep(store_client.clock, PAUSES.delay(attempt, 0.5) / 1000)


def declared_of(queue: str) -> Steps[dict[str, int | str]]:
    """Read what was declared last for a queue: values by names of settings, as of `Configure`."""
    memory_queue, name = _place_of(queue)
    memory: Found = yield Find(memory_queue, [name])
    return _settings_in(memory.messages[0])


def _place_of(queue: str) -> tuple[str, str]:
    """Return the internal queue that remembers what was declared for a queue, and the id there.

    The id has no namespace: workers with a token of the namespace see the same.

    Example:
        >>> _place_of("shop/orders"), _place_of("orders")
        (('shop/bide:declared', 'orders'), ('bide:declared', 'orders'))
    """
    return DECLARED.beside(queue), split_name(queue)[1]


def settings_out(settings: Mapping[str, int | str]) -> dict[str, int | str | None]:
    """Return settings as programs read them elsewhere: rates as text, times in milliseconds.

    Example:
        >>> settings_out({"limit": 3, "rate": 600_000, "history": 1_000})
        {'limit': 3, 'rate': '100/m', 'history': 1000}
    """
    return {
        name: (rate_text(value) if value else None)
        if name.endswith("rate") and isinstance(value, int)
        else value
        for name, value in settings.items()
    }


def _settings_in(message: Message | None) -> dict[str, int | str]:
    """Return the settings that a message remembers; none of one that is not as it should be."""
    if message is None:
        return {}
    try:
        return msgspec.json.decode(message.data, type=dict[str, int | str])
    except msgspec.MsgspecError:
        return {}
