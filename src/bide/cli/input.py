"""Read input of any length, and keep no more of it than a message may have."""

import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from bide.cli.errors import usage_error
from bide.model.body import parse, why_unreadable
from bide.model.limits import MAX_BYTES

Form = Literal["json", "text", "bytes"]
"""What a body is given as."""

CHUNK_BYTES = 1 << 20
"""The maximum number of bytes that one read takes."""

ESCAPE_FACTOR = 6
"""How many times as long as a body its JSON text may be: `\\u0041` is one letter."""


def read_body(
    body: str | None, file: str | None, form: Form, max_body: int, command: str = "put"
) -> bytes:
    """Return the bytes of the body from the argument, a file or stdin.

    Raises:
        click.UsageError: there is no body, or two, or it is too long; the rest is not read.
    """
    if (body is None) == (file is None):
        raise usage_error(
            f"{command} needs one body: as an argument, '-' for stdin, or --file PATH"
        )
    if file is not None:
        with Path(file).open("rb") as stream:
            return _read(stream, form, max_body)
    if body == "-":
        return _read(sys.stdin.buffer, form, max_body)
    assert body is not None
    return body.encode("utf-8", "surrogateescape")  # the bytes that the shell passed


def check_size(size: int, form: Form, max_body: int, where: str = "the body") -> None:
    """Check that a body is not too long so far.

    Raises:
        click.UsageError: it is too long.
    """
    most = _most_bytes(form, max_body)
    if size > most:
        as_json = f" of JSON text, {ESCAPE_FACTOR} times --max-body" if form == "json" else ""
        raise usage_error(
            f"{where} has more than {most:,} bytes{as_json}; the rest was not read: store it "
            "elsewhere and put a reference, or raise --max-body"
        )


def export_lines(stream: IO[bytes], max_body: int) -> Iterator[bytes]:
    """Yield the lines of an export.

    Raises:
        click.UsageError: a line is longer than a message can be.
    """
    # With its headers and failures; no read takes more than the system's largest number.
    most = min(ESCAPE_FACTOR * max_body + MAX_BYTES, sys.maxsize - 1)
    number = 0
    while line := stream.readline(most + 1):
        number += 1
        if len(line) > most:
            raise usage_error(
                f"line {number} has more than {most:,} bytes, so it is not a message of an export "
                "with bodies of up to --max-body; the rest was not read, and the lines of earlier "
                "commits are in the queue"
            )
        yield line


def _read(stream: IO[bytes], form: Form, max_body: int) -> bytes:
    """Read a body to its end.

    Raises:
        click.UsageError: it is too long; the rest is not read.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        # One byte more than is allowed tells that it is too long.
        wanted = min(CHUNK_BYTES, _most_bytes(form, max_body) + 1 - size)
        part = stream.read(wanted)
        parts.append(part)
        size += len(part)
        check_size(size, form, max_body)
        if len(part) < wanted:  # the end; a terminal would wait for another one
            return b"".join(parts)


def _most_bytes(form: Form, max_body: int) -> int:
    """Return how many bytes of input a body may have."""
    return max_body * (ESCAPE_FACTOR if form == "json" else 1)


def decode_body(data: bytes, form: Form, where: str = "the body") -> Any:
    """Return a body as the queue takes it.

    Raises:
        click.UsageError: it does not have the form that the user named.
    """
    if form == "bytes":
        return data
    if form == "json":
        data = data.removeprefix(BOM_UTF8)  # as editors on Windows write it
    try:
        return data.decode() if form == "text" else parse(data)
    except (ValueError, RecursionError) as error:
        shown = data[:40].decode(errors="replace") + ("..." if len(data) > 40 else "")
        is_no_text = isinstance(error, UnicodeDecodeError)
        expected, fix = ("UTF-8 text", "--bytes") if is_no_text else ("JSON", "--text")
        reason = why_unreadable(data, error)
        raise usage_error(
            f"{where} is not {expected} ({reason}): {shown!r}; put it with {fix}"
        ) from error
