"""`bide rabbitmq`: delays for the exchanges of RabbitMQ."""

import click

from bide.cli.options import debug_option, grace_option, log_options, networks_option
from bide.cli.store import refuse_lone
from bide.cli.worker import port_address
from bide.engines.registry import DEFAULT_URL
from bide.model.errors import InvalidArgument

__all__ = ["rabbitmq"]


@click.command()
@click.argument("exchanges", metavar="AMQP_URL...", nargs=-1, envvar="BIDE_RABBITMQ")
@click.option(
    "--url",
    envvar="BIDE_URL",
    show_envvar=True,
    metavar="URL",
    help="The store: sqlite:///file.db, ...  By default bide.db in this folder.",
)
@click.option(
    "--queue-type",
    type=click.Choice(["quorum", "classic"]),
    default="quorum",
    show_default=True,
    help="The type of the queues that it declares; existing queues keep their type.",
)
@networks_option()
@grace_option("messages under way")
@click.option(
    "--metrics",
    type=port_address,
    metavar="[HOST:]PORT",
    help="Serve Prometheus metrics.",
)
@log_options("published")
@debug_option
def rabbitmq(
    exchanges: tuple[str, ...],
    url: str | None,
    queue_type: str,
    networks: tuple[str, ...],
    grace: float,
    metrics: tuple[str, int] | None,
    log_json: bool,
    log_level: str,
) -> None:
    """Delay messages for exchanges of RabbitMQ.

    AMQP_URL names a broker and a target exchange X, which does not change. This command declares
    the exchange X.delayed beside it. Publish to X.delayed with a header x-delay (milliseconds),
    bide-delay ("30m"), bide-at or x-opt-delivery-time: bide stores the message, and publishes it to
    X with its routing key when it is due. Until then its message_id can cancel or reschedule it:
    bide cancel QUEUE ID, where QUEUE is the name of the exchange, or &queue=NAME in the URL.

    A message that cannot be stored goes to the exchange X.delayed.dead; its header bide-reason says
    why. The environment variable BIDE_RABBITMQ keeps passwords off the command line. Several of
    these processes can run on one store. Like bide push, each also serves all subscriptions of the
    store.

    \b
    Example:
      bide rabbitmq 'amqp://guest@localhost/?exchange=shop'
      bide rabbitmq 'amqps://app@mq/prod?exchange=shop&queue=orders' --metrics 127.0.0.1:9464
    """  # fmt: skip
    if not exchanges:
        raise click.UsageError(
            "name a broker and an exchange: bide rabbitmq 'amqp://guest@localhost/?exchange=shop'"
        )
    refuse_lone(url or "")
    import asyncio

    from bide.observing.logs import configure
    from bide.targets.http.process import push as run
    from bide.targets.rabbitmq.address import intakes
    from bide.worker.process.child import loop_factory

    if (url or "").partition(":")[0] in ("http", "https"):
        raise InvalidArgument("url names a server; start it with bide serve --rabbitmq instead")
    found = intakes(exchanges)
    configure(as_json=log_json, level=log_level)
    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        work = run(
            url or DEFAULT_URL, networks, grace, intakes=found, queue_type=queue_type,
            metrics=metrics,
        )  # fmt: skip
        loop.run(work)
