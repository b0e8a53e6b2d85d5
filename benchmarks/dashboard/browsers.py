"""Ten browsers that have pages of a dashboard open: `python -m ... URL`, until the input ends."""

import http.client
import sys
import threading
import time
from urllib.parse import urlsplit

BROWSERS = 10

EVERY = 2.0
"""Seconds after which an open page asks for its next state."""

LIVE = ("", "queue?queue=parcels", "queue?queue=work", "workers", "dead?queue=letters")
"""The pages that are open."""


def _show(base: str, path: str, shown: threading.Semaphore, after: float) -> None:
    """Ask for a page again and again, as an open one does."""
    where = urlsplit(base)
    connection = http.client.HTTPConnection(where.netloc, timeout=60)
    time.sleep(after)
    while True:
        connection.request("GET", where.path + path, headers={"hx-request": "true"})
        reply = connection.getresponse()
        reply.read()
        shown.release()
        time.sleep(EVERY)


def main(base: str) -> None:
    """Have the pages open until the input ends."""
    shown = threading.Semaphore(0)
    for number in range(BROWSERS):
        arguments = base, LIVE[number % len(LIVE)], shown, number * EVERY / BROWSERS
        threading.Thread(target=_show, args=arguments, daemon=True).start()
    for _ in range(BROWSERS):
        shown.acquire()
    print("shown", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
