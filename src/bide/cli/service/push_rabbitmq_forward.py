"""Processes without handlers: `bide push`, `bide rabbitmq` and `bide forward`."""

from typing import Any

import click

from bide.cli import option
from bide.cli.errors import require_packages
from bide.cli.store import Store, refuse_memory
from bide.engines.registry import DEFAULT_URL, is_server
from bide.model.errors import InvalidArgument


def _run(url: str | None, instead: str, log_json: bool, log_level: str, **options: Any) -> None:
    """Push until a signal ends it.

    Args:
        url: of the store.
        instead: what to do where it names a server.
        log_json: log JSON.
        log_level: of the log.
        options: for `bide.targets.process.push`.
    """
    import asyncio

    from bide.observing.logs import configure
    from bide.targets.process import push
    from bide.worker.process.child import loop_factory
    from bide.worker.process.supervisor import raise_descriptor_limit

    if is_server(url or ""):
        raise InvalidArgument(f"--url names a server{instead}")
    refuse_memory(url or "")
    configure(as_json=log_json, level=log_level)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        loop.run(push(url or DEFAULT_URL, **options))


@click.command()
@option.url
@option.networks()
@option.grace("requests under way")
@option.logs("sent")
@option.debug
def push(
    url: str | None, networks: tuple[str, ...], grace: float, log_json: bool, log_level: str
) -> None:
    """Send due messages to the URLs of subscriptions.

    No server is needed: bide serve does the same and also answers HTTP. bide subscription creates
    subscriptions; this command notices new, changed and deleted ones. Several of these processes
    can run on one store: they share the work, and when one dies, another sends the messages that it
    held.

    Messages go to public addresses only, unless --allow-network names other networks. On SIGTERM,
    Ctrl-C or a closed terminal, requests under way get the grace time to finish; the rest returns
    to the queue, and the attempt does not count. A second SIGTERM or Ctrl-C returns it at once.

    \b
    Example:
      bide push
      bide push --allow-network 10.1.0.0/16 --log-json
    """
    require_packages("bide push", "h11")
    _run(
        url,
        ", which pushes by itself (bide serve); name its store here",
        log_json,
        log_level,
        networks=networks,
        grace=grace,
    )


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

    _run(
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


@click.command()
@click.argument("database", metavar="DATABASE_URL", envvar="BIDE_OUTBOX")
@option.url
@option.flag("--once", help="Forward what is there, and exit.")
@option.flag("--log-json", help="Log one JSON object per line.")
@option.debug
def forward(database: str, url: str | None, once: bool, log_json: bool) -> None:
    """Forward committed messages from an outbox to the store.

    put(..., within=connection) writes to the tables bide_outbox in the database of the connection
    when the store is elsewhere: on Redis, or behind a server. DATABASE_URL names that database,
    postgresql://user@host/shop or sqlite:///shop.db; the environment variable BIDE_OUTBOX keeps a
    password off the command line. The tables are made if they are not there.

    If several of these processes run, one forwards; when it dies, another goes on. Nothing is lost
    or doubled. What the store refuses goes to the table bide_outbox_dead. bide worker --outbox does
    the same beside its handlers.

    \b
    Example:
      bide forward postgresql://shop@db/shop --url redis://cache:6379/0
      bide forward sqlite:///shop.db --url http://bide.internal:8642 --once
    """
    refuse_memory(url or "")
    import signal
    from concurrent.futures import ThreadPoolExecutor

    from bide.model.errors import StoreBusy
    from bide.observing.logs import configure
    from bide.outbox.forwarder import Forwarder, table_of

    configure(as_json=log_json, level="info")
    table_of(database).close()  # raises if it cannot be opened
    with Store(url, makes=True) as store:
        forwarder = Forwarder(lambda: table_of(database), store.lane)
        if once:
            if not forwarder.run_once():
                raise StoreBusy("another process forwards from this database: stop it, or wait")
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: forwarder.stop())
        with ThreadPoolExecutor(1, "bide-forward") as thread:  # or a signal may meet a lock held
            thread.submit(forwarder.run).result()
