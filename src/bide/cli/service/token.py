"""`bide token`: the tokens that give access to the server."""

from shlex import quote
from typing import Any

import click

from bide.cli import option
from bide.cli.action_log import logged
from bide.cli.command import on_any_store, on_store
from bide.cli.output import TEXT, Cell, Column, Output, warn
from bide.cli.program import Group
from bide.cli.store import CommandStore
from bide.cli.times import iso, local, now_ms, read_duration, relative, when
from bide.model.errors import InvalidArgument
from bide.server.access.tokens import Token, Tokens

COLUMNS = (
    Column("id"),
    Column("namespace"),
    Column("rights", least=TEXT),
    Column("expires", extra=True),
    Column("", right=True, extra=True),
    Column("used", extra=True),
    Column("queues", extra=True),
    Column("created", extra=True),
    Column("name", least=TEXT),
)

NEVER = "never"


def _lifetime(value: str | float) -> float | str:
    """Return a lifetime in seconds, or `NEVER`."""
    if value == NEVER:
        return NEVER
    seconds = read_duration(value, "time")
    if not seconds:
        raise click.BadParameter(
            f"must be longer than 0; {NEVER} makes a token that does not expire"
        )
    return seconds


def _expires_option(help: str, **more: Any) -> option.Decorator:
    return click.option("--expires", type=_lifetime, metavar="TIME", help=help, **more)


@click.group(cls=Group, no_args_is_help=False)
def token() -> None:
    """Create, list, rotate or revoke the tokens of the server.

    The store keeps hashes of the tokens; every server on the store accepts them. A token is valid
    for the queues of one namespace, or for the whole store.

    \b
    Example:
      bide token create --name backend --namespace shop --rights put,change
      bide token list
      bide token rotate backend --overlap 1d
    """


@on_any_store(group=token)
@option.text("--namespace", "NAME", "The namespace that it is for; by default the whole store.")
@click.option(
    "--rights",
    multiple=True,
    metavar="RIGHT,...",
    help="What it allows: put, change (replace, reschedule, cancel), consume, read, bodies (see "
    "bodies and headers when reading), admin (everything).",
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["produce", "consume", "read", "admin"]),
    help="A set of rights: produce is put,change; read is read,bodies. Can be repeated.",
)
@click.option(
    "--queues",
    multiple=True,
    default=["*"],
    metavar="PATTERN",
    help="The queues that it is for, such as 'orders.*'; all by default. Can be repeated.",
)
@_expires_option("How long the token is valid, or never.", default="90d", show_default=True)
@option.text("--name", "TEXT", "What it is used for; rotate and revoke take it.", "")
@logged("createToken")
def create(
    store: CommandStore,
    out: Output,
    namespace: str | None,
    rights: tuple[str, ...],
    scopes: tuple[str, ...],
    queues: tuple[str, ...],
    expires: float | str,
    name: str,
) -> None:
    """Create a token, and print it once; stderr says when it expires.

    \b
    Example:
      bide token create --namespace shop --scope produce --name backend
      bide token create --namespace shop --rights consume --queues 'orders.*'
    """
    from bide.server.access.rights import SCOPES

    all_rights = [right.strip() for argument in rights for right in argument.split(",")]
    all_rights += [right for scope in scopes for right in SCOPES[scope]]
    if not all_rights:
        raise click.UsageError("Missing option '--rights'. For example: --rights put,change")
    text, record = _tokens(store).create(
        namespace, all_rights, queues=queues, expires_ms=_milliseconds(expires), name=name
    )
    _print_token(out, text, record)


@on_store(click.argument("name", metavar="NAME"), group=token)
@option.time("--overlap", "How long the former token stays valid; by default it ends at once.")
@_expires_option("How long the new token is valid, or never; by default as the former was.")
@logged("rotateToken")
def rotate(
    store: CommandStore, out: Output, name: str, overlap: float | None, expires: float | str | None
) -> bool:
    """Replace a token, named by its name or ID, by a new one with the same rights.

    \b
    Example:
      bide token rotate backend --overlap 1d
    """
    from bide.server.access.tokens import SAME

    expires_ms = SAME if expires is None else _milliseconds(expires)
    overlap_ms = round((overlap or 0) * 1000)
    rotated = _tokens(store).rotate(name, overlap_ms=overlap_ms, expires_ms=expires_ms)
    if rotated is None:
        warn(f"{name} is not a token; bide token list shows them")
        return False
    text, record = rotated
    _print_token(out, text, record)
    return True


def _milliseconds(expires: float | str) -> int | None:
    """Return a lifetime in milliseconds, `None` for `NEVER`."""
    return None if isinstance(expires, str) else round(expires * 1000)


def _print_token(out: Output, text: str, record: Token) -> None:
    """Print a token, which is shown this once; say on stderr when it expires."""
    if out.as_json:
        out.json({"token": text, **_facts(record)})
        return
    out.row(text)
    for former in record.former:
        warn(f"the former token is accepted until {local(former.until)}")
    if record.expires is None:
        warn("it does not expire")
    else:
        rotate_command = f"bide token rotate {quote(record.name or record.id)}"
        warn(f"it expires {when(record.expires)}; {rotate_command} makes the next one")


@on_store(group=token, name="list")
def list_(store: CommandStore, out: Output) -> None:
    """List the tokens: what they allow and when they were used, not the tokens themselves.

    In a pipe, each line is: id, namespace, rights, created, expires, name, queues, used.

    \b
    Example:
      bide token list
    """
    out.items(
        _tokens(store).listed(),
        COLUMNS,
        facts=_facts,
        line=_line,
        cells=_cells,
        empty=f"no tokens in {store.shown}",
    )


def _line(token: Token) -> tuple[str, ...]:
    return (
        token.id,
        token.namespace or "-",
        ",".join(token.rights),
        iso(token.created),
        iso(token.expires) or "-",
        token.name,
        ",".join(token.queues),
        iso(token.used) or "-",
    )


def _cells(token: Token) -> list[Cell]:
    now = now_ms()
    until: list[Cell] = [("for ever", "dim"), ""]
    if token.expires is not None:
        style = "red" if token.expires <= now else ""
        until = [(local(token.expires), style), (relative(token.expires), "dim")]
    namespace = ("whole store", "dim") if token.namespace is None else token.namespace
    rights, queues = ",".join(token.rights), ",".join(token.queues)
    used = ("never", "dim") if token.used is None else local(token.used)
    return [
        (token.id, "bold"),
        namespace,
        rights,
        *until,
        used,
        queues,
        local(token.created),
        token.name,
    ]


@on_store(click.argument("names", nargs=-1, required=True, metavar="NAME..."), group=token)
@logged("revokeToken")
def revoke(store: CommandStore, out: Output, names: tuple[str, ...]) -> dict[str, bool]:
    """Revoke tokens at once, by name or ID; list shows both.

    \b
    Example:
      bide token revoke 4be0643f1d98
    """
    tokens = _tokens(store)
    revoked = {name: tokens.revoke(name) is not None for name in names}
    for name, existed in revoked.items():
        state = "revoked" if existed else "not a token"
        out.line({"id": name, "revoked": existed}, f"{name} is {state}")
    return revoked


def _tokens(store: CommandStore) -> Tokens:
    if store.remote:
        raise InvalidArgument(
            f"{store.shown} is a server, which does not give out its tokens; use the URL of the "
            "store that it serves, such as --url sqlite:///bide.db"
        )
    return Tokens(store.lane)


def _facts(token: Token) -> dict[str, Any]:
    names = ("id", "namespace", "rights", "queues", "name", "created", "expires", "used")
    return {name: getattr(token, name) for name in names}
