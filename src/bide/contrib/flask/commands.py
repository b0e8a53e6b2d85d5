"""`flask bide`: the command line of bide, on the store of the application."""

import copy
import os
from functools import partial

import click
from flask import current_app
from flask.cli import ScriptInfo

from bide.cli.program import Program, main

__all__ = ["TARGET", "command"]

TARGET = "bide.contrib.flask.target:app"
"""Its import loads the application, in each process of a worker."""

WORKER = """Run the handlers of the application's extension, in its application context."""


class ApplicationProgram(Program):
    """The commands of bide, with defaults of the application."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. A worker needs no name of an app."""
        command = super().get_command(ctx, cmd_name)
        if cmd_name != "worker" or command is None:
            return command
        assert command.callback is not None
        worker = copy.copy(command)
        worker.callback = partial(command.callback, target=TARGET)
        worker.params = [one for one in command.params if one.name != "target"]
        worker.help, worker.epilog = WORKER, None
        return worker


@click.command(
    "bide",
    short_help="Work with the queues of this application.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Work with the queues of this application. Without arguments: list the commands."""
    program = ApplicationProgram(
        name=main.name, callback=main.callback, params=main.params, help=main.help,
        invoke_without_command=True, context_settings=main.context_settings,
    )  # fmt: skip
    before = os.environ.copy()
    os.environ.update(_environment(ctx.ensure_object(ScriptInfo)))
    try:
        program.main(list(arguments), "flask bide")
    except SystemExit as end:
        if end.code:
            raise
    finally:  # for tests, which go on in this process
        os.environ.clear()
        os.environ.update(before)


def _environment(info: ScriptInfo) -> dict[str, str]:
    """Return what this process, and the processes of a worker, read from the environment."""
    environment = {"BIDE_URL": current_app.extensions["bide"].url}
    if outbox := current_app.config.get("BIDE_OUTBOX"):
        environment["BIDE_OUTBOX"] = str(outbox)
    if info.app_import_path:
        environment["FLASK_APP"] = info.app_import_path
    return environment
