"""`bide init`: make the store."""

from bide.cli.command import on_any_store
from bide.cli.output import DONE, Output
from bide.cli.store import CommandStore


@on_any_store()
def init(store: CommandStore, out: Output) -> None:
    """Make the store.

    Makes the file, or the schema in a PostgreSQL database, if it does not exist. So a user with
    more rights can prepare the store for programs that have fewer.

    \b
    Example:
      bide init --url postgresql://owner@db.example.com/shop
    """
    queues = store.names()
    out.report(
        {"url": store.shown, "queues": len(queues)}, DONE, f"the store at {store.shown} is ready"
    )
