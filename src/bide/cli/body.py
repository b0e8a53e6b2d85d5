"""Bodies and headers of messages, as arguments give them."""

import sys
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from bide.cli.errors import usage_error
from bide.cli.option import Decorator, together

Form = Literal["json", "text", "bytes"]


def _form(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and ctx.params.get("form") is not None:
        raise click.UsageError("--text and --bytes cannot be used together", ctx)
    ctx.params["form"] = param.name if value else ctx.params.get("form")


option_form = together(
    click.option(
        "--text", is_flag=True, expose_value=False, callback=_form,
        help="The body is text, not JSON.",
    ),
    click.option(
        "--bytes", is_flag=True, expose_value=False, callback=_form,
        help="The body is bytes, stored unchanged.",
    ),
)  # fmt: skip
"""Take what a body is, if it is not JSON."""


def option_file(what: str) -> Decorator:
    """Take the file that something is read from: `--file`."""
    return click.option(
        "--file", type=click.Path(exists=True, dir_okay=False), metavar="PATH",
        help=f"Read the {what} from a file.",
    )  # fmt: skip


def read_headers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str] | None:
    """Return the headers of `--header`, `None` without one."""
    headers = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} must be NAME=VALUE", ctx, param)
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice", ctx, param)
        headers[name] = text
    return headers or None


def read_body(body: str | None, file: str | None, command: str = "put") -> bytes:
    """Return the bytes of the body from the argument, a file or stdin."""
    if (body is None) == (file is None):
        raise usage_error(
            f"{command} needs one body: as an argument, '-' for stdin, or --file PATH"
        )
    if file is not None:
        return Path(file).read_bytes()
    if body == "-":
        return sys.stdin.buffer.read()
    assert body is not None
    return body.encode("utf-8", "surrogateescape")  # the bytes that the shell passed


def decode_body(data: bytes, form: Form, where: str = "the body") -> Any:
    """Return a body as the queue takes it.

    Raises:
        click.UsageError: it does not have the form that the user named.
    """
    if form == "bytes":
        return data
    if form == "json" and not data.strip():
        raise usage_error(
            f"{where} is empty; JSON has at least a null, and --text takes it as an empty string"
        )
    try:
        return data.decode() if form == "text" else msgspec.json.decode(data)
    except UnicodeDecodeError as error:
        raise usage_error(
            f"{where} is not UTF-8 text ({error.reason} at byte {error.start}); put it with --bytes"
        ) from error
    except msgspec.DecodeError as error:
        shown = data[:40].decode(errors="replace") + ("..." if len(data) > 40 else "")
        # For a bare word the parser's text does not help.
        why = f" ({error})" if data.lstrip().startswith((b"{", b"[", b'"')) else ""
        raise usage_error(
            f"{where} is not JSON{why}: {shown!r}; put it as a string with --text"
        ) from error
