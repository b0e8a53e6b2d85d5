"""A process that runs messages that repeat, until it is killed."""

import random
import sys
from pathlib import Path

import bide
from bide.testing.history import Journal

__all__ = ["run"]


def run(url: str, name: str, seed: int, folder: Path) -> None:
    """Run what is due for ever: ack, retry, bury or forget it. A journal tells each ack."""
    chance = random.Random(seed)
    journal = Journal(folder / f"{name}.journal")
    with bide.Queue("reminders", url, holder=name) as reminders:
        journal.did("start")
        while True:
            for delivery in reminders.claim(chance.choice((1, 5)), lease=0.3, wait=0.05):
                facts = {"id": delivery.id, "run": delivery.message.run}
                draw = chance.random()
                if draw < 0.05:
                    continue  # forgotten: its lease lapses
                try:
                    if draw < 0.15:
                        delivery.retry(reason="no")
                    elif draw < 0.2:
                        delivery.bury("no")
                    else:
                        journal.tries("ack", **facts)
                        delivery.ack()
                        journal.did("ack", **facts)
                except bide.LeaseLost:
                    continue


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
