"""An OpenID Connect issuer as a process of its own: discovery, keys that rotate, signed JWTs.

`python -m tests.system.server.issuer` prints its port. It answers:

    GET  /.well-known/openid-configuration   discovery
    GET  /jwks                               its public keys
    GET  /fetches                            how often the keys were fetched
    POST /sign     {"claims": {...}, "key": "k1", "header": {...}}   a JWT
    POST /rotate   {"keys": {"k2": "EC"}}    other keys from now on
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

MAKERS: dict[str, Any] = {
    "RSA": lambda: rsa.generate_private_key(65_537, 2_048),
    "EC": lambda: ec.generate_private_key(ec.SECP256R1()),
    "OKP": ed25519.Ed25519PrivateKey.generate,
}

NAMES = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}


class Issuer(BaseHTTPRequestHandler):
    server: ThreadingHTTPServer
    keys: dict[str, tuple[str, Any]]
    fetches = 0

    def do_GET(self) -> None:
        base = f"http://127.0.0.1:{self.server.server_port}"
        if self.path == "/.well-known/openid-configuration":
            self._answer({"issuer": base, "jwks_uri": f"{base}/jwks"})
        elif self.path == "/jwks":
            type(self).fetches += 1
            self._answer({"keys": [self._public(kid) for kid in self.keys]})
        elif self.path == "/fetches":
            self._answer(self.fetches)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/rotate":
            type(self).keys = {kid: (kind, MAKERS[kind]()) for kid, kind in asked["keys"].items()}
            self._answer(None)
        else:
            kind, key = self.keys[asked["key"]]
            header = {"kid": asked["key"], **asked.get("header", {})}
            header = {name: value for name, value in header.items() if value is not None}
            self._answer(jwt.encode(asked["claims"], key, NAMES[kind], header))

    def _public(self, kid: str) -> dict[str, Any]:
        kind, key = self.keys[kid]
        algorithm = jwt.get_algorithm_by_name(NAMES[kind])
        told: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
        return {**told, "kid": kid, "use": "sig"}

    def _answer(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    Issuer.keys = {kind.lower(): (kind, make()) for kind, make in MAKERS.items()}
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Issuer)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
