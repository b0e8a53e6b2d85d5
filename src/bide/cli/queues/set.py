"""`bide set`: set what a queue remembers, its limits, and its plan for what is overdue."""

from typing import Any

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.errors import usage_error
from bide.cli.output import DONE, Output
from bide.cli.store import CommandStore
from bide.cli.times import rounded
from bide.model.times import limits_of


@on_any_store(option.queue, name="set")
@option.time("--keep", "How long acked messages are remembered, so that their ids are refused.")
@option.time("--history", "How long the queue remembers how messages ended. Their ids are free.")
@option.time("--result-ttl", "How long it remembers the results of messages.")
@option.count("--limit", help="How many messages may be leased at a time.", least=0)
@option.text("--rate", "RATE", "How many may be delivered: 5/s, 100/m, 1000/h, 20/d.")
@option.count("--group-limit", help="--limit for each group.", least=0)
@option.text("--group-rate", "RATE", "--rate for each group.")
@option.text(
    "--overdue",
    "PLAN",
    "The plan for messages that are overdue after a gap without workers: 'drop 6h, spread 10m' "
    "(see bide recover).",
)
def set_(store: CommandStore, out: Output, queue: str, **given: Any) -> None:
    """Set what a queue remembers, its limits, and its plan for what is overdue; 0 is off.

    What is not given stays as it is. In a pipe, each line is: setting, milliseconds; for a limit
    the number of messages, for a rate and a plan its text.

    \b
    Example:
      bide set orders --history 7d
      bide set reports --result-ttl 1h
      bide set calls --rate 100/m --group-limit 1
      bide set mails --overdue 'drop 6h, spread 10m'
    """
    if all(value is None for value in given.values()):
        raise usage_error(
            "nothing to set: give at least one setting, such as --keep, --history or --limit"
        )
    with store.telling_new(queue):
        configuration = store.queue(queue).configure(**given)
    facts = {
        "keep": configuration.keep,
        "history": configuration.history,
        "result_ttl": configuration.result_ttl,
    }
    settings = ", ".join(f"{name} {rounded(ms) if ms else 'off'}" for name, ms in facts.items())
    limits = {name: value or 0 for name, value in limits_of(configuration).items()}
    settings += "".join(f", {name} {value}" for name, value in limits.items() if value)
    plan = {"overdue": configuration.overdue} if configuration.overdue else {}
    settings += "".join(f", overdue {text}" for text in plan.values())
    out.report(facts | limits | plan, DONE, f"{queue}: {settings}")
