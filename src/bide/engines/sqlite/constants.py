"""Numbers that the statements share with Python, where each is declared."""

from bide.engines.constants import SHARED

UNCOUNTED = 1_000
"""A put of one message leaves the counters as they are until so many messages are not in them."""

CONSTANTS = {**SHARED, "UNCOUNTED": UNCOUNTED}
"""By the names that they have in SQL."""
