"""rediss://: encrypted, and sure of whom one talks to; what is wrong with it is said."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from bide.engines.redis import RedisEngine
from bide.model.commands import Claim, Put
from bide.model.errors import StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Claimed
from tests.cluster import RedisCluster
from tests.sentinels import NAME
from tests.servers import PATIENCE, RedisServer, free_port
from tests.system.engines.redis.conftest import Open

Start = Callable[..., RedisServer]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with certificates: of the server, of another name, of a client."""
    folder = tmp_path_factory.mktemp("papers")
    issuer = trustme.CA()
    issuer.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "another-ca.pem"))
    for name, identities in {
        "server": ("localhost", "127.0.0.1"),
        "elsewhere": ("redis.example",),
        "client": ("bide.example",),
    }.items():
        paper = issuer.issue_cert(*identities)
        paper.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        chain = b"".join(blob.bytes() for blob in paper.cert_chain_pems)
        (folder / f"{name}.pem").write_bytes(chain)
    return folder


def tls(papers: Path, name: str = "server", clients: str = "no") -> dict[str, str]:
    return {
        "tls-cert-file": str(papers / f"{name}.pem"),
        "tls-key-file": str(papers / f"{name}.key"),
        "tls-ca-cert-file": str(papers / "ca.pem"),
        "tls-auth-clients": clients,
    }


@pytest.fixture
def port(start: Start, papers: Path) -> int:
    port = free_port()
    start(**{"tls-port": str(port)}, **tls(papers))
    return port


def works(engine: RedisEngine) -> bool:
    (_, reply) = engine.execute([Put("q", [Item("a", b"1")]), Claim("q", 1, 60_000, "w")])
    assert isinstance(reply, Claimed)
    return [message.id for message in reply.messages] == ["a"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_whose_issuer_is_known(
    open_engine: Open, papers: Path, port: int, host: str
) -> None:
    assert works(open_engine(f"rediss://{host}:{port}/2?ca={papers}/ca.pem"))
    waiter = open_engine(f"rediss://{host}:{port}?ca={papers}/ca.pem")
    notifier = waiter.notifier()
    assert notifier is not None
    waiter.execute([Claim("p", 1, 60_000, "w")], 5)
    open_engine(f"rediss://{host}:{port}?verify=none").execute([Put("p", [Item("a", b"1")])], 7)
    assert notifier.listen() == [("p", 7)]


@pytest.mark.parametrize("options", ["", "?ca={papers}/another-ca.pem"])
def test_a_server_whose_issuer_is_not_known(
    open_engine: Open, papers: Path, port: int, options: str
) -> None:
    url = f"rediss://localhost:{port}{options.format(papers=papers)}"
    with pytest.raises(StoreUnavailable, match=r"certificate is not trusted here.*\?ca="):
        open_engine(url)


def test_a_server_that_is_trusted_blindly(open_engine: Open, port: int) -> None:
    assert works(open_engine(f"rediss://localhost:{port}?verify=none"))


def test_a_server_of_another_name(open_engine: Open, start: Start, papers: Path) -> None:
    port = free_port()
    start(**{"tls-port": str(port)}, **tls(papers, "elsewhere"))
    url = f"rediss://localhost:{port}?ca={papers}/ca.pem"
    with pytest.raises(StoreUnavailable, match="connect by the name that it is for"):
        open_engine(url)
    assert works(open_engine(f"{url}&verify=ca"))
    with pytest.raises(StoreUnavailable, match="certificate is not trusted here"):
        open_engine(f"rediss://localhost:{port}?ca={papers}/another-ca.pem&verify=ca")


def test_a_server_that_wants_to_know_its_clients(
    open_engine: Open, start: Start, papers: Path
) -> None:
    port = free_port()
    start(**{"tls-port": str(port)}, **tls(papers, clients="yes"))
    url = f"rediss://localhost:{port}?ca={papers}/ca.pem"
    with pytest.raises(StoreUnavailable, match="does it want a certificate of this client"):
        open_engine(f"{url}&reconnect=50ms")
    assert works(open_engine(f"{url}&cert={papers}/client.pem&cert_key={papers}/client.key"))
    with pytest.raises(StoreUnavailable, match=r"KEY_VALUES_MISMATCH.*belong together"):
        open_engine(f"{url}&cert={papers}/client.pem&cert_key={papers}/server.key&reconnect=50ms")
    with pytest.raises(StoreUnavailable, match=r"No such file.*readable files"):
        open_engine(f"{url}&cert={papers}/none.pem&cert_key={papers}/none.key&reconnect=50ms")


def test_a_port_of_the_other_kind(open_engine: Open, start: Start, port: int) -> None:
    with pytest.raises(StoreUnavailable, match=r"is it a port for TLS \(rediss://\)"):
        open_engine(f"redis://localhost:{port}?reconnect=50ms")
    plain = start(port=free_port())
    with pytest.raises(StoreUnavailable, match=r"or one without \(redis://\)"):
        open_engine(f"rediss://localhost:{plain.port}?timeout=300ms&reconnect=50ms")


@pytest.fixture
def watched(start: Start, papers: Path, tmp_path: Path) -> Iterator[str]:
    """Provide host:port of a sentinel that speaks nothing but TLS, of a master that does so."""
    master, port = free_port(), free_port()
    start(**{"tls-port": str(master), "tls-replication": "yes"}, **tls(papers))
    file = tmp_path / "sentinel.conf"
    lines = {
        "port": "0",
        "tls-port": str(port),
        "tls-replication": "yes",
        "dir": str(tmp_path),
        "logfile": str(tmp_path / "log"),
        **tls(papers),
        "sentinel monitor": f"{NAME} 127.0.0.1 {master} 1",
    }
    file.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    program = shutil.which("redis-server")
    assert program is not None, "no redis-server on PATH: run `make test`, or tools/servers"
    process = subprocess.Popen(
        [program, str(file), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait(PATIENCE)


def test_sentinels_behind_tls(open_engine: Open, watched: str, papers: Path) -> None:
    url = f"rediss+sentinel://{watched}/{NAME}"
    assert works(open_engine(f"{url}?ca={papers}/ca.pem&reconnect={PATIENCE}"))
    with pytest.raises(StoreUnavailable, match="certificate is not trusted here"):
        open_engine(url)
    with pytest.raises(StoreUnavailable, match=r"is it a port for TLS \(rediss://\)"):
        open_engine(f"{url}?ca={papers}/ca.pem&sentinel_tls=no")


def test_a_cluster_is_reached_encrypted(open_engine: Open, papers: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(tls(papers))
    cluster = RedisCluster(tmp_path, **options)
    try:
        engine = open_engine(f"{cluster.url}?ca={papers}/ca.pem")
        assert works(engine)
        notifier = engine.notifier()
        assert notifier is not None
        with pytest.raises(StoreUnavailable, match="ca="):
            open_engine(cluster.url)
        engine.close()
    finally:
        cluster.stop()
