"""`bide forward`: forward committed messages from an outbox to the store."""

import click

from bide.cli import option
from bide.cli.store import CommandStore, refuse_memory


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
    with CommandStore(url, makes=True) as store:
        forwarder = Forwarder(lambda: table_of(database), store.lane)
        if once:
            if not forwarder.run_once():
                raise StoreBusy("another process forwards from this database: stop it, or wait")
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: forwarder.stop())
        # In another thread: `stop` needs a lock, and a signal handler would wait for ever for one
        # that the code which it interrupts holds.
        with ThreadPoolExecutor(1, "bide-forward") as thread:
            thread.submit(forwarder.run).result()
