"""`bide worker`: run the handlers of an app."""

import os
from pathlib import Path

import click

from bide.cli.options import debug_option, grace_option, log_options, rabbitmq_option

__all__ = ["port_address", "worker"]


LOOPBACK = "127.0.0.1"


def port_address(text: str) -> tuple[str, int]:
    """Read where to serve: "9464" (this machine alone), "0.0.0.0:9464", "[::1]:9464"."""
    host, _, port = text.rpartition(":")
    if port.isdigit() and 1 <= int(port) <= 65_535:
        return host.strip("[]") or LOOPBACK, int(port)
    raise click.BadParameter(f"{text!r} names no port; write 9464 or 0.0.0.0:9464")


def _no_concurrency(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "how many messages a handler has at a time is said where it is registered: "
            "@app.handler(..., concurrency=N); --processes says how many processes there are",
            ctx,
        )


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--processes",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    metavar="N",
    help="How many processes share the work.",
)
@click.option(
    "--url",
    metavar="URL",
    help="The store, instead of the one that the app or BIDE_URL names.",
)
@click.option(
    "--queues",
    metavar="NAMES",
    help="Only these, with commas between them; by default all that have a handler.",
)
@click.option("--concurrency", hidden=True, expose_value=False, callback=_no_concurrency)
@grace_option("handlers")
@click.option("--reload", is_flag=True, help="Start anew when Python files in this folder change.")
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="A file that is there, and touched every second, while the worker is well.",
)
@click.option(
    "--health-port",
    type=port_address,
    metavar="[HOST:]PORT",
    help="Answer HTTP there: 200 while the worker is well, else 503 and why. Without a host, only "
    "this machine reaches it; 0.0.0.0:8080 is for all addresses.",
)
@click.option(
    "--metrics",
    type=port_address,
    metavar="[HOST:]PORT",
    help="Serve Prometheus metrics there. Without a host, only this machine reaches them; "
    "0.0.0.0:9464 is for all addresses.",
)
@rabbitmq_option()
@log_options("handled")
@debug_option
@click.pass_context
def worker(
    ctx: click.Context,
    target: str,
    processes: int,
    url: str | None,
    queues: str | None,
    grace: float,
    reload: bool,
    health_file: Path | None,
    health_port: tuple[str, int] | None,
    metrics: tuple[str, int] | None,
    rabbitmq: tuple[str, ...],
    log_json: bool,
    log_level: str,
) -> None:
    """Run the handlers of an app.

    MODULE:APP is where the app is: shop:app is `app = bide.App()` in shop.py, here or installed.
    The store is that of --url, or the one that the app names, or else BIDE_URL.

    SIGTERM and Ctrl-C let handlers finish within the grace time; what has not finished then is
    handed back, untouched. A second one hands back at once. SIGHUP starts the processes anew, one
    after the other, with the code that is there now. A process that dies is replaced.

    \b
    Example:
      bide worker shop:app
      bide worker shop:app --processes 4 --queues orders,mail --grace 1m
      bide worker shop:app --url sqlite:////var/lib/shop/bide.db
      bide worker shop:app --reload
      bide worker shop:app --metrics 9464
    """  # fmt: skip
    import asyncio

    from bide.engines.registry import opener
    from bide.observing.logs import configure
    from bide.targets.rabbitmq.address import intakes
    from bide.worker.process.child import Orders
    from bide.worker.process.supervisor import Supervisor, command_of

    if url is not None:
        opener(url)  # refuses what is no URL of a store
        # Not on the command line of the processes, where everybody could read a password.
        os.environ["BIDE_URL"] = url
    intakes(rabbitmq)  # refuses what cannot be
    os.environ["BIDE_RABBITMQ"] = " ".join(rabbitmq)
    names = [name.strip() for name in (queues or "").split(",") if name.strip()]
    configure(as_json=log_json, level=log_level)

    orders = Orders(
        target, names, grace, log_json, log_level, processes, url is not None, metrics is not None,
        -1,
    )  # fmt: skip

    async def supervise() -> int:
        return await Supervisor(
            command_of(orders),
            processes,
            grace=grace,
            reload=Path.cwd() if reload else None,
            health_file=health_file,
            health_port=health_port,
            metrics=metrics,
        ).run()

    ctx.exit(asyncio.run(supervise()))
