"""A process that claims one message, says so, and goes on when it is told to."""

import sys

import bide


def main() -> None:
    """Claim, print, wait for a line, then do what the line says; print what came of it."""
    url, lease = sys.argv[1:]
    with bide.Queue("orders", url, holder="the slow one") as orders:
        (delivery,) = orders.claim(wait=20, lease=float(lease))
        print(delivery.id, flush=True)
        for line in sys.stdin:
            try:
                getattr(delivery, line.strip())()
            except bide.LeaseLost as error:
                print(f"LeaseLost: {error}", flush=True)
            else:
                print("done", flush=True)


if __name__ == "__main__":
    main()
