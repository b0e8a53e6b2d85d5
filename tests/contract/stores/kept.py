"""Stores in files: of SQLite, of Redis and of PostgreSQL.

`python -m tests.contract.stores.kept` writes those of this version into a folder of its name.
"""

import gzip
import json
import os
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from bide.testing import FakeClock
from tests.contract.stores.reading import read
from tests.contract.stores.scene import START, fill
from tests.postgres_server import PostgresServer, new_folder, programs
from tests.servers import RedisServer

__all__ = ["ENDED", "KINDS", "VERSIONS", "content", "restore"]

HERE = Path(__file__).parent

KINDS = ("sqlite", "redis", "postgresql")

VERSIONS = sorted(path.name for path in HERE.glob("[0-9]*"))


def main() -> None:
    """Write the stores of this version."""
    folder = HERE / version("bide")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for kind in KINDS:
        with _empty(kind) as url:
            clock = FakeClock(START)
            tokens = fill(url, clock)
            told = read(url, clock, ENDED)
            content = {"now": clock.now(), **tokens, "ended": ENDED, "told": told}
            _write(folder / f"{kind}.json.gz", json.dumps(content).encode())
            _write(folder / f"{kind}.gz", _SAVE[kind](url))
    for path in sorted(folder.iterdir()):
        print(f"{path.relative_to(HERE.parents[2])}  {path.stat().st_size:,} bytes")


def content(release: str, kind: str) -> Any:
    """Return what a release has told of the store that it wrote."""
    return json.loads(gzip.decompress((HERE / release / f"{kind}.json.gz").read_bytes()))


def restore(release: str, kind: str, url: str) -> None:
    """Put the store that a release wrote where there is none."""
    _RESTORE[kind](url, gzip.decompress((HERE / release / f"{kind}.gz").read_bytes()))


ENDED = {
    "orders": ["cancelled"],
    "kept": ["acked", "expired", "cancelled", "purged", "moved", "buried"],
    "closed": ["paid"],
    "results": ["again"],
}
"""Ids of messages that are gone, by queue."""


@contextmanager
def _empty(kind: str) -> Iterator[str]:
    """Provide the URL of a store that does not exist yet."""
    with new_folder() as folder:
        if kind == "sqlite":
            yield f"sqlite:///{folder}/bide.db"
            return
        server = RedisServer(folder) if kind == "redis" else PostgresServer(folder)
        try:
            yield server.url
        finally:
            server.stop()


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, mtime=0))


def _path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _save_file(url: str) -> bytes:
    return _path_of(url).read_bytes()


def _restore_file(url: str, data: bytes) -> None:
    _path_of(url).write_bytes(data)


def _save_keys(url: str) -> bytes:
    """Return each key with its value, as Redis itself writes it.

    Those that expire are left out: replies that a client may ask for again, for a minute.
    """
    with redis.Redis.from_url(url) as client:
        keys = sorted(key for key in client.scan_iter() if client.ttl(key) == -1)
        pairs = [[b64encode(key).decode(), b64encode(client.dump(key)).decode()] for key in keys]
    return "".join(json.dumps(pair) + "\n" for pair in pairs).encode()


def _restore_keys(url: str, data: bytes) -> None:
    with redis.Redis.from_url(url) as client:
        for line in data.splitlines():
            key, value = json.loads(line)
            client.restore(b64decode(key), 0, b64decode(value))


def _save_schema(url: str) -> bytes:
    command = [str(programs() / "pg_dump"), "--no-owner", "--inserts", "--schema=bide", url]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _restore_schema(url: str, data: bytes) -> None:
    command = [str(programs() / "psql"), "-qX", "-vON_ERROR_STOP=1", "-o", os.devnull, url]
    subprocess.run(command, check=True, input=data)


_SAVE: dict[str, Callable[[str], bytes]] = {
    "sqlite": _save_file,
    "redis": _save_keys,
    "postgresql": _save_schema,
}

_RESTORE: dict[str, Callable[[str, bytes], None]] = {
    "sqlite": _restore_file,
    "redis": _restore_keys,
    "postgresql": _restore_schema,
}

if __name__ == "__main__":
    main()
