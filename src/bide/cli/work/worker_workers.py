"""`bide worker` runs the handlers of an app; `bide workers` lists and replaces its processes."""

import os
from pathlib import Path

import click
import msgspec

from bide.cli import option
from bide.cli.output import DONE, NAME, NOT_DONE, TEXT, Cell, Column, Output, warn
from bide.cli.program import ListGroup
from bide.cli.store import Store, on_store
from bide.cli.times import now_ms, rounded
from bide.observing.workers import WorkerProcess
from bide.queue.stores import ask_to_stop, read_workers


@click.command()
@click.argument("target", metavar="MODULE:APP")
@option.count("--processes", most=1_000, default=1, help="The number of worker processes.")
@option.text("--url", "URL", "The store. By default the one of the app, else BIDE_URL.")
@option.text("--queues", "NAMES", "These queues only, with commas; by default all that it can.", "")
@option.grace("handlers")
@option.flag(
    "--celery",
    help="MODULE:APP is a Celery app with bide.contrib.celery installed: publish its delayed tasks "
    "to its broker when they are due.",
)
@option.flag("--reload", help="Restart when Python files in this folder change.")
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="A file that exists, and is touched every second, while the worker is healthy.",
)
@option.port(
    "--health-port",
    "Answer HTTP health checks: 200 while the worker is healthy, else 503 and the reason.",
    8080,
)
@option.metrics
@option.rabbitmq
@option.outbox
@option.logs("handled")
@option.debug
@click.pass_context
def worker(
    ctx: click.Context,
    target: str,
    processes: int,
    url: str | None,
    queues: str,
    grace: float,
    celery: bool,
    reload: bool,
    health_file: Path | None,
    health_port: tuple[str, int] | None,
    metrics: tuple[str, int] | None,
    rabbitmq: tuple[str, ...],
    outbox: str | None,
    log_json: bool,
    log_level: str,
) -> None:
    """Run the handlers of an app.

    MODULE:APP names the app: shop:app is `app = bide.App()` in shop.py, in this folder or
    installed. The store is the one of --url, else the one that the app names, else BIDE_URL.

    On SIGTERM or Ctrl-C, handlers get the grace time to finish; then the worker returns unfinished
    messages to the queue, and their attempt does not count. A second signal returns them at once.
    SIGHUP restarts the processes one by one with the current code; in a terminal it means that the
    terminal was closed, and stops the worker like SIGTERM. A process that dies is replaced.

    \b
    Example:
      bide worker shop:app
      bide worker shop:app --processes 4 --queues orders,mail --grace 1m
      bide worker shop:app --url sqlite:////var/lib/shop/bide.db
      bide worker shop:app --reload
      bide worker shop:app --metrics 9464
      bide worker --celery shop:celery_app
    """
    import asyncio

    from bide.engines.registry import opener
    from bide.observing.logs import configure
    from bide.outbox.forwarder import table_of
    from bide.targets.amqp import intakes
    from bide.worker.process.child import Orders
    from bide.worker.process.supervisor import Supervisor

    if url is not None:
        opener(url)  # raises if it is not the URL of a store
        # Not on the command line of the processes, where other users could read a password.
        os.environ["BIDE_URL"] = url
    intakes(rabbitmq)  # raises if a URL is not valid
    os.environ["BIDE_RABBITMQ"] = " ".join(rabbitmq)
    if outbox is not None:
        table_of(outbox).close()  # raises if it cannot be opened
        os.environ["BIDE_OUTBOX"] = outbox
    names = [name.strip() for name in queues.split(",") if name.strip()]
    configure(as_json=log_json, level=log_level)

    orders = Orders(
        target=target,
        queues=names,
        grace=grace,
        log_json=log_json,
        log_level=log_level,
        processes=processes,
        given_url=url is not None,
        celery=celery,
    )

    supervisor = Supervisor(
        orders.command,
        processes,
        grace=grace,
        folder=Path.cwd() if reload else None,
        health_file=health_file,
        health_port=health_port,
        metrics=metrics,
    )
    ctx.exit(asyncio.run(supervisor.run()))


COLUMNS = (
    Column("worker", least=NAME),
    Column("running", right=True),
    Column("longest", right=True, extra=True),
    Column("queues", least=TEXT),
)


@click.group(cls=ListGroup)
def workers() -> None:
    """List worker processes, or have one replaced.

    `bide workers` lists them.

    \b
    Example:
      bide workers
      bide workers stop web1:4711
    """


@on_store(group=workers, name="list")
def list_(store: Store, out: Output) -> None:
    """List the worker processes that report that they are alive.

    Each line shows how many messages the process handles and how many it can, and the message that
    has run longest. In a pipe, each line is: name, messages that it handles, the longest of them,
    its milliseconds so far, milliseconds that its report is overdue, queues with commas between
    them.

    \b
    Example:
      bide workers list --json | jq 'select(.silent)'
    """
    listing = read_workers(store.lane)
    out.items(
        listing.workers,
        COLUMNS,
        facts=msgspec.structs.asdict,
        line=_line,
        cells=_cells,
        empty=f"no worker reports that it is alive in {store.shown}",
    )
    if listing.partly:
        warn("there are more: of each namespace, 256 KiB of reports are read, and 1,000 at most")


@on_store(click.argument("name"), group=workers)
@option.time("--wait", "How long to wait for its supervisor, which looks every 5 s.", "15s")
def stop(store: Store, out: Output, name: str, wait: float) -> bool:
    """Have a worker process replaced, such as one that hangs.

    Its supervisor starts a new process and asks the old one to end: its handlers get the grace time
    of `bide worker`, then it is killed. Asked again, it ends at once. The messages that it held are
    delivered again. The exit code is 1 if no supervisor takes the request in time; then it is
    withdrawn.

    \b
    Example:
      bide workers stop web1:4711
    """
    known = {worker.holder for worker in read_workers(store.lane).workers}
    if name not in known:
        raise click.ClickException(
            f"no worker {name!r} reports that it is alive; `bide workers` lists those that do"
        )
    taken = ask_to_stop(store.lane, name, store.actor, wait)
    if taken:
        out.report({"worker": name, "taken": True}, DONE, f"{name} is being replaced")
    else:
        out.report(
            {"worker": name, "taken": False},
            NOT_DONE,
            f"no supervisor of {name} has answered within {rounded(wait * 1000)}: it is dead, or "
            "cannot reach the store; the request was withdrawn",
        )
    return taken


def _longest(worker: WorkerProcess) -> tuple[str, float | None]:
    """Return the message that it has handled for the longest time, and the milliseconds."""
    lasting = [
        (busy.since, busy.longest) for busy in worker.busy.values() if busy.since is not None
    ]
    since, id = min(lasting, default=(None, ""))
    return id or "", None if since is None else max(0, now_ms() - since)


def _line(worker: WorkerProcess) -> tuple[object, ...]:
    id, lasting = _longest(worker)
    running = sum(busy.running for busy in worker.busy.values())
    times = ("" if ms is None else f"{ms:.0f}" for ms in (lasting, worker.silent))
    return worker.holder, running, id, *times, ",".join(worker.queues)


def _cells(worker: WorkerProcess) -> list[Cell]:
    id, lasting = _longest(worker)
    running = sum(busy.running for busy in worker.busy.values())
    places = sum(busy.places for busy in worker.busy.values())
    now: Cell = f"{running} of {places}" if places else ""
    if worker.silent is not None:
        now = f"silent for {rounded(worker.silent)}", "red"
    longest = "" if lasting is None else f"{id} {rounded(lasting)}"
    return [worker.holder, now, longest, ", ".join(worker.queues)]
