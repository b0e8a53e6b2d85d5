"""`manage.py bide`: the command line of bide, with the store and the settings of a project."""

import argparse
import os
import sys
from typing import Any

import click
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from bide.contrib.django.conf import configuration, has_outbox, in_database, store_url, url_of
from bide.contrib.project_program import ProjectProgram

TARGET = "bide.contrib.django.worker:app"
"""Its import sets up Django, in each process of a worker."""

OF_DJANGO = ("--settings", "--pythonpath")
"""Options that Django has taken already, wherever they are."""

CHECKED = ("worker", "forward", "push")
"""The commands that run for long, before which the system checks run."""

USAGE = """Run the handlers of this project: those of the modules "handlers" of its applications,
or of the app that BIDE["APP"] names. With DEBUG it restarts when Python files in this folder
change."""


HELP = """Work with the queues of this project.

The store is the one of the settings; --url names another one. The --help of each command has
examples.

\b
Example:
  manage.py bide worker
  manage.py bide queues
  manage.py bide scan orders --limit 5
"""


class Command(BaseCommand):
    """Runs a command of bide."""

    help = "Work with the queues of this project. Without arguments: list the commands."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take all that follows."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="COMMAND ...")

    def handle(self, *_: Any, arguments: list[str], **options: Any) -> None:
        """Run the command; exits with its code unless all is well."""
        arguments = _without_options_of_django(arguments)
        try:
            environment = _environment(options)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        asks_for_help = "-h" in arguments or "--help" in arguments
        if arguments and arguments[0] in CHECKED and not asks_for_help:
            self.check()
        reload = click.Option(
            ["--reload/--no-reload"],
            default=settings.DEBUG,
            help="Restart when Python files in this folder change; by default with DEBUG.",
        )
        program = ProjectProgram(TARGET, USAGE, [reload], help=HELP)
        program.run(arguments, "manage.py bide", environment)


def _environment(options: dict[str, Any]) -> dict[str, str]:
    """Return what this process, and the processes of a worker, read from the environment."""
    bide_settings = configuration()
    environment = {"BIDE_URL": store_url()}
    if has_outbox() and not in_database(environment["BIDE_URL"], bide_settings.database):
        environment["BIDE_OUTBOX"] = url_of(bide_settings.database)
    # A process of a worker is not started by manage.py, whose folder Python has put first. Django
    # has put that of --pythonpath before it.
    folders = sys.path[: 2 if options.get("pythonpath") else 1]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [os.path.abspath(folder) for folder in folders]  # noqa: PTH100
    folders += [folder for folder in inherited if folder]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))  # each once
    return environment


def _without_options_of_django(arguments: list[str]) -> list[str]:
    """Return arguments without the options that Django has taken already, and their values."""
    remaining = iter(arguments)
    kept = []
    for argument in remaining:
        if argument in OF_DJANGO:
            next(remaining, None)  # its value
        elif not argument.startswith(tuple(f"{name}=" for name in OF_DJANGO)):
            kept.append(argument)
    return kept
