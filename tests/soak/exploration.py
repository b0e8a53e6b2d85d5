"""Explore the rules of messages deeper than `make test` does, and count what was seen.

python -m tests.soak.exploration --depth 6
"""

import argparse
import sys
from typing import Any

from tests.unit.engines.rules.exploration import FIRST_STATES, branches, explore


def main() -> int:
    """Explore; return 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=6, help="how many events deep")
    depth: int = parser.parse_args().depth
    examples: dict[Any, Any] = {}
    for first_state in FIRST_STATES:
        kind = "remembers how messages ended" if first_state.keep else "remembers nothing"
        print(f"a queue that {kind}, {depth} events deep", flush=True)
        explored = explore(depth, first_state)
        print(f"  {explored.states:,} states, {explored.events:,} events", flush=True)
        if explored.broken:
            print(f"{explored.broken} is broken:\n{explored.story}")
            return 1
        examples |= {(first_state.keep, kind): state for kind, state in explored.examples.items()}
    for module, counts in branches(examples).items():
        print(f"{module}: {counts.entered} of {counts.number} branches entered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
