"""`bide doctor`: look for what endangers the messages of a store."""

from math import inf

import click

from bide.cli import option
from bide.cli.errors import NOT_DONE
from bide.cli.output import Output, Part
from bide.engines.findings import LONGEST, Finding, examine
from bide.engines.registry import mask, named_url

_MARKS: dict[str, Part] = {
    "danger": ("✗ danger   ", "bold red"),
    "warning": ("! warning  ", "yellow"),
}


@click.command()
@click.argument("store", required=False, metavar="[URL]")
@option.flag("--all", help="Look at every message, however long it takes.")
@option.url
@option.output
def doctor(store: str | None, url: str | None, as_json: bool, **options: bool) -> None:
    """Look for what endangers the messages of a store.

    Looks at the server or the file and its settings, and for up to 20 seconds for messages that
    cannot be read. Changes nothing. For each finding it names what may be lost, and the fix. The
    exit code is 1 if there is a danger. In a pipe, each line is: danger or warning, what was found,
    the possible loss, the fix.

    \b
    Example:
      bide doctor postgresql://db.example.com/shop
      bide doctor --json | jq -r 'select(.level == "danger").fix'
    """
    store_url = named_url(store, url)
    out = Output(as_json)
    findings = examine(store_url, inf if options["all"] else LONGEST)
    for finding in findings:
        _print(out, finding)
    if not findings and out.terminal:
        out.text(("✓ ", "green"), f"no problems found in {mask(store_url)}")
    if any(finding.level == "danger" for finding in findings):
        click.get_current_context().exit(NOT_DONE)


def _print(out: Output, finding: Finding) -> None:
    if out.terminal:
        out.text(_MARKS[finding.level], (finding.what, "bold"))
        out.text(("             loss: ", "dim"), finding.loss)
        out.text(("             fix:  ", "dim"), finding.fix)
    else:
        out.line(finding, finding.level, finding.what, finding.loss, finding.fix)
