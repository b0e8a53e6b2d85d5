"""For tests of bide, and of what is built on it: a clock, faults, the conformance suite.

`bide.testing.clock` and `bide.testing.faults` need nothing else; `bide.testing.conformance` needs
the extra `bide[testing]`.
"""
