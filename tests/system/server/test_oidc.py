"""JWTs of an issuer that runs as a process of its own."""

import base64
import hashlib
import hmac
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, TCPServer
from typing import Any

import pytest

from bide.model.limits import MAX_DOCUMENT, MAX_FAILED_LOGINS, MAX_KEYS, MAX_SUBJECT
from bide.server.access import oidc
from bide.server.access.oidc import OidcSettings
from bide.server.settings import Settings, read_file
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve


class IssuerProcess:
    """Asks an issuer for what a test needs."""

    def __init__(self, port: int, process: "subprocess.Popen[str]") -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.process = process

    def ask(self, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        with urllib.request.urlopen(f"{self.url}{path}", data, timeout=60) as reply:
            return json.load(reply)

    def token(self, key: str = "rsa", header: Any = None, **claims: Any) -> str:
        now = int(time.time())
        usual = {
            "iss": self.url,
            "aud": "bide",
            "sub": "ann@shop.example",
            "exp": now + 600,
            "bide_namespace": "shop",
            "bide_rights": "put read",
        }
        given = {name: value for name, value in (usual | claims).items() if value is not None}
        signed: str = self.ask("/sign", {"claims": given, "key": key, "header": header or {}})
        return signed


@contextmanager
def issuing(port: int = 0) -> Iterator[IssuerProcess]:
    command = [sys.executable, "-m", "tests.system.server.issuer", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield IssuerProcess(int(process.stdout.readline()), process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def issuer() -> Iterator[IssuerProcess]:
    with issuing() as found:
        yield found


@pytest.fixture
def client(serve: Serve, issuer: IssuerProcess) -> Client:
    return serve(oidc=OidcSettings(issuer=issuer.url, audience="bide"))


def status(client: Client, text: str) -> int:
    return client.with_token(text).get("/v1").status


@pytest.mark.parametrize("key", ["rsa", "ec", "okp"])
def test_claims_say_what_a_caller_may_do(client: Client, issuer: IssuerProcess, key: str) -> None:
    queues = ["orders*"]
    shop = client.with_token(issuer.token(key, bide_queues=queues))
    assert shop.get("/v1").json == shop.get("/v1").json | {
        "namespace": "shop",
        "rights": ["put", "read"],
        "queues": queues,
    }
    assert shop.put(f"{Q}/messages/m", {"body": 1}).status == 201
    assert shop.post(f"{Q}/claim").status == 403
    assert shop.put("/v1/queues/mail/messages/m", {"body": 1}).status == 403
    assert client.get("/v1").status == 401


def forged(issuer: IssuerProcess, algorithm: str, key: bytes) -> str:
    """Return a JWT signed with a key that everybody knows, or not at all."""

    def encoded(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = issuer.token().split(".")[1].encode()
    text = encoded({"alg": algorithm, "typ": "JWT", "kid": "rsa"}) + b"." + claims
    signature = b"" if algorithm == "none" else hmac.digest(key, text, hashlib.sha256)
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def test_what_is_wrong_is_refused_and_said(client: Client, issuer: IssuerProcess) -> None:
    now = int(time.time())
    public = json.dumps(issuer.ask("/jwks")["keys"][0]).encode()
    good = issuer.token()
    head, claims, signature = good.split(".")
    other = issuer.token(sub="eve@shop.example").split(".")[1]
    wrong = {
        "expired": issuer.token(exp=now - 60),
        "yet valid": issuer.token(nbf=now + 60),
        "udience": issuer.token(aud="another"),
        "ssuer": issuer.token(iss="https://another.example"),
        '"exp" claim': issuer.token(exp=None),
        '"aud" claim': issuer.token(aud=None),
        '"sub" claim': issuer.token(sub=None),
        "no namespace": issuer.token(bide_namespace=None),
        "is not a valid name": issuer.token(bide_namespace="*"),
        "bide's own": issuer.token(bide_namespace="bide.server"),
        "not a pattern": issuer.token(bide_queues="[a-z]"),
        "ignature": f"{head}.{other}.{signature}",
        "algorithm 'none'": forged(issuer, "none", b""),
        "algorithm 'HS256'": forged(issuer, "HS256", public),
        "no key 'ec'": issuer.token("rsa", {"kid": "ec"}),
        "no key 'unknown'": issuer.token("rsa", {"kid": "unknown"}),
        "JWT is not accepted": f"{head}.{claims}.",
    }
    for why, text in wrong.items():
        refused = client.with_token(text).get("/v1")
        assert refused.status == 401, why
        assert why in refused.problem["detail"]
        assert text not in refused.problem["detail"]
    assert status(client, issuer.token(exp=now - 5)) == 200  # within the leeway
    assert status(client, issuer.token(header={"kid": None})) == 200  # its only RSA key
    assert status(client, good) == 200


def test_many_that_renew_an_expired_jwt_at_once_are_let_in(
    client: Client, issuer: IssuerProcess
) -> None:
    expired = client.with_token(issuer.token(exp=int(time.time()) - 60))
    assert {expired.get("/v1").status for _ in range(MAX_FAILED_LOGINS + 5)} == {401}
    assert status(client, issuer.token()) == 200
    wrong = client.with_token(issuer.token(exp=int(time.time()) - 60)[:-8])
    told = [wrong.get("/v1").status for _ in range(MAX_FAILED_LOGINS + 1)]
    assert told == [401] * MAX_FAILED_LOGINS + [429]


def test_claims_have_the_names_and_values_of_the_issuer(
    serve: Serve, issuer: IssuerProcess
) -> None:
    settings = OidcSettings(
        issuer=issuer.url,
        audience="bide",
        jwks=f"{issuer.url}/jwks",
        namespace="*",
        rights_claim="realm_access.roles",
        rights={"ops": ["admin"], "shop": ["put", "change"]},
    )
    client = serve(oidc=settings)
    roles: dict[str, Any] = {"realm_access": {"roles": ["shop", "offline", 1]}}
    known = client.with_token(issuer.token(bide_namespace=None, **roles)).get("/v1").json
    assert (known["namespace"], known["rights"]) == (None, ["put", "change"])
    assert client.with_token(issuer.token()).get("/v1").json["rights"] == []


def test_tokens_work_beside_jwts(client: Client, make_token: Any) -> None:
    assert status(client, make_token("shop", "read")) == 200
    assert status(client, "wrong") == 401


def test_new_keys_are_fetched_and_unknown_ones_cause_no_fetch_each(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with issuing() as issuer:
        client = serve(oidc=OidcSettings(issuer=issuer.url, audience="bide"))
        old = issuer.token("rsa")
        unknown = issuer.token("rsa", {"kid": "made-up"})
        assert status(client, old) == 200
        for _ in range(10):
            assert status(client, unknown) == 401
        assert issuer.ask("/fetches") == 1
        issuer.ask("/rotate", {"keys": {"new": "EC"}})
        new = issuer.token("new")
        assert status(client, new) == 401  # so soon after the last fetch
        monkeypatch.setattr(oidc, "COOLDOWN", 0)
        assert status(client, new) == 200
        assert status(client, old) == 401
        assert issuer.ask("/fetches") >= 2


def test_known_keys_serve_while_the_issuer_is_down(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with issuing() as issuer:
        client = serve(oidc=OidcSettings(issuer=issuer.url, audience="bide"))
        text, other = issuer.token(), issuer.token("ec")
        assert status(client, text) == 200
    monkeypatch.setattr(oidc, "COOLDOWN", 0)
    monkeypatch.setattr(oidc, "REFRESH", 0)
    assert status(client, text) == 200
    monkeypatch.setattr(oidc, "MAX_STALE", 0)
    late = client.with_token(other).get("/v1")
    assert (late.status, late.headers["retry-after"]) == (503, "5")


def test_what_an_issuer_may_say_is_bounded(client: Client, issuer: IssuerProcess) -> None:
    assert status(client, issuer.token(sub="s" * MAX_SUBJECT)) == 200
    assert status(client, issuer.token(sub="s" * (MAX_SUBJECT + 1))) == 401
    with issuing() as other:
        settings = OidcSettings(issuer=other.url, audience="bide")
        for count in (MAX_KEYS, MAX_KEYS + 1):
            other.ask("/rotate", {"keys": {f"k{n}": "EC" for n in range(count)}})
            if count == MAX_KEYS:
                assert len(oidc.keys_of(settings)) == MAX_KEYS
        with pytest.raises(ValueError, match="up to 100 keys"):
            oidc.keys_of(settings)
        other.ask("/rotate", {"keys": {"k": "EC"}})
        with urllib.request.urlopen(f"{other.url}/jwks", timeout=60) as reply:
            size = len(reply.read())
        for length in (MAX_DOCUMENT - size + 1, MAX_DOCUMENT - size + 2):
            other.ask("/rotate", {"keys": {"k" * length: "EC"}})
            if length == MAX_DOCUMENT - size + 1:
                assert len(oidc.keys_of(settings)) == 1
        with pytest.raises(ValueError, match="larger than 524,288 bytes"):
            oidc.keys_of(settings)


def test_an_issuer_that_is_down_from_the_start(serve: Serve, make_token: Any) -> None:
    with issuing() as issuer:
        text = issuer.token()
    client = serve(oidc=OidcSettings(issuer=issuer.url, audience="bide"))
    assert [status(client, text) for _ in range(2)] == [503, 503]
    assert status(client, make_token("shop", "read")) == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
    ],
)
def test_an_issuer_that_does_not_speak_http_is_down(
    serve: Serve, make_token: Any, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    class Wrong(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(answer)

    with TCPServer(("127.0.0.1", 0), Wrong) as wrong, issuing() as issuer:
        threading.Thread(target=wrong.serve_forever).start()
        keys = f"http://127.0.0.1:{wrong.server_address[1]}"
        client = serve(oidc=OidcSettings(issuer=issuer.url, audience="bide", jwks=keys))
        reply = client.with_token(issuer.token()).get("/v1")
        wrong.shutdown()
    assert reply.status == 503
    assert reply.problem["type"] == "/docs#problem-issuer-unavailable"
    assert "cannot be fetched" in caplog.text


def test_keys_of_unknown_kinds_are_left_out(serve: Serve, issuer: IssuerProcess) -> None:
    class Odd(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            with urllib.request.urlopen(f"{issuer.url}/jwks", timeout=60) as reply:
                keys = json.load(reply)["keys"]
            data = json.dumps({"keys": [{"kty": ["RSA"]}, {"kty": "oct"}, 5, *keys]}).encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + data)

    with TCPServer(("127.0.0.1", 0), Odd) as odd:
        threading.Thread(target=odd.serve_forever).start()
        keys = f"http://127.0.0.1:{odd.server_address[1]}"
        settings = OidcSettings(issuer=issuer.url, audience="bide", jwks=keys)
        assert status(serve(oidc=settings), issuer.token()) == 200
        odd.shutdown()


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('issuer = "http://id.example"\naudience = "bide"', "must begin with https://"),
        ('issuer = "https://id.example"', "missing required field `audience`"),
        ('issuer = "https://id.example"\naudience = "b"\nalgorithms = ["HS256"]', "RS256"),
        (
            'issuer = "https://id.example"\naudience = "b"\nrights = {x = ["write"]}',
            "there are admin",
        ),
    ],
)
def test_settings_that_cannot_be(tmp_path: Any, lines: str, why: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f"[oidc]\n{lines}\n")
    with pytest.raises(ValueError, match=re.escape(why)):
        read_file(file)


def test_no_auth_and_an_issuer_contradict_each_other() -> None:
    settings = Settings(auth="off", oidc=OidcSettings(issuer="https://id.example", audience="b"))
    with pytest.raises(ValueError, match="oidc is set"):
        settings.check()
