"""`bide subscription`: which queues are pushed to which URLs."""

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.action_log import logged
from bide.cli.command import on_any_store, on_store
from bide.cli.errors import require_packages
from bide.cli.output import ID, TEXT, Cell, Column, Output
from bide.cli.program import Group
from bide.cli.store import CommandStore
from bide.model.errors import InvalidArgument
from bide.model.identity import split_name
from bide.model.times import interval
from bide.server.subscriptions.subscription_access import Access, in_store, on_server
from bide.server.subscriptions.subscription_wire import SubscriptionOut

COLUMNS = (
    Column("subscription", least=ID),
    Column("queue", extra=True),
    Column("receiver", least=ID, extra=True),
    Column("state"),
    Column("", least=TEXT),
)

STYLES = {"active": "green", "paused": "yellow", "open": "red", "half-open": "magenta"}


@click.group(cls=Group, no_args_is_help=False)
def subscription() -> None:
    """Configure which queues are pushed to which URLs.

    For each subscription, bide serve or bide push sends the due messages of a queue to a URL,
    signed as in Standard Webhooks, or publishes them to RabbitMQ. The store keeps the
    subscriptions; --url can also name a server.

    \b
    Example:
      bide subscription put shop orders https://shop.example/hooks/bide
      bide subscription list
    """


namespace_option = option.text(
    "--namespace", "NAME", "The namespace of the subscription; none by default."
)


def _secret(ctx: click.Context, param: click.Parameter, path: Path | None) -> str | None:
    """Return the secret in a file, or on stdin for "-"; `None` without the option."""
    if path is None:
        return None
    try:
        return (sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")).strip()
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} does not hold text") from None


secret_option = click.option(
    "--secret-file",
    "secret",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="PATH",
    callback=_secret,
    help="A file with your own secret, in the format that bide creates; - for stdin.",
)


def _full_name(namespace: str | None, name: str) -> str:
    """Return a name with its namespace, which may be before it already: shop/hook."""
    namespace_of_name, _ = split_name(name)
    if namespace in (None, namespace_of_name):
        return name
    if namespace_of_name is not None:
        raise click.BadParameter(f"{name!r} is not in the namespace {namespace!r}; name it once")
    return f"{namespace}/{name}"


def access_to(store: CommandStore) -> Access:
    """Return access to the subscriptions of a store.

    Raises:
        InvalidArgument: a package is missing.
    """
    if not store.remote:
        require_packages("this command", "h11")
        return in_store(store.lane)
    access = on_server(store.url)
    store.callback(access.close)
    return access


