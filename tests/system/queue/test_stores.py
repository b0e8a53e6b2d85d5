"""Which store a queue stands on, and what is said when there is none."""

import sqlite3
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import bide
from bide import InvalidArgument, NotAStore, SchemaTooNew, StoreUnavailable
from bide.engines import registry
from bide.engines.registry import mask
from bide.testing.hooks import lane_of

FACES = [bide.Queue, bide.AsyncQueue]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BIDE_URL", raising=False)
    return tmp_path


def test_the_default_is_a_file_here(here: Path) -> None:
    with bide.Queue("orders") as orders:
        orders.put(1)
        assert (here / "bide.db").exists()
        assert orders.url == "sqlite:///bide.db"


def test_the_environment_names_the_store(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIDE_URL", f"sqlite:///{here}/elsewhere.db")
    with bide.Queue("orders") as orders:
        orders.put(1)
    assert (here / "elsewhere.db").exists()
    assert not (here / "bide.db").exists()


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIDE_URL", "sqlite:////nowhere/at/all.db")
    with bide.Queue("orders", "memory://argument") as orders:
        assert orders.put(1)


def test_an_empty_url_is_refused(here: Path) -> None:
    for face in FACES:
        with pytest.raises(bide.InvalidArgument, match=r"url='' names no store.* leave url out"):
            face("orders", "")
    with pytest.raises(bide.InvalidArgument, match="url='' names no store"):
        bide.App("")
    with pytest.raises(bide.InvalidArgument, match="url='' names no store"):
        bide.queues("")
    assert list(here.iterdir()) == []


def test_an_empty_variable_is_as_none_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BIDE_URL", "")
    for name in ("orders", "mails"):
        with bide.Queue(name) as queue:
            assert queue.url == "sqlite:///bide.db"
    (line,) = caplog.messages
    assert line.startswith("BIDE_URL is empty, as if it were not set: the store is sqlite:///bide")


def test_the_file_is_where_it_was_named_even_if_the_program_goes_elsewhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "other").mkdir()
    with bide.Queue("orders", "sqlite:///bide.db") as orders:
        monkeypatch.chdir(here / "other")
        orders.put(1)
    assert (here / "bide.db").exists()


def test_queues_on_one_url_share_a_lane(here: Path) -> None:
    url = f"sqlite:///{here}/bide.db"
    with bide.Queue("a", url) as first, bide.Queue("b", url) as second:
        assert lane_of(first) is lane_of(second)
        first.put(1)
        first.close()
        assert second.put(1)


def test_the_same_name_elsewhere_is_another_store(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "other").mkdir()
    with bide.Queue("orders", "sqlite:///bide.db") as first:
        first.put(1, id="a")
        monkeypatch.chdir(here / "other")
        with (
            bide.Queue("orders", "sqlite:///bide.db") as second,
            bide.Queue("orders", f"sqlite:///{here}/bide.db") as third,
        ):
            assert second.get("a") is None
            assert lane_of(third) is lane_of(first)
    assert (here / "other" / "bide.db").exists()


@pytest.mark.parametrize("face", FACES)
def test_a_repr_tells_name_store_and_whether_it_was_closed(face: Any) -> None:
    queue = face("orders", "memory://repr")
    assert repr(queue) == f"<{face.__name__} 'orders' at memory://repr>"
    queue._close()
    assert repr(queue) == f"<{face.__name__} 'orders' at memory://repr, closed>"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("url", "text"),
    [
        (
            "carrier://pigeon",
            "names no store: it must begin with one of http://, https://, memory://",
        ),
        ("bide.db", "for a file write sqlite:///bide.db"),
        ("/var/lib/bide.db", "for a file write sqlite:////var/lib/bide.db"),
        ("localhost:6379", "for this server write redis://localhost:6379"),
        ("127.0.0.1:8642/", "for this server write http://127.0.0.1:8642/"),
        ("db:1/shop", "for a file write sqlite:///db:1/shop"),
        ("redis:6379/0", "write redis://redis:6379/0"),
        ("postgres:5432", "write postgres://postgres:5432"),
        ("sqlite://bide.db", "three slashes before a relative path.*sqlite:///bide.db"),
        ("sqlite:///", "needs the name of a file"),
        ("sqlite:///x%00.db", "needs the name of a file"),
        ("sqlite:///:memory:", "use the URL memory://"),
        ("sqlite:///shop#1.db", "#1.db would not be part of the file: write # as %23"),
        ("sqlite:///bide.db?durable=yes", "has no option 'durable'; it knows: durability, timeout"),
        ("sqlite:///bide.db?durability=maybe", "must be full or normal"),
        ("sqlite:///bide.db?durability=", "has no value"),
        ("sqlite:///bide.db?timeout=soon", r"\?timeout='soon' is not a valid duration"),
        ("memory://name/path", "takes only a name"),
        ("memory://?durability=full", "has no option"),
        ("redis://[half", "is not a valid URL"),
        ("redis://cache?wait_replicas=all", "wait_replicas='all' must be a number"),
        ("redis://cache/orders", "db='orders' must be a number"),
        ("redis://cache?ca=ca.pem", "redis:// has no option 'ca'"),
        ("rediss://cache?verify=maybe", "must be full, ca or none"),
        ("redis://cache?timeout=0", r"\?timeout must be longer than 0"),
        ("unix://", "needs the path of a socket"),
    ],
)
def test_urls_that_name_no_store(face: Any, url: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        face("orders", url)


def test_a_path_is_no_url(here: Path) -> None:
    with pytest.raises(InvalidArgument, match="must be a str; for a file write 'sqlite:///"):
        bide.Queue("orders", here / "bide.db")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "redis://app:s3cret@cache:port/0",
        "redis://:s3cret@cache:70000",
        "rediss://s3cret@[half",
        "app:s3cret@cache:6379/0",
        "carrier://cache?password=s3cret",
        "carrier://cache?token=s3cret&x=1",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        bide.Queue("orders", url)
    assert "s3cret" not in str(raised.value)
    assert "***" in str(raised.value)


def test_what_is_no_secret_is_shown() -> None:
    assert mask("redis://app:s3cret@cache:6379/0?db=1") == "redis://app:***@cache:6379/0?db=1"
    assert mask("sqlite:////data/a@b.db?timeout=3") == "sqlite:////data/a@b.db?timeout=3"


def fake(monkeypatch: pytest.MonkeyPatch, scheme: str, value: str) -> None:
    point = EntryPoint(scheme, value, registry.ENTRY_POINTS)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])


