"""For tests of bide, and of what is built on it: a clock, faults, the conformance suite.

`FakeClock` and `FlakyEngine` need nothing else; `bide.testing.conformance` needs the extra
`bide[testing]`.
"""

from bide.testing.clock import FakeClock
from bide.testing.faults import Fault, FlakyEngine

__all__ = ["FakeClock", "Fault", "FlakyEngine"]
