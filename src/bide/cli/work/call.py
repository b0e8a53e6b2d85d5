"""`bide call`: put a message that calls a task."""

from typing import Any

import click

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.errors import usage_error
from bide.cli.output import Output
from bide.cli.putting import put_one
from bide.cli.rules import set_rule, set_window
from bide.cli.store import CommandStore, refuse_memory
from bide.model.errors import InvalidArgument


@on_any_store(
    option.task,
    click.argument("arguments", nargs=-1, metavar="[ARGUMENT]..."),
    option.put_options(option.changed),
)
def call(
    store: CommandStore,
    out: Output,
    target: str,
    arguments: tuple[str, ...],
    on_conflict: str,
    if_version: str | None,
    **options: Any,
) -> bool:
    """Put a message that calls a task.

    MODULE:TASK names it: shop:expire is the function `expire` of shop.py with the decorator
    @app.task, or the task that an app of shop.py knows as "expire". The store is the one of --url,
    else the one of the app. Without --delay and --at, the call is due at once. The default of
    --attempts is that of the task.

    Each ARGUMENT is a value, in the order of the parameters, or NAME=VALUE. A value is text for a
    parameter annotated with `str`; for others it is JSON, or else text, as a date is. Give a text
    that reads like NAME=VALUE by name: note=a=b. Put -- before a negative number, or give it by
    name. The task checks the arguments as its `put` does.

    With --cron or --every, the call repeats. With --window, it runs only in these hours. Output and
    exit code are those of `bide put`.

    \b
    Example:
      bide call shop:expire 42 --delay 30m
      bide call shop:expire 42 reason=late --id order-42
      bide call shop:notify '{"name": "Ann"}' days='[1, 2]' --group ann
      bide call shop:report 7 --id report-7 --cron "0 9 * * MON-FRI"
    """
    from bide.worker.app.loading import load_task

    set_window(options)
    set_rule(options)
    task = load_task(target)
    texts_by_position, texts_by_name = _divided(arguments)
    parameters = task.parameters
    names = parameters.by_position
    given_options = {name: value for name, value in options.items() if value is not None}
    try:
        positional = [
            parameters.read(names[place] if place < len(names) else None, text)
            for place, text in enumerate(texts_by_position)
        ]
        by_name = {name: parameters.read(name, text) for name, text in texts_by_name.items()}
        message = task.later(**given_options).message(*positional, **by_name)
    except InvalidArgument as error:  # it speaks of arguments of the task, and not of options
        raise usage_error(str(error)) from error
    store_of_app = store.of_app(task.app._url)
    refuse_memory(store_of_app.url, "name a shared store with --url, or in the app")
    return put_one(
        store_of_app, out, task.queue_name, message, on_conflict=on_conflict, if_version=if_version
    )


def _divided(arguments: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Return the values by position, and those by name.

    Raises:
        click.UsageError: a name is given twice.
    """
    by_position: list[str] = []
    by_name: dict[str, str] = {}
    for argument in arguments:
        name, equals_sign, text = argument.partition("=")
        if not equals_sign or not name.isidentifier():
            by_position.append(argument)
        elif name in by_name:
            raise usage_error(f"{name}= is given twice")
        else:
            by_name[name] = text
    return by_position, by_name
