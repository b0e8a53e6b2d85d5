"""`bide subscription`: which queues are pushed to which URLs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bide.cli.errors import NOT_DONE
from bide.cli.groups import Group
from bide.cli.options import (
    flag,
    networks_option,
    on_any_store,
    on_store,
    text_option,
    time_option,
)
from bide.cli.output import Output
from bide.cli.store import Store
from bide.cli.subscription_access import access_to
from bide.cli.tables import ID, TEXT, Cell, Column

if TYPE_CHECKING:
    from bide.server.subscription_status import SubscriptionOut

__all__ = ["subscription"]


class _Unknown(click.ClickException):
    """There is no such subscription."""

    exit_code = NOT_DONE

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no subscription {name!r}; bide subscription list --all shows which there are"
        )


COLUMNS = (
    Column("subscription", least=ID), Column("queue", falls=1),
    Column("receiver", least=ID, falls=2), Column("state"), Column("", least=TEXT),
)  # fmt: skip

Named = tuple[str | None, "SubscriptionOut"]
"""A subscription and its namespace."""

STYLES = {"active": "green", "paused": "yellow", "open": "red", "half-open": "magenta"}


@click.group(cls=Group)
def subscription() -> None:
    """Say which queues are pushed to which URLs.

    A subscription has bide serve, or bide push, send each due message of a queue to a URL, signed
    as Standard Webhooks has it, or publish it to RabbitMQ. Subscriptions are kept in the store;
    --url may name a server too.

    \b
    Example:
      bide subscription put shop orders https://shop.example/hooks/bide
      bide subscription list
    """  # fmt: skip


namespace_option = text_option(
    "--namespace", "NAME", "Whose it is; without it, of those in no namespace."
)
secret_option = click.option(
    "--secret-file", type=click.Path(path_type=Path, allow_dash=True), metavar="PATH",
    help="A file with a secret of your own, as bide makes them; - for stdin.",
)  # fmt: skip


def _whose(namespace: str | None, name: str) -> tuple[str | None, str]:
    """Return the namespace and the name of a subscription that may be named as list does: a/b."""
    whose, slash, own = name.rpartition("/")
    if not slash:
        return namespace, name
    if namespace not in (None, whose):
        raise click.BadParameter(f"{name!r} is not of the namespace {namespace!r}; name it once")
    return whose, own


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.BadParameter("write it as NAME: VALUE")
    return name.strip(), value.strip()


@subscription.command()
@click.argument("name")
@click.argument("queue")
@click.argument("receiver", metavar="RECEIVER")
@namespace_option
@click.option(
    "--header", "headers", type=_header, multiple=True, metavar="'NAME: VALUE'",
    help="Sent with every request; may be given several times.",
)  # fmt: skip
@click.option(
    "--concurrency",
    type=int,
    metavar="N",
    help="Requests under way at a time; 10, or 500 for RabbitMQ.",
)
@click.option("--rate", type=float, metavar="N", help="Requests a second; not limited by default.")
@time_option("--timeout", "Time to answer; 15s.")
@click.option("--attempts", type=int, metavar="N", help="How often a message is sent; 10.")
@time_option("--first", "The pause after the first attempt, doubled after each; 10s.")
@time_option("--ceiling", "The longest of these pauses; 1h.")
@click.option(
    "--failures", type=int, metavar="N",
    help="After so many failures in a row, the receiver gets no more requests for a while; 5.",
)  # fmt: skip
@time_option("--probe", "For how long, at first; 30s.")
@secret_option
@on_any_store
def put(
    store: Store, out: Output, name: str, queue: str, receiver: str, namespace: str | None,
    headers: tuple[tuple[str, str], ...], secret_file: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Make a subscription, or replace the one of this name.

    RECEIVER is the URL that messages are sent to. The secret of a new subscription is printed, only
    now. An existing one keeps its secrets, and stays paused if it is.

    \b
    Example:
      bide subscription put shop orders https://shop.example/hooks/bide
      bide subscription put shop orders https://shop.example/hooks/bide --rate 50 --timeout 5s
    """  # fmt: skip
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    given |= {"queue": queue, "url": receiver, "headers": dict(headers)}
    subscriptions = access_to(store)
    namespace, name = _whose(namespace, name)
    if namespace is not None:
        given["queue"] = queue.removeprefix(f"{namespace}/")
    _print_secret(out, name, subscriptions.put(namespace, name, given, _secret(secret_file)))


@subscription.command()
@click.argument("queue")
@click.option("--to", required=True, metavar="URL", help="https://... or amqp://...")
@text_option("--name", "NAME", "Of the subscription; the name of the queue by default.")
@namespace_option
@on_any_store
def add(
    store: Store, out: Output, queue: str, to: str, name: str | None, namespace: str | None
) -> None:
    """Send the messages of a queue to a URL or to RabbitMQ; put has more options.

    \b
    Example:
      bide subscription add orders --to https://shop.example/hooks/bide
      bide subscription add orders --to 'amqp://app@mq/?exchange=shop&key=order.timeout'
    """  # fmt: skip
    whose, _, own = queue.rpartition("/")
    namespace, name = _whose(namespace or whose or None, name or own)
    given = {"queue": own, "url": to}
    _print_secret(out, name, access_to(store).put(namespace, name, given, None))


