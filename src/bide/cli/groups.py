"""Commands that have commands of their own."""

import click

__all__ = ["Group"]


class Group(click.Group):
    """Its help shows the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(1_000)) for name, command in found if command]
            )
