"""The command line of bide within that of a framework: `manage.py bide`, `flask bide`."""

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial

import click

from bide.cli.program import Program, main

OF_THE_APP = ("worker", "tasks", "check-deploy")
"""The commands that work with the app of the project, so that they need no name of one."""


class ProjectProgram(Program):
    """The commands of bide, with defaults of a project, such as the app of a worker.

    Args:
        target: the app of the project, as `module:app`.
        usage: the help text of `worker`.
        options: of `worker`, in place of those of the same name.
        help: the help text of the program.
    """

    def __init__(
        self,
        target: str,
        usage: str,
        options: Sequence[click.Option] = (),
        *,
        help: str | None = main.help,
    ) -> None:
        super().__init__(
            name=main.name,
            callback=main.callback,
            params=main.params,
            help=help,
            invoke_without_command=True,
            context_settings=main.context_settings,
        )
        self._target = target
        self._usage = usage
        self._options = list(options)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; `None` if there is none of this name.

        A command that works with an app has no argument for it here: it gets that of the project.
        """
        command = super().get_command(ctx, cmd_name)
        if cmd_name not in OF_THE_APP or command is None:
            return command
        assert command.callback is not None
        assert command.help is not None
        of_project = copy.copy(command)
        of_project.callback = partial(command.callback, target=self._target)
        options = self._options if cmd_name == "worker" else []
        replaced_names = {"target", *(option.name for option in options)}
        kept = [parameter for parameter in command.params if parameter.name not in replaced_names]
        of_project.params = [*kept, *options]
        if cmd_name == "worker":
            of_project.help, of_project.epilog = self._usage, None
        else:  # its examples name no app either
            of_project.help = command.help.replace(" shop:app", "")
        return of_project

    def run(self, arguments: Sequence[str], name: str, environment: Mapping[str, str]) -> None:
        """Run a command in an environment; exit with its code unless all is well.

        Args:
            arguments: the command and its arguments.
            name: of the program, in its texts.
            environment: variables that are set meanwhile.
        """
        before = os.environ.copy()
        os.environ.update(environment)
        try:
            self.main(list(arguments), name)
        except SystemExit as end:
            if end.code:
                raise
        finally:  # for callers that go on in this process, such as tests
            os.environ.clear()
            os.environ.update(before)
