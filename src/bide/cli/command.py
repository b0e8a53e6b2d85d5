"""Make a command that works on a store."""

import functools
from collections.abc import Callable
from typing import Any

import click

from bide.cli import option
from bide.cli.errors import NOT_DONE
from bide.cli.output import Output
from bide.cli.store import CommandStore, refuse_memory


def on_store(
    *options: option.Decorator,
    group: click.Group | None = None,
    name: str | None = None,
    makes: bool = False,
) -> Callable[[Callable[..., bool | None]], click.Command]:
    """Make a command of a function that takes the store, the output, and what its options give.

    The function returns whether it did what was asked for; `False` ends it with exit code 1.

    Args:
        options: the first of its arguments and options; more can be decorators of the function.
        group: the command that it belongs to.
        name: the name of the command, if the function has another.
        makes: whether to make the store if it does not exist yet.
    """

    def decorate(function: Callable[..., bool | None]) -> click.Command:
        @functools.wraps(function)
        def run(url: str | None, as_json: bool, **own_options: Any) -> None:
            refuse_memory(url or "")
            with CommandStore(url, makes=makes) as store:
                result = function(store, Output(as_json), **own_options)
            if result is False:
                click.get_current_context().exit(NOT_DONE)

        # click keeps parameters in this attribute, the last of the help first: so --url and the
        # options for output, which all commands have, come last in the help.
        own_parameters = run.__dict__.pop("__click_params__", [])
        option.together(option.url, option.output)(run)
        run.__dict__.setdefault("__click_params__", []).extend(own_parameters)
        make_command = click.command if group is None else group.command
        return make_command(name)(option.together(*options)(run))

    return decorate


on_any_store = functools.partial(on_store, makes=True)
"""`on_store` for commands that make the store if it does not exist."""