def test_engines_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "fancy", "bide.engines.memory:from_url")
    with bide.Queue("orders", "fancy://x") as orders:
        assert orders.put(1)
    with pytest.raises(
        InvalidArgument,
        match="names no store: it must begin with one of fancy://, http://, https://, memory://",
    ):
        bide.Queue("orders", "carrier://")


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "amqp+tls", "bide_missing.engines.amqp:from_url")
    text = (
        r"amqp\+tls:// needs the package 'bide_missing', which is not installed: "
        r"pip install 'bide_missing\[amqp\]'"
    )
    with pytest.raises(InvalidArgument, match=text):
        bide.Queue("orders", "amqp+tls://cache")


def test_an_engine_cannot_take_the_place_of_a_built_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake(monkeypatch, "sqlite", "evil:from_url")
    with bide.Queue("orders", "sqlite:///bide.db") as orders:
        assert orders.put(1)


def test_a_directory_that_is_not_there(here: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{here}/not/there/bide.db") as orders:
        with pytest.raises(StoreUnavailable, match=r"there is no directory .*mkdir -p"):
            orders.put(1)
        (here / "not" / "there").mkdir(parents=True)
        assert orders.put(1)


def test_a_directory_is_no_file(here: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{here}") as orders:
        with pytest.raises(StoreUnavailable, match=r"is a directory; name a file in it: .*bide.db"):
            orders.counts()


def test_what_is_no_database_is_left_as_it_is(here: Path) -> None:
    photo = here / "photo.jpg"
    photo.write_bytes(b"\xff\xd8" * 5_000)
    with bide.Queue("orders", f"sqlite:///{photo}") as orders:
        for call in (lambda: orders.put(1), orders.counts, orders.claim):
            with pytest.raises(NotAStore, match="is not a SQLite database; it was left as it is"):
                call()
    assert photo.read_bytes() == b"\xff\xd8" * 5_000
    assert [path.name for path in here.iterdir()] == ["photo.jpg"]


def test_a_store_lives_in_the_file_of_an_application(here: Path) -> None:
    shop = sqlite3.connect(here / "shop.db")
    shop.executescript("CREATE TABLE message (mine); PRAGMA user_version = 7")
    with bide.Queue("orders", f"sqlite:///{here}/shop.db") as orders:
        assert orders.put(1)
    tables = shop.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert [name for (name,) in tables if not name.startswith("bide_")] == ["message"]
    marks = shop.execute("PRAGMA user_version"), shop.execute("PRAGMA application_id")
    assert [mark.fetchone() for mark in marks] == [(7,), (0,)]
    shop.close()


def test_a_store_of_a_newer_bide_is_left_as_it_is(here: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{here}/bide.db") as orders:
        orders.put(1)
    other = sqlite3.connect(here / "bide.db")
    other.execute("UPDATE bide_store SET schema_version = 99")
    other.commit()
    other.close()
    with bide.Queue("orders", f"sqlite:///{here}/bide.db") as orders:
        with pytest.raises(SchemaTooNew, match=r"schema 99, .*upgrade bide here"):
            orders.counts()


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        (5, "must be a str, not int"),
        (None, "must be a str, not NoneType"),
        ("\ud800", "is not valid Unicode text"),
        ("a\0", "has control characters in it"),
    ],
)
def test_the_beginning_of_names_is_text(here: Path, prefix: Any, text: str) -> None:
    with bide.Queue("orders") as orders:
        orders.put(1)
        with pytest.raises(InvalidArgument, match=f"prefix.*{text}"):
            bide.queues(prefix=prefix)
        with pytest.raises(InvalidArgument, match=f"queue.*{text}"):
            bide.search(queue=prefix, id="a")
