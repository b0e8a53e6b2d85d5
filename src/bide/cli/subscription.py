"""`bide subscription`: which queues are pushed to which URLs."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bide.cli.exits import NOT_DONE
from bide.cli.messages import print_table
from bide.cli.moments import now_ms
from bide.cli.options import DURATION, on_store
from bide.cli.output import Output, printable
from bide.cli.push import networks_option, server_extra
from bide.cli.store import Store
from bide.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from bide.server.push.records import Records
    from bide.server.push.status import SubscriptionOut
    from bide.server.push.subscription import Subscription

__all__ = ["subscription"]

T = TypeVar("T")


class _Unknown(click.ClickException):
    """There is no such subscription."""

    exit_code = NOT_DONE


STYLES = {"active": "green", "paused": "yellow", "open": "red", "half-open": "magenta"}


@click.group()
def subscription() -> None:
    """Say which queues are pushed to which URLs.

    A subscription has bide push send each due message of a queue to a URL, signed as Standard
    Webhooks has it. Subscriptions are kept in the store.

    \b
    Example:
      bide subscription put shop orders https://shop.example/hooks/bide
      bide subscription list
    """  # fmt: skip


namespace_option = click.option(
    "--namespace", metavar="NAME", help="Whose it is; without it, of those in no namespace."
)
secret_option = click.option(
    "--secret-file", type=click.Path(path_type=Path, allow_dash=True), metavar="PATH",
    help="A file with a secret of your own, as bide makes them; - for stdin.",
)  # fmt: skip


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
    "--header",
    "headers",
    type=_header,
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Sent with every request; may be given several times.",
)
@click.option("--concurrency", type=int, metavar="N", help="Requests under way at a time; 10.")
@click.option("--rate", type=float, metavar="N", help="Requests a second; not limited by default.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Time to answer; 15s.")
@click.option("--attempts", type=int, metavar="N", help="How often a message is sent; 10.")
@click.option(
    "--first",
    type=DURATION,
    metavar="TIME",
    help="The pause after the first attempt, doubled after each; 10s.",
)
@click.option("--ceiling", type=DURATION, metavar="TIME", help="The longest of these pauses; 1h.")
@click.option(
    "--failures",
    type=int,
    metavar="N",
    help="Failures in a row after which the receiver is left alone; 5.",
)
@click.option("--probe", type=DURATION, metavar="TIME", help="For how long, at first; 30s.")
@secret_option
@on_store
def put(
    store: Store,
    out: Output,
    name: str,
    queue: str,
    receiver: str,
    namespace: str | None,
    headers: tuple[tuple[str, str], ...],
    concurrency: int | None,
    rate: float | None,
    timeout: float | None,
    attempts: int | None,
    first: float | None,
    ceiling: float | None,
    failures: int | None,
    probe: float | None,
    secret_file: Path | None,
) -> None:
    """Make a subscription, or put this one in the place of the one of its name.

    RECEIVER is the URL that messages are sent to. The secret of a new one is printed: this once.
    The secrets, and whether it is paused, stay as they were otherwise.

    \b
    Example:
      bide subscription put shop orders https://shop.example/hooks/bide
      bide subscription put shop orders https://shop.example/hooks/bide --rate 50 --timeout 5s
    """  # fmt: skip
    server_extra()
    from bide.server.push.subscription import Subscription, spans

    given = {"concurrency": concurrency, "rate": rate, "attempts": attempts, "failures": failures}
    fields: dict[str, Any] = {name: it for name, it in given.items() if it is not None}
    fields |= spans({"timeout": timeout, "first": first, "ceiling": ceiling, "probe": probe})
    new = Subscription(
        name=name, namespace=namespace, queue=queue, url=receiver, headers=dict(headers), **fields
    )
    secret = _secret(secret_file)
    kept, shown = _wait(_records(store).put(new, secret))
    _tell_secret(out, kept, shown)


@subscription.command(name="list")
@namespace_option
@click.option("--all", "everywhere", is_flag=True, help="Those of all namespaces.")
@on_store
def list_(store: Store, out: Output, namespace: str | None, everywhere: bool) -> None:
    """List the subscriptions, and how their receivers fare.

    In a pipe a line is: namespace, name, queue, URL, state, why.

    \b
    Example:
      bide subscription list
      bide subscription list --json | jq 'select(.state != "active")'
    """  # fmt: skip
    server_extra()
    store.names("")
    from bide.server.push.circuit import Circuit
    from bide.server.push.status import shown

    records = _records(store)
    listed = _wait(records.listed() if everywhere else records.of(namespace))
    circuits, now = _wait(records.circuits()), now_ms()
    found = [(one, shown(one, circuits.get(one.key, Circuit()), now)) for one in listed]
    if out.as_json:
        for one, told in found:
            out.json({"namespace": one.namespace, **_builtins(told)})
    elif out.terminal and not found:
        out.text((f"no subscriptions in {store.shown}", "dim"))
    elif out.terminal:
        from rich.text import Text

        rows = [
            [
                Text(one.name if one.namespace is None else f"{one.namespace}/{one.name}", "bold"),
                Text(one.queue), Text(printable(one.url)), Text(told.state, STYLES[told.state]),
                Text(printable(_why(told)), "red"),
            ]
            for one, told in found
        ]  # fmt: skip
        print_table(out, ("subscription", "queue", "receiver", "state", ""), rows)
    else:
        for one, told in found:
            why = printable(_why(told))
            out.row(one.namespace or "-", one.name, one.queue, one.url, told.state, why)


@subscription.command()
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Why; list shows it.")
@namespace_option
@on_store
def pause(store: Store, out: Output, name: str, reason: str, namespace: str | None) -> None:
    """Send nothing more; the messages wait.

    \b
    Example:
      bide subscription pause shop --reason "their release, until noon"
    """  # fmt: skip
    kept = _known(store, namespace, name)
    _wait(_records(store).pause(kept, reason))
    out.report({"name": name, "state": "paused"}, f"{name} is paused")


@subscription.command()
@click.argument("name")
@namespace_option
@on_store
def resume(store: Store, out: Output, name: str, namespace: str | None) -> None:
    """Send again, at once, also if the receiver was left alone because it failed.

    \b
    Example:
      bide subscription resume shop
    """  # fmt: skip
    kept = _known(store, namespace, name)
    _wait(_records(store).resume(kept))
    out.report({"name": name, "state": "active"}, f"{name} is active")


@subscription.command()
@click.argument("name")
@click.option(
    "--overlap",
    type=DURATION,
    default=86_400,
    show_default="1d",
    metavar="TIME",
    help="For how long requests are signed with the old secrets as well; 0: not at all.",
)
@secret_option
@namespace_option
@on_store
def rotate(
    store: Store,
    out: Output,
    name: str,
    overlap: float,
    secret_file: Path | None,
    namespace: str | None,
) -> None:
    """Sign with a new secret, and print it: this once.

    \b
    Example:
      bide subscription rotate shop
      bide subscription rotate shop --overlap 0
    """  # fmt: skip
    secret = _secret(secret_file)
    kept = _known(store, namespace, name)
    kept, text = _wait(_records(store).rotate(kept, round(overlap * 1000), secret))
    _tell_secret(out, kept, text if secret is None else None)


@subscription.command()
@click.argument("name")
@namespace_option
@networks_option
@on_store
def ping(
    store: Store, out: Output, name: str, namespace: str | None, networks: tuple[str, ...]
) -> bool:
    """Send a signed request without a message, and tell what the receiver said.

    \b
    Example:
      bide subscription ping shop
    """  # fmt: skip
    kept = _known(store, namespace, name)
    from bide.server.push.pusher import Pusher

    async def ask() -> Any:
        pusher = Pusher(store.lane, networks=networks)
        try:
            return await pusher.ping(kept)
        finally:
            await pusher.sender.close()

    answer = _wait(ask())
    facts = {"name": name, "taken": answer.good, "answer": answer.text}
    out.report(facts, f"{name}: ", (printable(answer.text), "green" if answer.good else "red"))
    return bool(answer.good)


@subscription.command()
@click.argument("name")
@namespace_option
@on_store
def delete(store: Store, out: Output, name: str, namespace: str | None) -> bool:
    """Delete a subscription. Its messages stay in the queue.

    \b
    Example:
      bide subscription delete shop
    """  # fmt: skip
    server_extra()
    store.names("")
    done = _wait(_records(store).delete(namespace, name))
    text = f"{name} is deleted" if done else f"there is no subscription {name!r}"
    out.report({"name": name, "deleted": done}, text)
    return done


def _records(store: Store) -> "Records":
    from bide.server.push.records import Records

    return Records(store.lane, SYSTEM_CLOCK)


def _wait(work: "Coroutine[Any, Any, T]") -> T:
    return asyncio.run(work)


def _known(store: Store, namespace: str | None, name: str) -> "Subscription":
    server_extra()
    store.names("")
    found = _wait(_records(store).get(namespace, name))
    if found is None:
        raise _Unknown(
            f"there is no subscription {name!r}; bide subscription list --all shows which there are"
        )
    return found


def _secret(path: Path | None) -> str | None:
    if path is None:
        return None
    return (sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")).strip()


def _tell_secret(out: Output, kept: "Subscription", secret: str | None) -> None:
    facts: dict[str, Any] = {"name": kept.name}
    if secret is not None:
        facts["secret"] = secret
    if out.as_json:
        out.json(facts)
    elif secret is not None:
        out.row(secret)


def _why(told: "SubscriptionOut") -> str:
    return told.reason if told.state == "paused" else told.circuit.error * (told.state != "active")


def _builtins(told: "SubscriptionOut") -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(told)
    return found
