"""Limits of what one request may ask for or hold.

Limits of a message's fields are declared with the fields, in `bide.model.message`. What an operator
may set (quotas, size of a request) is in the settings of the server.
"""

__all__ = [
    "BULK", "IMPORT_LINES", "MAX_BODY", "MAX_BUCKETS", "MAX_BYTES", "MAX_COMMANDS", "MAX_COUNT",
    "MAX_DEPTH", "MAX_DURATION_TEXT", "MAX_HTTP_IDS", "MAX_HTTP_MESSAGES", "MAX_HTTP_PAGE",
    "MAX_LEASE", "MAX_NAME", "MAX_PAGE", "MAX_PUT_FAILURES", "MAX_TYPO",
]  # fmt: skip

MAX_BODY = 1024 * 1024
"""The default limit of an encoded body, in bytes."""

MAX_DEPTH = 500
"""How many lists and objects of a body may be nested: what every supported Python can read back."""

MAX_NAME = 512
"""The longest id, group or name of a holder, in bytes."""

MAX_DURATION_TEXT = 64
"""The longest text that is read as a duration, in characters."""

MAX_LEASE = 86_400_000
"""The longest lease, in milliseconds: 24 hours. Longer work extends its lease."""

MAX_COUNT = 100_000
"""How many messages one command may name, claim, or ask for in a page."""

MAX_BYTES = 8 * 1024 * 1024
"""How many bytes of messages one reply holds at most, unless a single message is larger."""

BULK = 1_000
"""How many messages one command changes at most when it names them by a rule, not by id."""

MAX_PAGE = 10_000
"""How many messages a page of `Queue.scan` may hold, and a batch of a move."""

MAX_BUCKETS = 10_000
"""How many buckets a forecast may have."""

IMPORT_LINES = 1_000
"""How many lines one commit of an import puts."""

MAX_PUT_FAILURES = 100
"""How many earlier failures a message may bring along when a command puts it."""

MAX_COMMANDS = 1_000
"""How many commands one request to the batch endpoint may hold."""

MAX_HTTP_MESSAGES = 10_000
"""How many messages or leases one HTTP request may name, and how many it may claim."""

MAX_HTTP_PAGE = 1_000
"""How many messages one HTTP request may list."""

MAX_HTTP_IDS = 1_000
"""How many ids of dead letters one HTTP request may name."""

MAX_TYPO = 64
"""The longest unknown name for which a similar one is suggested: the cost grows with its length."""
