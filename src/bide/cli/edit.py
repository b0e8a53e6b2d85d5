"""`bide edit`."""

from typing import Any, cast

import click
from msgspec import UNSET

from bide.cli import option
from bide.cli.body import Form, decode_body, option_form, read_body, read_headers
from bide.cli.errors import usage_error
from bide.cli.messages import print_outcomes
from bide.cli.output import Output
from bide.cli.store import Store, on_store

CLEARED = ("expires", "group", "headers")


@click.command()
@option.queue
@click.argument("id")
@click.argument("body", required=False)
@option_form
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False), metavar="PATH",
    help="Read the new body from a file.",
)  # fmt: skip
@option.changed
@option.time("--expires", "How long after its due time the message is still worth delivering.")
@option.many(
    "--header", "headers", "K=V", "A header; all together replace those there are",
    callback=read_headers,
)  # fmt: skip
@option.flag("--no-expires", help="Without a limit of time.")
@option.flag("--no-group", help="Of no group.")
@option.flag("--no-headers", help="Without headers.")
@option.when
@option.if_version("Only if")
@option.max_body
@on_store
def edit(
    store: Store, out: Output, queue: str, id: str, body: str | None, form: str | None,
    file: str | None, max_body: int, if_version: str | None, **given: Any,
) -> bool:  # fmt: skip
    """Change fields of a message that no worker holds.

    All else stays: its due time, the attempts made and their failures. A dead letter can be changed
    too, and stays dead until it is revived; it has no due time to change. BODY must be JSON, unless
    you use --text or --bytes; '-' reads it from stdin.

    In a pipe, the line is: id, "edited" or "no", state, why not. The exit code is 1 if it was not
    changed: a worker holds it, it is gone, or, with --if-version, it is no longer as you saw it.

    \b
    Example:
      bide edit orders order-42 --priority 9 --attempts 20
      bide edit orders order-42 '{"order": 42, "paid": true}'
      bide edit orders order-42 --group shop --no-headers --delay 5m
    """  # fmt: skip
    changes: dict[str, Any] = {}
    for name in CLEARED:
        if given.pop(f"no_{name}"):
            if given[name] is not None:
                raise usage_error(f"--{name} and --no-{name} cannot be used together")
            changes[name] = None
    changes |= {name: value for name, value in given.items() if value is not None}
    value: Any = UNSET
    if body is not None or file is not None:
        value = decode_body(read_body(body, file, "edit"), cast("Form", form or "json"))
    elif form is not None:
        raise usage_error(f"--{form} says what the body is; give the new body, or leave it out")
    if value is UNSET and not changes:
        raise usage_error(
            "edit needs to know what to change: a new body, or an option such as --priority"
        )
    outcome = store.queue(queue, max_body).edit(id, body=value, if_version=if_version, **changes)
    told = store.told(queue, [outcome])
    return print_outcomes(out, told, "edited", as_seen=if_version is not None)