def on_subscription(*options: option.Decorator) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that takes the output, access to subscriptions, and which one.

    The function returns `None` if there is no such subscription; `False` means exit code 1.
    """

    def decorate(function: Callable[..., bool | None]) -> click.Command:
        @on_store(*options, click.argument("name"), namespace_option, group=subscription)
        @functools.wraps(function)
        def run(
            store: CommandStore, out: Output, name: str, namespace: str | None, **own_options: Any
        ) -> bool:
            result = function(out, access_to(store), _full_name(namespace, name), **own_options)
            if result is None:
                raise click.ClickException(
                    f"there is no subscription {name!r}; bide subscription list --all lists them"
                )
            return result

        return run

    return decorate


def _per_second(text: str) -> float:
    """Return a rate per second: a number, or a text such as "100/m"."""
    with suppress(ValueError):
        return float(text)
    try:
        microseconds = interval(text)
    except InvalidArgument as error:
        raise click.BadParameter(str(error).removeprefix("rate=")) from None
    return 1_000_000 / microseconds if microseconds else 0.0


@on_any_store(click.argument("name"), option.queue, group=subscription)
@click.argument("receiver", metavar="RECEIVER")
@namespace_option
@option.headers("A header for every request", ":")
@option.count(
    "--concurrency", help="The maximum number of concurrent requests; 10, or 500 for RabbitMQ."
)
@click.option(
    "--rate",
    type=_per_second,
    metavar="RATE",
    help="Requests per second, or such as 100/m; not limited by default.",
)
@option.time("--timeout", "How long the receiver may take to answer; 15s.")
@option.count("--attempts", help="The maximum number of attempts per message; 10.")
@option.time("--first", "The delay after the first failed attempt; doubles each time; 10s.")
@option.time("--ceiling", "The longest of these delays; 1h.")
@option.count("--failures", help="After so many failures in a row, requests stop a while; 5.")
@option.time("--probe", "How long they stop the first time; 30s.")
@secret_option
@logged("putSubscription")
def put(
    store: CommandStore,
    out: Output,
    name: str,
    queue: str,
    receiver: str,
    namespace: str | None,
    headers: dict[str, str] | None,
    secret: str | None,
    **options: Any,
) -> None:
    """Create a subscription, or replace the one of this name.

    RECEIVER is the URL that messages are sent to. The secret of a new subscription is printed once.
    An existing subscription keeps its secrets, and stays paused if it is paused.

    \b
    Example:
      bide subscription put shop orders https://shop.example/hooks/bide
      bide subscription put shop orders https://shop.example/hooks/bide --rate 50
    """
    settings: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    name = _full_name(namespace, name)
    namespace_of_name, _ = split_name(name)
    queue = _full_name(namespace_of_name, queue)
    settings |= {"queue": queue, "url": receiver, "headers": headers or {}}
    _print_secret(out, name, access_to(store).put(name, settings, secret))


@on_any_store(option.queue, group=subscription)
@click.option("--to", required=True, metavar="URL", help="https://... or amqp://...")
@option.text("--name", "NAME", "The name of the subscription; by default the name of the queue.")
@namespace_option
@logged("putSubscription")
def add(
    store: CommandStore, out: Output, queue: str, to: str, name: str | None, namespace: str | None
) -> None:
    """Send the messages of a queue to a URL or to RabbitMQ; put has more options.

    \b
    Example:
      bide subscription add orders --to https://shop.example/hooks/bide
      bide subscription add orders --to 'amqp://app@mq/?exchange=shop&key=late'
    """
    queue = _full_name(namespace, queue)
    namespace_of_queue, _ = split_name(queue)
    name = _full_name(namespace_of_queue, name) if name else queue
    _print_secret(out, name, access_to(store).put(name, {"queue": queue, "url": to}, None))


@on_store(namespace_option, group=subscription, name="list")
@option.flag("--all", "everywhere", help="List all namespaces.")
def list_(store: CommandStore, out: Output, namespace: str | None, everywhere: bool) -> None:
    """List subscriptions and whether their receivers answer.

    In a pipe, each line is: namespace, name, queue, URL, state, why. Paths and queries of URLs,
    which may be keys, are shown with --json only.

    \b
    Example:
      bide subscription list
      bide subscription list --json | jq 'select(.state != "active")'
    """
    hint = "" if everywhere else "; --all shows those of all namespaces"
    of_namespace = "" if namespace is None else f" of {namespace}"
    out.items(
        access_to(store).listed(namespace, everywhere),
        COLUMNS,
        facts=_facts,
        line=_line,
        cells=_cells,
        empty=f"no subscriptions{of_namespace} in {store.shown}{hint}",
    )


def _facts(subscription: SubscriptionOut) -> dict[str, Any]:
    namespace, name = split_name(subscription.name)
    _namespace, queue = split_name(subscription.queue)
    facts = {"namespace": namespace, **msgspec.to_builtins(subscription)}
    return facts | {"name": name, "queue": queue}


def _line(subscription: SubscriptionOut) -> tuple[str, ...]:
    facts = _facts(subscription)
    return (
        facts["namespace"] or "-",
        facts["name"],
        facts["queue"],
        _receiver(subscription),
        subscription.state,
        _reason_of(subscription),
    )


def _cells(subscription: SubscriptionOut) -> list[Cell]:
    state = subscription.state, STYLES[subscription.state]
    _namespace, queue = split_name(subscription.queue)
    return [
        (subscription.name, "bold"),
        queue,
        _receiver(subscription),
        state,
        (_reason_of(subscription), "red"),
    ]


@on_subscription(option.text("--reason", "TEXT", "Why; shown by list.", ""))
@logged("pauseSubscription")
def pause(out: Output, access: Access, name: str, reason: str) -> bool | None:
    """Stop sending; the messages stay in the queue.

    \b
    Example:
      bide subscription pause shop --reason "their release, until noon"
    """
    return _report_change(out, access.pause(name, reason), name, "state", "paused")


@on_subscription()
@logged("resumeSubscription")
def resume(out: Output, access: Access, name: str) -> bool | None:
    """Start sending again at once, even if it stopped because the receiver failed.

    \b
    Example:
      bide subscription resume shop
    """
    return _report_change(out, access.resume(name), name, "state", "active")


@on_subscription()
@option.time("--overlap", "How long the old secrets stay in use as well; 0: not at all.", "1d")
@secret_option
@logged("rotateSecret")
def rotate(
    out: Output, access: Access, name: str, overlap: float, secret: str | None
) -> bool | None:
    """Sign with a new secret, and print it once.

    \b
    Example:
      bide subscription rotate shop
      bide subscription rotate shop --overlap 0
    """
    text = access.rotate(name, overlap, secret)
    if text is None:
        return None
    _print_secret(out, name, text)
    return True


@on_subscription(option.networks())
def ping(out: Output, access: Access, name: str, networks: tuple[str, ...]) -> bool | None:
    """Send a signed request without a message, and show what the receiver answers.

    The exit code is 1 if it does not accept the request.

    \b
    Example:
      bide subscription ping shop
    """
    answer = access.ping(name, networks)
    if answer is None:
        return None
    facts = {"name": name, "taken": answer.taken, "answer": answer.answer}
    out.report(facts, f"{name}: ", (answer.answer, "green" if answer.taken else "red"))
    return answer.taken


@on_subscription()
@logged("deleteSubscription")
def delete(out: Output, access: Access, name: str) -> bool | None:
    """Delete a subscription. Its messages stay in the queue.

    \b
    Example:
      bide subscription delete shop
    """
    return _report_change(out, access.delete(name), name, "deleted", True)


@subscription.command(name="new-key")
@option.debug
def new_key() -> None:
    """Print a new key for BIDE_SECRETS_KEY, which encrypts secrets, headers and URLs in the store.

    Set it for all processes that use subscriptions: bide serve, bide push, bide rabbitmq and
    bide subscription. BIDE_SECRETS_KEY_FILE names a file instead. Keep a copy of the key: without
    it, subscriptions are paused until they are put again.

    \b
    Example:
      bide subscription new-key > /etc/bide/secrets.key
    """
    from bide.targets.http.encryption import new_key as make

    Output().row(make())


@on_store(group=subscription, name="rotate-key")
def rotate_key(store: CommandStore, out: Output) -> bool:
    """Encrypt the secrets, headers and URLs of all subscriptions with the first key.

    Put the new key before the old one, restart all processes that use subscriptions, run this, and
    then remove the old key. Subscriptions in clear text are encrypted too. The exit code is 1 if
    some could not be decrypted because their key is missing.

    \b
    Example:
      BIDE_SECRETS_KEY="$NEW $OLD" bide subscription rotate-key
    """
    encrypted, lost = access_to(store).encrypt_all()
    without_key = f"; {lost:,} could not, their key is missing" if lost else ""
    out.report({"encrypted": encrypted, "lost": lost}, f"{encrypted:,} encrypted{without_key}")
    return not lost


def _report_change(
    out: Output, existed: bool, name: str, fact: str, value: str | bool
) -> bool | None:
    """Print that a subscription was changed; return `None` if it did not exist.

    Args:
        out: where to print it.
        existed: whether it existed, and so was changed.
        name: the name of the subscription.
        fact: the name of what has changed, as in JSON.
        value: what it is now.
    """
    if not existed:
        return None
    state = fact if value is True else value
    out.report({"name": name, fact: value}, f"{name} is {state}")
    return True


def _print_secret(out: Output, name: str, secret: str) -> None:
    if out.as_json:
        out.json({"name": name, **({"secret": secret} if secret else {})})
    elif secret:
        out.row(secret)


def _receiver(subscription: SubscriptionOut) -> str:
    """Return the URL that messages are sent to, without what may be a key."""
    from bide.targets.http.subscription import masked

    return masked(subscription.url)


def _reason_of(subscription: SubscriptionOut) -> str:
    """Return why a subscription is not active; "" if it is."""
    if subscription.state == "paused":
        return subscription.reason
    return subscription.circuit.error if subscription.state != "active" else ""
