"""The body of a `put`: from the argument, a file or stdin; JSON, text or bytes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from bide.cli.errors import usage_error

__all__ = ["Form", "decode", "lines_in_bursts", "read"]

Form = Literal["json", "text", "bytes"]

_CHUNK = 1 << 20
_BURST = 1_000

_OPENING = (b"{", b"[", b'"')
"""How JSON begins that is more than a word."""


def read(body: str | None, file: str | None) -> bytes:
    """Return the bytes that were meant, wherever they are.

    Raises:
        click.UsageError: there is no body, or there are two.
    """
    if (body is None) == (file is None):
        raise usage_error("put needs one body: as an argument, '-' for stdin, or --file PATH")
    if file is not None:
        return Path(file).read_bytes()
    if body == "-":
        return sys.stdin.buffer.read()
    assert body is not None
    return body.encode("utf-8", "surrogateescape")  # what the shell handed over, byte by byte


def decode(data: bytes, form: Form, where: str = "the body") -> Any:
    """Return a body as the queue takes it.

    Raises:
        click.UsageError: it is not of the form that was promised.
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
            f"{where} is no UTF-8 text ({error.reason} at byte {error.start}); put it with --bytes"
        ) from error
    except msgspec.DecodeError as error:
        shown = data[:40].decode(errors="replace") + ("..." if len(data) > 40 else "")
        # Of a bare word the parser says nothing that would help.
        why = f" ({error})" if data.lstrip().startswith(_OPENING) else ""
        raise usage_error(
            f"{where} is no JSON{why}: {shown!r}; put it as a string with --text"
        ) from error


def lines_in_bursts(stream: IO[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Return the lines of a stream with their numbers, as many at a time as have come together.

    Nothing waits for a burst to fill: what one read brought is put, up to a thousand a commit, so
    that lines which trickle in are put as they come.
    """
    number, rest = 0, b""
    read1 = getattr(stream, "read1", stream.read)
    while True:
        chunk = read1(_CHUNK)
        whole = (rest + chunk).split(b"\n")
        rest = whole.pop() if chunk else b""
        lines = []
        for line in whole:
            number += 1
            if line.strip():
                lines.append((number, line.removesuffix(b"\r")))
        for start in range(0, len(lines), _BURST):
            yield lines[start : start + _BURST]
        if not chunk:
            return
