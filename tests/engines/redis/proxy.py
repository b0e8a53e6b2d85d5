"""A proxy before a server that misbehaves as told: cuts connections, falls silent, rewrites."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Rewrite = Callable[[bytes], bytes]


class Proxy:
    """Forwards from a port, by default a free one, to a Unix socket.

    `cut_up` and `cut_down` are how many more bytes go to and from the server before the connection
    is cut, once; `silent` swallows everything; `holds` keeps back what goes to the server, until
    `deliver`; `rewrite` changes what comes back; `told` counts its bytes.
    """

    def __init__(self, path: str, port: int = 0) -> None:
        self._path = path
        self.cut_up: int | None = None
        self.cut_down: int | None = None
        self.silent = self.holds = False
        self.rewrite: Rewrite = lambda data: data
        self.connections = self.told = 0
        self._open: list[socket.socket] = []
        self._held: list[tuple[socket.socket, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Cut every connection that is open."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open = []

    def deliver(self) -> None:
        """Send to the server what was kept back, on the connections that it came by."""
        for sink, data in self._held:
            with suppress(OSError):
                sink.sendall(data)
        self._held = []

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._path)
            except OSError:  # the server is down
                near.close()
                far.close()
                continue
            self.connections += 1
            self._open += [near, far]
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, up), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.silent:
                    continue
                if up and self.holds:  # as a network: it goes on though who sent it has gone
                    self._held.append((sink, data))
                    self.holds = False
                    return
                left = self.cut_up if up else self.cut_down
                if left is not None and len(data) >= left:
                    sink.sendall(data[:left])
                    if up:
                        self.cut_up = None
                    else:
                        self.cut_down = None
                    break
                if left is not None and up:
                    self.cut_up = left - len(data)
                elif left is not None:
                    self.cut_down = left - len(data)
                if not up:
                    self.told += len(data)
                sink.sendall(data if up else self.rewrite(data))
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
