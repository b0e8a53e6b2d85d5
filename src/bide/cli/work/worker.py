"""`bide worker`: run the handlers of an app."""

import os
from pathlib import Path

import click

from bide.cli import option


@click.command()
@option.app
@option.count("--processes", most=1_000, default=1, help="The number of worker processes.")
@option.text("--url", "URL", "The store. By default the one of the app, else BIDE_URL.")
@option.text(
    "--queues", "NAMES", "Only these queues, separated by commas; by default all of the app.", ""
)
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
    from bide.observing.exporting import is_metered
    from bide.observing.logs import configure
    from bide.outbox.forwarder import table_of
    from bide.targets.amqp import intakes
    from bide.worker.process.child import Orders
    from bide.worker.process.supervisor import Supervisor

    # URLs go to the processes in the environment: on their command line, other users could read a
    # password.
    if url is not None:
        opener(url)  # raises if it is not the URL of a store
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
        exports=is_metered(),
    )

    supervisor = Supervisor(
        orders.command,
        processes,
        grace=grace,
        folder=Path.cwd() if reload else None,
        health_file=health_file,
        health_port=health_port,
        metrics=metrics,
        exports=orders.exports,
    )
    ctx.exit(asyncio.run(supervisor.run()))
