"""`bide edit`: change fields of a message that no worker holds."""

from typing import Any

import click
from msgspec import UNSET

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.input import Form, decode_body, read_body
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.rules import set_rule, set_window
from bide.cli.store import CommandStore

CLEARED = ("expires", "group", "headers", "repeat", "window")
"""The fields that `bide edit` can take away."""


@on_store(option.queue, option.id, click.argument("body", required=False), option.body_form)
@option.body_file
@option.changed
@option.expires
@option.headers("A header; those given replace all existing ones")
@option.flag("--no-expires", help="Let it never expire.")
@option.flag("--no-group", help="Take it out of its group.")
@option.flag("--no-headers", help="Remove all headers.")
@option.when
@option.repeat
@option.flag("--no-repeat", help="Stop repeating: this run is its last one.")
@option.window
@option.flag("--no-window", help="Let it be delivered at any time.")
@option.if_version
@option.max_body
def edit(
    store: CommandStore,
    out: Output,
    queue: str,
    id: str,
    body: str | None,
    form: Form | None,
    file: str | None,
    max_body: int,
    if_version: str | None,
    **options: Any,
) -> bool:
    """Change fields of a message that no worker holds.

    Everything else stays: its due time, the attempts made and their failures. A dead letter can be
    changed too, and stays dead until it is revived; it has no due time to change. BODY must be
    JSON, unless you use --text or --bytes; '-' reads it from stdin.

    With --cron or --every it repeats from now on, by this rule: it is due at the first time of the
    rule, unless --delay or --at says when. With --window it is delivered in these hours from now
    on; without --timezone they are in UTC. A message that repeats keeps repeating.

    In a pipe, the line is: id, "edited" or "no", state, why not. The exit code is 1 if it was not
    changed: a worker holds it, it is gone, or, with --if-version, it is no longer as you saw it.

    \b
    Example:
      bide edit orders order-42 --priority 9 --attempts 20
      bide edit orders order-42 '{"order": 42, "paid": true}'
      bide edit orders order-42 --group shop --no-headers --delay 5m
      bide edit mail ann/weekly --cron "0 10 * * MON" --timezone Europe/Berlin
      bide edit calls ann --window "Mon-Fri 10:00-18:00" --timezone Europe/Berlin
    """
    changes: dict[str, Any] = {}
    set_window(options)
    set_rule(options)
    for name in CLEARED:
        if options.pop(f"no_{name}"):
            if options[name] is not None:
                given = "--cron or --every" if name == "repeat" else f"--{name}"
                raise usage_error(f"{given} and --no-{name} cannot be used together")
            changes[name] = None
    changes |= {name: value for name, value in options.items() if value is not None}
    value: Any = UNSET
    if body is not None or file is not None:
        data = read_body(body, file, form or "json", max_body, "edit")
        value = decode_body(data, form or "json")
    elif form is not None:
        raise usage_error(f"--{form} says what the body is; give the new body, or leave it out")
    if value is UNSET and not changes:
        raise usage_error("nothing to edit: give a new body, or an option such as --priority")
    outcome = store.queue(queue, max_body).edit(id, body=value, if_version=if_version, **changes)
    as_seen = if_version is not None
    return print_outcomes(store, out, queue, [outcome], "edited", as_seen=as_seen)
