"""The `bide` command line: its commands, their errors and exit codes."""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any, NamedTuple

import click

from bide.cli import errors
from bide.model.errors import BideError


class Entry(NamedTuple):
    """A command, the file that it is in, and its line in the help, without importing it."""

    name: str
    file: str
    summary: str
    posix: bool = False
    """Whether it needs signals and locks that Windows does not have."""


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Messages": (
        Entry("put", "put", "Store a message until it is due."),
        Entry("cancel", "change", "Cancel messages that no worker holds."),
        Entry("reschedule", "change", "Change when a message is due."),
        Entry("get", "read", "Show messages by id."),
        Entry("peek", "read", "Show the messages that are delivered next."),
        Entry("scan", "read", "List messages by state, group or time."),
    ),
    "Queues": (
        Entry("queues", "counts", "List the queues of the store."),
        Entry("counts", "counts", "Count the messages in each state."),
        Entry("top", "top", "Watch queues and workers, live."),
        Entry("forecast", "forecast", "Chart how many messages fall due over time."),
        Entry("audit", "counts", "Check that every message is accounted for."),
        Entry("pause", "control", "Stop claims from a queue."),
        Entry("resume", "control", "Let messages be claimed again."),
        Entry("purge", "control", "Delete all messages of a state."),
        Entry("delete", "control", "Delete an empty queue."),
        Entry("export", "transfer", "Write a queue as lines of JSON."),
        Entry("import", "transfer", "Put messages from an export, or a sorted set in Redis."),
        Entry("move", "move", "Move queues to another store, live."),
    ),
    "Work": (
        Entry("worker", "worker", "Run the handlers of an app.", posix=True),
        Entry("sources", "sources", "List sources, their progress and their errors."),
        Entry("schedules", "schedules", "List schedules and their next ticks."),
        Entry("claim", "claim", "Take due messages, or run a command for each."),
        Entry("ack", "settle", "Acknowledge a claimed message: it is done."),
        Entry("retry", "settle", "Return a claimed message for another attempt."),
        Entry("bury", "settle", "Make a claimed message a dead letter."),
        Entry("extend", "settle", "Extend the lease of a claimed message."),
        Entry("release", "settle", "End the lease of a message that any worker holds."),
        Entry("dead", "dead", "List, show, revive or purge dead letters."),
        Entry("revive", "dead", "Return dead letters to the queue."),
    ),
    "Service": (
        Entry("serve", "serve", "Offer the queue over HTTP.", posix=True),
        Entry("token", "token", "Create, list, rotate or revoke the tokens of the server."),
        Entry("push", "push", "Send due messages to the URLs of subscriptions.", posix=True),
        Entry("rabbitmq", "push", "Delay messages for exchanges of RabbitMQ.", posix=True),
        Entry("subscription", "subscription", "Configure which queues are pushed to which URLs."),
    ),
    "Try it": (Entry("demo", "demo", "Watch orders time out on time, with a proof.", posix=True),),
}

_ENTRIES = {entry.name: entry for section in SECTIONS.values() for entry in section}


OTHER_WORDS = {
    "add": "put", "consume": "claim", "enqueue": "put", "list": "queues",
    "ls": "queues", "pop": "claim", "publish": "put", "receive": "claim", "remove": "cancel",
    "revoke": "cancel", "rm": "cancel", "run": "worker", "send": "put", "show": "get",
    "start": "worker", "stats": "counts", "status": "queues", "unpause": "resume",
}  # fmt: skip
"""The names that other tools use for these commands."""


class Group(click.Group):
    """A command with commands of its own: its help shows the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(1_000)) for name, command in found if command]
            )


class Program(click.Group):
    """The group of all commands. A command's file is imported when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if (entry := _ENTRIES.get(cmd_name)) is None:
            return None
        if entry.posix and os.name != "posix":
            raise errors.CommandError(
                f"bide {cmd_name} needs Linux or macOS; on Windows run it in WSL",
                errors.WRONG_USAGE,
            )
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(f"bide.cli.{entry.file}"), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"bide itself has no option {error.option_name!r}; options go after the command, "
                "as in: bide queues --url sqlite:///bide.db",
                ctx,
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest a similar one."""
        name = args[0]
        if name not in _ENTRIES and not name.startswith("-"):
            raise click.UsageError(f"there is no command {name!r}{_meant(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, a section each, without importing them."""
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name, entry.summary) for entry in entries])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the names of commands, without importing them."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(entry.name, help=entry.summary)
            for entry in _ENTRIES.values()
            if entry.name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error becomes an exit code and a line of text."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            errors.drop_output()
            ctx.exit(errors.BROKEN_PIPE)
        except (BideError, OSError) as error:
            if ctx.meta.get(errors.DEBUG):
                traceback.print_exception(error)
            raise errors.command_error(error) from error
        except KeyboardInterrupt:
            ctx.exit(errors.INTERRUPTED)
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "bide",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line, and leave with its exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            errors.print_error(error)
            code = error.exit_code
        except click.Abort:
            code = errors.INTERRUPTED
        sys.exit(code if isinstance(code, int) else errors.DONE)


def _meant(name: str) -> str:
    from difflib import get_close_matches

    near = [OTHER_WORDS[name]] if name in OTHER_WORDS else get_close_matches(name, _ENTRIES, 1)
    return f"; did you mean {near[0]!r}?" if near else "; bide --help lists all commands"


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"bide {version('bide')}")
        ctx.exit()


@click.command(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes:
  0    done
  1    not done: nothing found, held by a worker, does not balance
  2    wrong usage
  3    the store (or a file) failed
  130  interrupted with Ctrl-C

\b
Shell completion, for bash (zsh and fish alike):
  eval "$(_BIDE_COMPLETE=bash_source bide)"
""",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def main(ctx: click.Context) -> None:
    """A delay queue: messages that bide their time.

    --url names the store, else the environment variable BIDE_URL, else it is the file bide.db in
    this folder. The --help of each command has examples.

    \b
    Example:
      bide put orders '{"order": 42}' --delay 30m --id order-42
      bide cancel orders order-42
      bide claim orders --wait 1h --ack
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
