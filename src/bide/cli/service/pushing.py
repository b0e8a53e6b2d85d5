"""Run what sends messages elsewhere, until a signal ends it."""

from typing import Any

from bide.cli.store import refuse_memory
from bide.engines.registry import is_server, named_url
from bide.model.errors import InvalidArgument


def run_pusher(
    url: str | None, instead: str, log_json: bool, log_level: str, **options: Any
) -> None:
    """Push until a signal ends it.

    Args:
        url: the URL of the store; `None`: the default one.
        instead: the end of the error text if it names a server: what to do instead.
        log_json: whether to log JSON.
        log_level: the level of the log.
        options: for `bide.targets.process.push`.

    Raises:
        InvalidArgument: the URL names a server.
    """
    import asyncio

    from bide.observing.logs import configure
    from bide.targets.process import push
    from bide.worker.process.child import loop_factory
    from bide.worker.process.supervisor import raise_descriptor_limit

    store_url = named_url(url)
    if is_server(store_url):
        raise InvalidArgument(f"--url names a server{instead}")
    refuse_memory(store_url)
    configure(as_json=log_json, level=log_level)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        loop.run(push(store_url, **options))
