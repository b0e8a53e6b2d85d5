"""URLs that are wrong: the error names the fix, and shows nothing of a password."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.importing.foreign_redis import ForeignRedis
from bide.outbox.forwarder import table_of
from bide.targets.amqp import parse

SCHEMES = [
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
    "unix",
    "postgresql",
    "http",
    "https",
]
PASSWORDS = ["hu[sh]hush", "hu]sh", "[hush", "hu[sh/sh", "hu/shhush"]


def opened(url: str) -> Any:
    return bide.Queue("orders", url)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    ("reads", "scheme"),
    [
        *((opened, scheme) for scheme in SCHEMES),
        (table_of, "postgresql"),
        (ForeignRedis, "redis"),
        (parse, "amqp"),
    ],
)
def test_signs_in_a_password_that_must_be_encoded(
    reads: Callable[[str], Any], scheme: str, password: str
) -> None:
    with pytest.raises(bide.InvalidArgument) as refused:
        reads(f"{scheme}://u:{password}@127.0.0.1/x")
    text = str(refused.value)
    assert "u:***@" in text
    assert "sh" not in text.replace("//", "")
    assert ("%5B" if "[" in password or "]" in password else "%2F") in text


def test_brackets_of_an_address_are_no_fault() -> None:
    with bide.Queue("orders", "redis://u:p%5Ba%5D@[::1]:1/0") as orders:
        assert orders.url == "redis://u:***@[::1]:1/0"


@pytest.mark.parametrize("url", [" redis://cache", "sqlite:///w.db ", "\tmemory://", "http://a\n"])
def test_a_blank_at_an_end_is_not_part_of_a_url(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied with a blank, it named another file, or no known store."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(bide.InvalidArgument, match="begins or ends with a blank; remove it"):
        bide.Queue("orders", url)
    assert list(tmp_path.iterdir()) == []


def test_a_url_is_unicode() -> None:
    with pytest.raises(
        bide.InvalidArgument, match=r"'sqlite:///\\\\udce9.db' is not valid Unicode"
    ):
        bide.Queue("orders", "sqlite:///\udce9.db")
