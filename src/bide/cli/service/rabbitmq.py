"""`bide rabbitmq`: delay messages for exchanges of RabbitMQ."""

import click

from bide.cli import option
from bide.cli.service.pushing import run_pusher


@click.command()
@click.argument("exchanges", metavar="AMQP_URL...", nargs=-1, envvar="BIDE_RABBITMQ")
@option.url
@option.choice(
    "--queue-type",
    ["quorum", "classic"],
    "The type of the queues that it declares; queues that exist must have it.",
    "quorum",
)
@option.networks()
@option.grace("messages under way")
@option.metrics
@option.logs("published")
@option.debug
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
      bide rabbitmq 'amqps://app@mq/?exchange=shop&queue=orders' --metrics 9464
    """
    if not exchanges:
        raise click.UsageError(
            "name a broker and an exchange: bide rabbitmq 'amqp://guest@localhost/?exchange=shop'"
        )
    from bide.targets.amqp import intakes

    run_pusher(
        url,
        "; start it with bide serve --rabbitmq instead",
        log_json,
        log_level,
        networks=networks,
        grace=grace,
        intakes=intakes(exchanges),
        queue_type=queue_type,
        metrics=metrics,
    )
