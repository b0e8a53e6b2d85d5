"""Try random inputs for a while, and keep those that found something: `make fuzz`.

python -m tests.soak.fuzz --seconds 180
python -m tests.soak.fuzz --kind json --seconds 20 --seed 7
"""

import argparse
import hashlib
import logging
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.fuzz.inputs import KINDS, Place, Wrong, place

CORPUS = Path(__file__).parent / "corpus"

MEMORY = 512 << 20
"""Bytes that the process, server included, may grow to."""

ODD = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"%00",
    b"%ff",
    b"\\ud800",
    b"\xed\xa0\x80",
    b"null",
    b"true",
    b"-0",
    b"-1",
    b"0",
    b"9" * 20,
    b"9" * 400,
    b"1e400",
    b"-9223372036854775809",
    b"NaN",
    b"[" * 600,
    b'{"a":' * 300,
    b"\r\n",
    b"\n",
    b" ",
    b"/",
    b"..",
    b"%2f",
    b":",
    b"=",
    b"&",
    b"'",
    b'"',
    "\u202e".encode(),
    b"a" * 300,
    b"\x93\xc1",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
]


class Mutator:
    """Makes inputs of others.

    Args:
        chance: what decides.
        seeds: what it begins with.
    """

    def __init__(self, chance: random.Random, seeds: list[bytes]) -> None:
        self._chance = chance
        self._seeds = seeds

    def next(self) -> bytes:
        """Return an input that differs from a seed in one to six places."""
        chance, data = self._chance, bytearray(self._chance.choice(self._seeds))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
            at, length = chance.randint(0, len(data)), chance.choice((0, 1, 1, 2, 4, 8, 16))
            match chance.randrange(6):
                case 0:
                    data[at : at + length] = chance.choice(ODD)
                case 1:
                    data[at : at + 1] = bytes([chance.randrange(256)])
                case 2:
                    del data[at : at + length]
                case 3:
                    data[at:at] = data[at : at + length] * chance.choice((1, 2, 50))
                case 4:
                    other = chance.choice(self._seeds)
                    data[at:] = other[chance.randint(0, len(other)) :]
                case _:
                    words = bytes(data).split(b'"')
                    words[chance.randrange(len(words))] = chance.choice(ODD)
                    data = bytearray(b'"'.join(words))
        return bytes(data)


def _try(where: Place, name: str, data: bytes) -> str | None:
    """Return what was wrong about an input, `None` if all was well."""
    try:
        KINDS[name].take(where, data)
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:  # noqa: BLE001  (any of them is a find)
        return repr(error)
    return None


def main() -> int:
    """Fuzz for as long as is asked for; return how many finds there were, 1 at most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=[*KINDS], action="append")
    parser.add_argument("--seconds", type=float, default=180, help="for all kinds together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    kinds = options.kind or [*KINDS]
    finds = 0
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder, place(Path(folder)) as where:
        for name in kinds:
            mutator = Mutator(random.Random(f"{options.seed}{name}"), KINDS[name].seeds)
            end, tried, known = time.monotonic() + options.seconds / len(kinds), 0, set[str]()
            while time.monotonic() < end:
                data = mutator.next()
                tried += 1
                wrong = _try(where, name, data)
                if wrong is None or wrong[:60] in known:
                    continue
                known.add(wrong[:60])
                finds += 1
                file = CORPUS / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
                file.write_bytes(data)
                print(f"{file.name}: {wrong[:400]}\n  {data[:300]!r}", flush=True)
            print(f"{name:10} {tried:8,} inputs", flush=True)
        if not where.balanced:
            finds += 1
            print("the audit does not balance")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if memory > MEMORY:
        finds += 1
    print(f"{finds} finds; {memory >> 20} MB of memory")
    return min(finds, 1)


if __name__ == "__main__":
    sys.exit(main())
