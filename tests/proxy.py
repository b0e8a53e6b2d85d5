"""A proxy before a server that misbehaves: on command, or at random with a share of what passes."""

import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, get_args

from tests.servers import free_port

__all__ = ["Fault", "Faults", "Proxy", "before_all"]

Rewrite = Callable[[bytes], bytes]

Fault = Literal["cut", "reset", "half", "lose", "hang", "hang after", "delay", "crumbs"]
"""What happens to a request or an answer:

- cut: the connection is closed instead of passing it on; reset: the same, with a reset
- half: a part of it is passed on, then the connection is closed
- lose: a request is passed on and executed; its answer is lost, and then the connection is closed
- hang: from now on nothing passes on this connection, which stays open (half-open); hang after: it
  is passed on before that
- delay: it is passed on later
- crumbs: it is passed on byte by byte
"""


class Faults:
    """Faults that strike at random.

    Args:
        share: of the requests and answers that they strike.
        kinds: of faults.
        seed: of chance.
    """

    longest_delay = 0.05
    """Seconds."""

    def __init__(
        self, share: float, kinds: Sequence[Fault] = get_args(Fault), seed: int | None = None
    ) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[Fault] = Counter()
        """How often each kind has struck."""
        self._share = share
        self._kinds = kinds

    def draw(self) -> Fault | None:
        """Return what happens to what passes now; `None`: nothing."""
        if self.chance.random() >= self._share:
            return None
        fault = self.chance.choice(self._kinds)
        self.counts[fault] += 1
        return fault


class _Pair:
    """A connection of a client, and the one to the server for it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self.loses = self.hangs = False
        """Whether the next answer is lost; whether nothing passes any more."""

    def close(self, *, reset: bool = False) -> None:
        for each in (self.near, self.far):
            with suppress(OSError):
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                # The thread that reads from it has it open until it returns.
                each.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            each.close()


class Proxy:
    """Forwards from a port, by default a free one, to a server.

    `faults` strike at random; `strike` has the next request meet one.
    `cut_up` and `cut_down` are how many more bytes go to and from the server before the connection
    is cut, once; `silent` swallows everything; `holds` keeps back what goes to the server, until
    `deliver`; `rewrite` changes what comes back; `told` counts its bytes.

    Args:
        target: the path of a Unix socket, or a port of this machine.
        port: to listen on.
    """

    def __init__(self, target: str | int, port: int = 0) -> None:
        self._target = target
        self.faults: Faults | None = None
        self.cut_up: int | None = None
        self.cut_down: int | None = None
        self.silent = self.holds = False
        self.rewrite: Rewrite = lambda data: data
        self.connections = self.told = 0
        self._next: Fault | None = None
        self._open: list[_Pair] = []
        self._held: list[tuple[socket.socket, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """A URL of the server, if that is a Redis."""
        return f"redis://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop listening, and cut all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Cut every connection that is open; not the one that a client then opens at once."""
        cut, self._open = self._open, []
        for pair in cut:
            pair.close()

    def freeze(self) -> None:
        """Let nothing more through on the connections that there are, and keep them open."""
        for pair in self._open:
            pair.hangs = True

    def strike(self, fault: Fault) -> None:
        """Have the next request meet a fault."""
        self._next = fault

    @property
    def struck(self) -> bool:
        """Whether the fault that was ordered has met a request."""
        return self._next is None

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
            try:
                far = self._connect()
            except OSError:  # the server is down
                near.close()
                continue
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            pair = _Pair(near, far)
            self._open.append(pair)
            for up in (True, False):
                threading.Thread(target=self._pump, args=(pair, up), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            far = socket.create_connection(("127.0.0.1", self._target))
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return far
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(self._target)
        except OSError:
            far.close()
            raise
        return far

    def _pump(self, pair: _Pair, up: bool) -> None:
        source, sink = (pair.near, pair.far) if up else (pair.far, pair.near)
        reset = False
        with suppress(OSError):
            while data := source.recv(65536):
                if self.silent or pair.hangs:
                    continue
                if pair.loses and not up:
                    break
                if up and self.holds:  # as a network: it goes on though who sent it has gone
                    self._held.append((sink, data))
                    self.holds = False
                    return
                fault = self._draw(up)
                if fault in ("cut", "reset"):
                    reset = fault == "reset"
                    break
                if fault is not None:
                    if not self._strike(fault, pair, sink, data, up=up):
                        break
                    continue
                if not self._pass_on(sink, data, up=up):
                    break
        pair.close(reset=reset)
        with suppress(ValueError):
            self._open.remove(pair)

    def _draw(self, up: bool) -> Fault | None:
        if up and self._next is not None:
            fault, self._next = self._next, None
            return fault
        return None if self.faults is None else self.faults.draw()

    def _strike(
        self, fault: Fault, pair: _Pair, sink: socket.socket, data: bytes, *, up: bool
    ) -> bool:
        """Have something meet a fault; return whether the connection goes on."""
        chance = random.Random() if self.faults is None else self.faults.chance
        if not up:
            data = self.rewrite(data)
        if fault == "half":
            sink.sendall(data[: chance.randrange(len(data))])
        elif fault == "lose" and up:
            pair.loses = True
            sink.sendall(data)
        elif fault in ("hang", "hang after"):
            pair.hangs = True
            if fault == "hang after":
                sink.sendall(data)
        elif fault == "delay":
            time.sleep(chance.random() * Faults.longest_delay)
            sink.sendall(data)
        elif fault == "crumbs":
            for byte in data:
                sink.sendall(bytes((byte,)))
        return fault in ("hang", "hang after", "delay", "crumbs") or pair.loses

    def _pass_on(self, sink: socket.socket, data: bytes, *, up: bool) -> bool:
        """Pass on what is not cut off; return whether the connection goes on."""
        left = self.cut_up if up else self.cut_down
        if left is not None and len(data) >= left:
            sink.sendall(data[:left])
            if up:
                self.cut_up = None
            else:
                self.cut_down = None
            return False
        if left is not None and up:
            self.cut_up = left - len(data)
        elif left is not None:
            self.cut_down = left - len(data)
        if not up:
            self.told += len(data)
        sink.sendall(data if up else self.rewrite(data))
        return True


def before_all(ports: Sequence[int]) -> dict[int, Proxy]:
    """Return proxies before servers that name each other in their answers, by the servers' ports.

    Answers name the proxies instead: clients of a cluster, or of sentinels, never leave them.
    """
    proxies = {port: Proxy(port, free_port()) for port in ports}
    pattern = re.compile(rb"(?<=[:\n])(%s)(?=\r\n)" % b"|".join(b"%d" % port for port in ports))

    def rewrite(data: bytes) -> bytes:
        # Ports have five digits, so that lengths stay as they are.
        return pattern.sub(lambda port: b"%d" % proxies[int(port[0])].port, data)

    for proxy in proxies.values():
        proxy.rewrite = rewrite
    return proxies
