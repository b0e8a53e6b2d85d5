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
    """No subscription has this name."""

    exit_code = NOT_DONE

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no subscription {name!r}; bide subscription list --all lists them"
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
    """Configure which queues are pushed to which URLs.

    For each subscription, bide serve or bide push sends the due messages of a queue to a URL,
    signed as in Standard Webhooks, or publishes them to RabbitMQ. The store keeps the
    subscriptions; --url can also name a server.

    \b
    Example:
      bide subscription put shop orders https://shop.example/hooks/bide
      bide subscription list
    """  # fmt: skip


namespace_option = text_option(
    "--namespace", "NAME", "The namespace of the subscription; none by default."
)
secret_option = click.option(
    "--secret-file", type=click.Path(path_type=Path, allow_dash=True), metavar="PATH",
    help="A file with your own secret, in the format that bide creates; - for stdin.",
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
    help="A header for every request; can be repeated.",
)  # fmt: skip
@click.option(
    "--concurrency",
    type=int,
    metavar="N",
    help="The maximum number of concurrent requests; 10, or 500 for RabbitMQ.",
)
@click.option(
    "--rate", type=float, metavar="N", help="Requests per second; not limited by default."
)
@time_option("--timeout", "How long the receiver may take to answer; 15s.")
@click.option(
    "--attempts", type=int, metavar="N", help="The maximum number of attempts per message; 10."
)
@time_option("--first", "The delay after the first failed attempt; doubles each time; 10s.")
@time_option("--ceiling", "The longest of these delays; 1h.")
@click.option(
    "--failures", type=int, metavar="N",
    help="After so many failures in a row, requests to the receiver stop for a while; 5.",
)  # fmt: skip
@time_option("--probe", "How long they stop the first time; 30s.")
@secret_option
@on_any_store
def put(
    store: Store, out: Output, name: str, queue: str, receiver: str, namespace: str | None,
    headers: tuple[tuple[str, str], ...], secret_file: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Create a subscription, or replace the one of this name.

    RECEIVER is the URL that messages are sent to. The secret of a new subscription is printed once.
    An existing subscription keeps its secrets, and stays paused if it is paused.

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
@text_option("--name", "NAME", "The name of the subscription; by default the name of the queue.")
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
@flag("--all", "everywhere", help="List all namespaces.")
@on_store
def list_(store: Store, out: Output, namespace: str | None, everywhere: bool) -> None:
    """List subscriptions and whether their receivers answer.

    In a pipe, each line is: namespace, name, queue, URL, state, why.

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
@text_option("--reason", "TEXT", "Why; shown by list.", "")
@namespace_option
@on_store
def pause(store: Store, out: Output, name: str, reason: str, namespace: str | None) -> None:
    """Stop sending; the messages wait in the queue.

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
    """Start sending again at once, even if it stopped because the receiver failed.

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
    "--overlap", "How long requests are also signed with the old secrets; 0: not at all.",
    "1d",
)  # fmt: skip
@secret_option
@namespace_option
@on_store
def rotate(
    store: Store, out: Output, name: str, overlap: float, secret_file: Path | None,
    namespace: str | None,
) -> None:  # fmt: skip
    """Sign with a new secret, and print it once.

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
