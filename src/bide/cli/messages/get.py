"""`bide get`: show messages by id."""

import click

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import flush_output
from bide.cli.message_output import as_json, body_bytes, row
from bide.cli.message_sheet import print_sheet
from bide.cli.output import Output, warn
from bide.cli.store import CommandStore


@on_store(option.queue, click.argument("ids", nargs=-1, required=True, metavar="ID..."))
@option.flag("--body", "only_body", help="Print only the body; text and bytes are unchanged.")
def get(
    store: CommandStore, out: Output, queue: str, ids: tuple[str, ...], only_body: bool
) -> bool:
    """Show messages by id.

    The exit code is 1 if one of them does not exist.

    \b
    Example:
      bide get orders order-42
      bide get orders order-42 --body | jq .total
    """
    orders = store.existing(queue)
    all_exist = True
    for id in ids:
        message = orders.get(id)
        if message is None:
            all_exist = False
            warn(orders.explain(id).sentence)
        elif only_body:
            out.body(body_bytes(message), is_json=message.json)
            flush_output()
        elif out.terminal:
            print_sheet(out, message, orders.explain(id))
            if len(ids) > 1:
                out.text("")
        else:
            out.line(as_json(message), *row(message))
    return all_exist
