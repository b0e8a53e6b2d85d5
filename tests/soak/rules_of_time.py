"""Compare the times of many random cron expressions with those of dateutil.

python -m tests.soak.rules_of_time --rules 1000000 --seed 1
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from random import Random

from tests.unit.model.random_rules import difference, random_rule

PART = 1_000
"""How many rules a process compares at a time."""

TIMES = 6
"""How many times of each rule are compared."""


def compare(seed: int) -> list[str]:
    """Return how rules of a seed differ."""
    chance = Random(seed)
    differences = (difference(random_rule(chance), TIMES) for _ in range(PART))
    return [text for text in differences if text]


def main() -> int:
    """Compare; return 1 if a rule differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=1_000_000, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    parts = range(options.seed, options.seed + -(-options.rules // PART))
    count = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for number, differences in enumerate(pool.map(compare, parts), 1):
            count += len(differences)
            for text in differences:
                print(text)
            if number % 100 == 0 or number == len(parts):
                print(f"{number * PART:,} rules, {number * PART * TIMES:,} times", flush=True)
    print(f"{count} rules differ")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
