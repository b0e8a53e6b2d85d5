"""Play random sequences of calls on every engine, and compare each reply with the memory engine's.

python -m tests.soak.differential --seconds 120
python -m tests.soak.differential --store redis --seed 7 --sequences 1
"""

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.differential.searching import search, short_story
from tests.soak.differential.stores import KINDS, opened

STEPS = 40
"""Steps of a sequence."""


def main() -> int:
    """Search a difference; return 1 if there was one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=[*KINDS], action="append", help="all by default")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--steps", type=int, default=STEPS, help="of each sequence")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--sequences", type=int, help="how many at most")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    kinds = options.store or [*KINDS]
    print(f"seed {options.seed}; {', '.join(kinds)} beside memory", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="bide-differential-"))
    try:
        with opened(kinds, folder) as stores:
            is_over = _ending(options.seconds, options.sequences)
            finding = search(stores, options.seed, options.steps, is_over)
            if finding is None:
                return 0
            seed, sequence, shown = finding
            if sys.stderr.isatty():
                print(file=sys.stderr)  # ends the line of progress
            print(f"{shown.store} differs from memory; it is shortened", flush=True)
            print(short_story(sequence, shown, stores))
    finally:
        shutil.rmtree(folder)
    steps = "" if options.steps == STEPS else f" --steps {options.steps}"
    again = f"--store {shown.store} --seed {seed}{steps} --sequences 1"
    print(f"seed {seed}; play it again: python -m tests.soak.differential {again}")
    return 1


def _ending(seconds: float, most: int | None) -> Callable[[int], bool]:
    """Return what tells whether it was enough, and shows on a terminal how far it is."""
    began = time.monotonic()
    shows = sys.stderr.isatty()

    def is_over(played: int) -> bool:
        elapsed = time.monotonic() - began
        ends = elapsed >= seconds or (most is not None and played >= most)
        if shows:
            print(f"\r{played:,} sequences, {elapsed:.0f} s", end="", file=sys.stderr, flush=True)
            if ends:
                print(file=sys.stderr)
        if ends:
            print(f"{played:,} sequences, no difference", flush=True)
        return ends

    return is_over


if __name__ == "__main__":
    sys.exit(main())
