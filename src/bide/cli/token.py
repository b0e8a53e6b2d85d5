"""`bide token`: the tokens that give access to the server."""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from bide.cli.groups import Group
from bide.cli.options import on_any_store, on_store, text_option, time_option
from bide.cli.output import Output
from bide.cli.store import Store
from bide.cli.tables import TEXT, Cell, Column
from bide.cli.times import iso, local, now_ms, relative
from bide.model.errors import InvalidArgument

if TYPE_CHECKING:
    from bide.server.access import Token, Tokens

__all__ = ["token"]

COLUMNS = (
    Column("id"), Column("namespace"), Column("scopes"), Column("made", falls=2),
    Column("good until", falls=3), Column("", falls=1, right=True),
    Column("name", least=TEXT, falls=4),
)  # fmt: skip


class _Scopes(click.Choice[str]):
    """A scope; the error for several in one option says how to write them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        parts = [part.strip() for part in str(value).split(",")]
        if len(parts) > 1 and all(part in self.choices for part in parts):
            self.fail(f"write {' '.join(f'--scope {part}' for part in parts)}", param, ctx)
        return super().convert(value, param, ctx)


@click.group(cls=Group)
def token() -> None:
    """Create, list or revoke the tokens of the server.

    The store keeps hashes of the tokens; every server on the store accepts them. A token is valid
    for the queues of one namespace, or for the whole store.

    \b
    Example:
      bide token create --namespace shop --scope produce
      bide token list
    """  # fmt: skip


@token.command()
@text_option(
    "--namespace",
    "NAME",
    "The namespace whose queues it gives access to; by default the whole store.",
)
@click.option(
    "--scope", "scopes", multiple=True, required=True,
    type=_Scopes(["produce", "consume", "read", "admin"]),
    help="What it allows; can be repeated. admin allows everything.",
)  # fmt: skip
@time_option("--expires", "How long the token is valid; by default it does not expire.")
@text_option("--name", "TEXT", "What it is used for.", "")
@on_any_store
def create(
    store: Store, out: Output, namespace: str | None, scopes: tuple[str, ...],
    expires: float | None, name: str,
) -> None:  # fmt: skip
    """Create a token, and print it once.

    \b
    Example:
      bide token create --namespace shop --scope produce --name "shop backend"
      bide token create --namespace shop --scope consume --scope read --expires 90d
    """  # fmt: skip
    expires_ms = None if expires is None else round(expires * 1000)
    if expires_ms == 0:
        raise click.BadParameter(
            "must be longer than 0; without --expires the token does not expire",
            param_hint="'--expires'",
        )
    text, made = _tokens(store).create(namespace, scopes, expires_ms=expires_ms, name=name)
    if out.as_json:
        out.json({"token": text, **_shown(made)})
    else:
        out.row(text)


@token.command(name="list")
@on_store
def list_(store: Store, out: Output) -> None:
    """List the tokens: their namespaces and scopes, not the tokens themselves.

    In a pipe, each line is: id, namespace, scopes, made, good until, name.

    \b
    Example:
      bide token list
    """
    out.items(
        _tokens(store).listed(), COLUMNS, facts=_shown, line=_line, cells=_cells,
        empty=lambda: f"no tokens in {store.shown}",
    )  # fmt: skip


def _line(one: "Token") -> tuple[str, ...]:
    return (
        one.id, one.namespace or "-", ",".join(one.scopes), iso(one.created),
        iso(one.expires) or "-", one.name,
    )  # fmt: skip


def _cells(one: "Token") -> list[Cell]:
    now = now_ms()
    until: list[Cell] = [("for ever", "dim"), ""]
    if one.expires is not None:
        style = "red" if one.expires <= now else ""
        until = [(local(one.expires, now), style), (relative(one.expires, now), "dim")]
    namespace = ("whole store", "dim") if one.namespace is None else one.namespace
    scopes = ",".join(one.scopes)
    return [(one.id, "bold"), namespace, scopes, local(one.created, now), *until, one.name]


@token.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@on_store
def revoke(store: Store, out: Output, ids: tuple[str, ...]) -> bool:
    """Revoke tokens at once; list shows the IDs.

    \b
    Example:
      bide token revoke 4be0643f1d98
    """
    tokens = _tokens(store)
    gone = {id: tokens.revoke(id) for id in ids}
    for id, done in gone.items():
        if out.as_json:
            out.json({"id": id, "revoked": done})
        else:
            out.row(f"{id} is {'revoked' if done else 'no token'}")
    return all(gone.values())


def _tokens(store: Store) -> "Tokens":
    from bide.server.access import Tokens

    if urlsplit(store.url).scheme in ("http", "https"):
        raise InvalidArgument(
            f"{store.shown} is a server, which does not give out its tokens; use the URL of the "
            "store that it serves, such as --url sqlite:///bide.db"
        )
    return Tokens(store.lane)


def _shown(token: "Token") -> dict[str, Any]:
    names = ("id", "namespace", "scopes", "name", "created", "expires")
    return {name: getattr(token, name) for name in names}
