"""Requests written byte by byte, as an attacker writes them."""

import socket

__all__ = ["exchange", "request", "status_of"]


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return a request; a header is left out where its value is ""."""
    fields = {"host": "127.0.0.1", "connection": "close"}
    if body:
        fields |= {"content-length": str(len(body)), "content-type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


def exchange(port: int, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(data)
        answer = b""
        while piece := raw.recv(1 << 16):
            answer += piece
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
