"""The `bide` command line: its commands, their errors and exit codes."""

import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from bide.cli import errors
from bide.model.errors import BideError

SECTIONS = {
    "Messages": (
        "messages.put",
        "messages.edit",
        "messages.cancel",
        "messages.close_group",
        "messages.reopen_group",
        "messages.closed_groups",
        "messages.reschedule",
        "messages.hold",
        "messages.run_now",
        "messages.backfill",
        "messages.undo",
        "messages.get",
        "messages.explain",
        "messages.history",
        "messages.ended",
        "messages.result",
        "messages.peek",
        "messages.scan",
        "messages.search",
    ),
    "Queues": (
        "queues.queues",
        "queues.counts",
        "queues.audit",
        "queues.top",
        "queues.forecast",
        "queues.past",
        "queues.recover",
        "queues.dashboard",
        "queues.pause",
        "queues.resume",
        "queues.purge",
        "queues.delete",
        "queues.set",
        "queues.export",
        "queues.import",
        "queues.move",
    ),
    "Work": (
        "work.worker",
        "work.tasks",
        "work.call",
        "work.check_deploy",
        "work.workers",
        "work.sources",
        "work.schedules",
        "work.claim",
        "work.ack",
        "work.retry",
        "work.bury",
        "work.extend",
        "work.release",
        "work.dead",
        "work.revive",
    ),
    "Service": (
        "service.init",
        "service.doctor",
        "service.prove",
        "service.zones",
        "service.serve",
        "service.token",
        "service.push",
        "service.rabbitmq",
        "service.forward",
        "service.subscription",
        "service.mcp",
    ),
    "Try it": ("demo",),
}
"""The files of the commands by the section of the help; each is named as its command."""

FILES = {
    file.rpartition(".")[2].replace("_", "-"): file for files in SECTIONS.values() for file in files
}
"""The file of each command, in the order of the help."""

POSIX = {"demo", "forward", "prove", "push", "rabbitmq", "serve", "worker"}
"""The commands that need signals and locks that Windows does not have."""


ALIASES = {
    "add": "put",
    "enqueue": "put",
    "list": "queues",
    "ls": "queues",
    "run": "worker",
    "show": "get",
    "stats": "queues",
    "status": "queues",
}
"""What other programs call a command of bide. None of these deletes anything."""

NAMED_ELSEWHERE = {
    "beat": "schedules lists what repeats, worker runs it",
    "clear": "purge deletes the messages of a state, delete an empty queue",
    "consume": "worker runs handlers, claim takes due messages",
    "create": "init makes the store, put makes a queue with its first message",
    "cron": "schedules lists what repeats, put takes --cron",
    "dlq": "dead lists dead letters",
    "drain": "pause stops claims, purge deletes the messages of a state",
    "failed": "dead lists dead letters",
    "flush": "purge deletes the messages of a state, delete an empty queue",
    "health": "doctor looks for problems, worker has --health-port",
    "info": "queues lists queues with their counts, workers lists processes",
    "inspect": "get shows messages, queues lists queues, workers lists processes",
    "jobs": "scan lists the messages of a queue, tasks lists the tasks of an app",
    "kill": "cancel stops running work with --running, workers stop replaces a process",
    "monitor": "top shows queues and workers live, dashboard shows them in a browser",
    "ping": "doctor looks for problems",
    "pop": "claim takes due messages",
    "publish": "put stores a message, push sends due messages to URLs",
    "remove": "cancel deletes messages, delete an empty queue",
    "requeue": "revive returns dead letters, release ends the lease of a worker",
    "revoke": "cancel deletes messages; --running is for those that a worker holds",
    "rm": "cancel deletes messages, delete an empty queue",
    "send": "put stores a message, push sends due messages to URLs",
    "size": "queues lists queues with their counts",
    "snooze": "reschedule moves messages to another due time",
    "start": "worker runs handlers, serve offers the queue over HTTP",
    "ui": "dashboard shows the store in a browser",
    "unpause": "resume lets messages be claimed again",
    "watch": "top shows queues and workers live, dashboard shows them in a browser",
    "web": "dashboard shows the store in a browser",
}
"""Words of other programs with no meaning here, or more than one, and what to write instead."""

OPTIONS = {"help": "--help", "version": "--version"}
"""Options of the program that other programs have as commands."""


class Group(click.Group):
    """A command with subcommands: its help shows the whole first sentence of each."""

    named_elsewhere: Mapping[str, str] = {}
    """What to write instead of a word that is no subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest one; some are not for Windows."""
        word, *_ = args
        names = self.list_commands(ctx)
        if word in POSIX and not hasattr(os, "fork"):
            text = f"bide {word} needs Linux or macOS; on Windows run it in WSL"
            raise click.UsageError(text, ctx)
        is_known = word in names or word.startswith("-")
        if not is_known and not ctx.resilient_parsing:  # as where a shell completes a line
            instead = self.named_elsewhere.get(word)
            hint = f"; {instead}" if instead else _hint(word, names)
            raise click.UsageError(f"there is no command {word!r}{hint}", ctx)
        name, command, remaining = super().resolve_command(ctx, args)
        ctx.meta[errors.COMMAND] = command
        return name, command, remaining

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return the names of the commands by the section of the help."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        for title, names in self.sections(ctx).items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name, command.get_short_help_str(1_000)) for name, command in commands if command
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def _hint(word: str, names: Sequence[str]) -> str:
    """Return the end of the error about a command that does not exist: what may be meant."""
    from difflib import get_close_matches

    similar = get_close_matches(word, names, 1)
    return f"; did you mean {similar[0]!r}?" if similar else ""


