"""`flask bide`: the command line of bide, on the store of the application."""

import click
from flask import current_app
from flask.cli import ScriptInfo

from bide.contrib.project_program import ProjectProgram

__all__ = ["TARGET", "command"]

TARGET = "bide.contrib.flask.target:app"
"""Its import loads the application, in each process of a worker."""

WORKER = """Run the handlers of the application's extension, in its application context."""


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
    environment = _environment(ctx.ensure_object(ScriptInfo))
    ProjectProgram(TARGET, WORKER).run(arguments, "flask bide", environment)


def _environment(info: ScriptInfo) -> dict[str, str]:
    """Return what this process, and the processes of a worker, read from the environment."""
    environment = {"BIDE_URL": current_app.extensions["bide"].url}
    if outbox := current_app.config.get("BIDE_OUTBOX"):
        environment["BIDE_OUTBOX"] = str(outbox)
    if info.app_import_path:
        environment["FLASK_APP"] = info.app_import_path
    return environment
