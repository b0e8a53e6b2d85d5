"""Notify systemd of the state of the service (sd_notify): a datagram to the socket it names."""

import os
import socket
from collections.abc import Mapping


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send a state such as "READY=1"; return whether it was sent.

    A service manager that has gone away is no reason to stop working, so a datagram that does not
    arrive is no error.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address or address[0] not in "/@":
        return False
    name = "\0" + address[1:] if address[0] == "@" else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), name)
        except OSError:
            return False
    return True


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return how often systemd wants to hear "WATCHDOG=1", if it does."""
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 2_000_000 if text.isdigit() and int(text) else None