class ListGroup(Group):
    """A group whose command `list` needs no name: `bide dead orders` is `bide dead list orders`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the name of the command if there is none."""
        has_name = args and args[0] in (*self.commands, "-h", "--help")
        if not has_name and not ctx.resilient_parsing:  # as where a shell completes a line
            args = ["list", *args]
        return super().parse_args(ctx, args)


class Program(Group):
    """The group of all commands. A command's file is imported when the command is called."""

    named_elsewhere = NAMED_ELSEWHERE

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept options of a command in front of its name, and `bide help put`."""
        if ctx.resilient_parsing:  # as where a shell completes a line
            return super().parse_args(ctx, args)
        options, remaining = _leading_options(args)
        if remaining and remaining[0] in OPTIONS:
            return super().parse_args(ctx, [*remaining[1:], OPTIONS[remaining[0]]])
        if not options or not remaining:
            return super().parse_args(ctx, args)
        # The name of the command, and those of subcommands: the options belong behind them.
        first, *_ = remaining
        path = [first]
        command = self.get_command(ctx, ALIASES.get(first, first))
        while isinstance(command, click.Group) and len(path) < len(remaining):
            word = remaining[len(path)]
            command = command.commands.get(word)
            if command is not None:
                path.append(word)
        return super().parse_args(ctx, [*path, *options, *remaining[len(path) :]])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name, or by a word of other programs for it."""
        return super().resolve_command(ctx, [ALIASES.get(args[0], args[0]), *args[1:]])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return list(FILES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in FILES:
            return None
        # Python's own words get an underscore: the file `import_`, the functions `import_`, `set_`.
        file = FILES[cmd_name]
        module = import_module(f"bide.cli.{file}_" if iskeyword(cmd_name) else f"bide.cli.{file}")
        is_reserved = iskeyword(cmd_name) or cmd_name == "set"
        function_name = f"{cmd_name}_" if is_reserved else cmd_name.replace("-", "_")
        command: click.Command = getattr(module, function_name)
        return command

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return the names of the commands by the section of the help."""
        return {
            title: [name for name in FILES if FILES[name] in files]
            for title, files in SECTIONS.items()
        }

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error becomes a line of text and an exit code."""
        try:
            return super().invoke(ctx)
        except (BideError, OSError) as error:
            if ctx.meta.get(errors.DEBUG):
                traceback.print_exception(error)
            raise errors.command_error(error) from error
        except KeyboardInterrupt:
            ctx.exit(errors.INTERRUPTED)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "bide",
        *_: Any,
        **more: Any,
    ) -> Any:
        """Run the command line, and leave with its exit code."""
        if isinstance(sys.stdout, io.TextIOWrapper):  # its encoding may not have every character
            sys.stdout.reconfigure(errors="backslashreplace")
        errors.end_on_termination_as_first_process()
        errors.open_closed_streams()
        try:
            code = super().main(args, prog_name, standalone_mode=False, **more)
            errors.flush_output()
        except click.ClickException as error:
            code = errors.print_error(error)
        except click.Abort:  # Ctrl-C at a question, whose line is not ended
            click.echo(err=True)
            code = errors.INTERRUPTED
        except OSError as error:  # when help or the last lines are printed
            code = errors.print_error(errors.command_error(error))
        try:
            errors.flush_output()
        except OSError:  # said above, or less important than what was
            errors.drop_output()
        sys.exit(code if isinstance(code, int) else errors.DONE)


def _leading_options(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide a command line into the options before the command, and the rest.

    Of those that stand there, only --url takes a value; the program's own stay where they are.
    """
    count = 0
    while count < len(args) and args[count].startswith("-") and args[count] not in _OWN_OPTIONS:
        count += 2 if args[count] == "--url" else 1
    return list(args[:count]), list(args[count:])


_OWN_OPTIONS = ("--", "-h", "--help", "--version")


@click.command(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes:
  0    done
  1    not done: nothing found, held by a worker, does not balance,
       would be refused
  2    wrong usage
  3    the store (or a file) failed
  130  interrupted with Ctrl-C

\b
Shell completion, for bash (zsh and fish alike):
  eval "$(_BIDE_COMPLETE=bash_source bide)"
""",
)
@click.version_option(package_name="bide", message="%(package)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """A delay queue: messages that bide their time.

    --url names the store, else the environment variable BIDE_URL, else it is the file bide.db in
    this folder. The --help of a command has its options and examples.

    \b
    Example:
      bide put orders '{"order": 42}' --delay 30m --id order-42
      bide cancel orders order-42
      bide claim orders --wait 1h --ack
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