@subscription.command(name="list")
@namespace_option
@flag("--all", "everywhere", help="Those of all namespaces.")
@on_store
def list_(store: Store, out: Output, namespace: str | None, everywhere: bool) -> None:
    """List the subscriptions, and whether their receivers answer.

    In a pipe a line is: namespace, name, queue, URL, state, why.

    \b
    Example:
      bide subscription list
      bide subscription list --json | jq 'select(.state != "active")'
    """  # fmt: skip
    more = "" if everywhere else "; --all shows those of all namespaces"
    whose = "" if namespace is None else f" of {namespace}"
    out.items(
        access_to(store).listed(namespace, everywhere), COLUMNS,
        facts=_facts, line=_line, cells=_cells,
        empty=lambda: f"no subscriptions{whose} in {store.shown}{more}",
    )  # fmt: skip


def _facts(one: Named) -> dict[str, Any]:
    whose, told = one
    return {"namespace": whose, **msgspec.to_builtins(told)}


def _line(one: Named) -> tuple[str, ...]:
    whose, told = one
    return whose or "-", told.name, told.queue, told.url, told.state, _why(told)


def _cells(one: Named) -> list[Cell]:
    whose, told = one
    name = told.name if whose is None else f"{whose}/{told.name}"
    state = told.state, STYLES[told.state]
    return [(name, "bold"), told.queue, told.url, state, (_why(told), "red")]


@subscription.command()
@click.argument("name")
@text_option("--reason", "TEXT", "Why; list shows it.", "")
@namespace_option
@on_store
def pause(store: Store, out: Output, name: str, reason: str, namespace: str | None) -> None:
    """Send nothing more; the messages wait.

    \b
    Example:
      bide subscription pause shop --reason "their release, until noon"
    """  # fmt: skip
    if not access_to(store).pause(*_whose(namespace, name), reason):
        raise _Unknown(name)
    out.report({"name": name, "state": "paused"}, f"{name} is paused")


@subscription.command()
@click.argument("name")
@namespace_option
@on_store
def resume(store: Store, out: Output, name: str, namespace: str | None) -> None:
    """Send again, at once, also if sending had stopped because the receiver failed.

    \b
    Example:
      bide subscription resume shop
    """  # fmt: skip
    if not access_to(store).resume(*_whose(namespace, name)):
        raise _Unknown(name)
    out.report({"name": name, "state": "active"}, f"{name} is active")


@subscription.command()
@click.argument("name")
@time_option(
    "--overlap", "For how long requests are signed with the old secrets as well; 0: not at all.",
    "1d",
)  # fmt: skip
@secret_option
@namespace_option
@on_store
def rotate(
    store: Store, out: Output, name: str, overlap: float, secret_file: Path | None,
    namespace: str | None,
) -> None:  # fmt: skip
    """Sign with a new secret, and print it, only now.

    \b
    Example:
      bide subscription rotate shop
      bide subscription rotate shop --overlap 0
    """  # fmt: skip
    secret = _secret(secret_file)
    text = access_to(store).rotate(*_whose(namespace, name), overlap, secret)
    if text is None:
        raise _Unknown(name)
    _print_secret(out, name, text if secret is None else None)


@subscription.command()
@click.argument("name")
@namespace_option
@networks_option()
@on_store
def ping(
    store: Store, out: Output, name: str, namespace: str | None, networks: tuple[str, ...]
) -> bool:
    """Send a signed request without a message, and show what the receiver answers.

    \b
    Example:
      bide subscription ping shop
    """  # fmt: skip
    answer = access_to(store).ping(*_whose(namespace, name), networks)
    if answer is None:
        raise _Unknown(name)
    facts = {"name": name, "taken": answer.taken, "answer": answer.answer}
    style = "green" if answer.taken else "red"
    out.report(facts, f"{name}: ", (answer.answer, style))
    return answer.taken


@subscription.command()
@click.argument("name")
@namespace_option
@on_store
def delete(store: Store, out: Output, name: str, namespace: str | None) -> None:
    """Delete a subscription. Its messages stay in the queue.

    \b
    Example:
      bide subscription delete shop
    """  # fmt: skip
    if not access_to(store).delete(*_whose(namespace, name)):
        raise _Unknown(name)
    out.report({"name": name, "deleted": True}, f"{name} is deleted")


def _secret(path: Path | None) -> str | None:
    if path is None:
        return None
    return (sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")).strip()


def _print_secret(out: Output, name: str, secret: str | None) -> None:
    facts: dict[str, Any] = {"name": name}
    if secret is not None:
        facts["secret"] = secret
    if out.as_json:
        out.json(facts)
    elif secret is not None:
        out.row(secret)


def _why(told: "SubscriptionOut") -> str:
    return told.reason if told.state == "paused" else told.circuit.error * (told.state != "active")
