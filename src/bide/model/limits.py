"""Limits of requests and replies.

Limits of a message's fields are declared with the fields, in `bide.model.message`. Limits that an
operator sets (quotas, size of a request, connections) are in the settings of the server. All are
listed in docs/reference/limits.md.
"""

from bide.model.errors import InvalidArgument

MAX_BODY = 1024 * 1024
"""The default maximum size of an encoded body, in bytes."""

MAX_DEPTH = 500
"""The maximum depth of lists and objects in a body: every supported Python can decode it."""

MAX_QUEUE = 128
"""The longest name of a queue, and of the namespace before it, in characters."""

MAX_NAME = 512
"""The longest id, group or name of a holder, in bytes."""

MAX_ACTOR = 64
"""The longest name of who changes something (`Command.actor`), in bytes."""

MAX_ROW = 64
"""The longest name of an outbox or of one of its rows, in characters."""

MAX_RULE = 512
"""The maximum length of the rule of a message that repeats, as text in ASCII."""

MAX_RUN = 128
"""The maximum length of which run a message stands for, as text in ASCII."""

MAX_PLAN = 128
"""The maximum length of the plan for what is overdue, as text in ASCII."""

MAX_RESULT = 64 * 1024
"""The maximum size of the result of a message, in bytes of JSON."""

MAX_DURATION_TEXT = 64
"""The maximum length of a duration as text, in characters."""

MAX_LEASE = 86_400_000
"""The longest lease, in milliseconds: 24 hours. Longer work extends its lease."""

MAX_COUNT = 100_000
"""The maximum number of messages that one command names, claims or reads in a page."""

MAX_BYTES = 8 * 1024 * 1024
"""The maximum size of the messages of one reply, in bytes; a single message may be larger."""

BULK = 1_000
"""The maximum number of messages that one command changes by a rule."""

MAX_FORWARDED = 10_000
"""The maximum number of rows of outboxes that a queue remembers; those with the smallest names are
forgotten first. In a cluster, each shard of a queue remembers as many."""

MAX_RETURNED = 10_000
"""How many of the last returns to an earlier set a store remembers, for scans that are under way:
on Redis each shard of a queue, in memory each queue, in a SQLite file or a schema of PostgreSQL all
queues together."""

MAX_PAGE = 10_000
"""The maximum number of messages in a page of `Queue.scan`, and in a batch of a move."""

MAX_BUCKETS = 10_000
"""The maximum number of buckets of a forecast."""

IMPORT_LINES = 1_000
"""The number of lines that one commit of an import puts."""

MAX_PUT_FAILURES = 100
"""The maximum number of earlier failures of a message in a put."""

MAX_COMMANDS = 1_000
"""The maximum number of commands in one request to the batch endpoint."""

MAX_HTTP_MESSAGES = 10_000
"""The maximum number of messages or leases that one HTTP request names or claims."""

MAX_HTTP_PAGE = 1_000
"""The maximum number of messages that one HTTP request lists."""

MAX_HTTP_IDS = 1_000
"""The maximum number of ids of dead letters in one HTTP request."""

MAX_TYPO = 64
"""The longest unknown name for which a similar one is suggested: the cost grows with its length."""

# HTTP: connections and requests.

MAX_HEAD = 64 * 1024
"""Bytes of a request's line and its header fields."""

MAX_HEADS = 16 * 1024 * 1024
"""Bytes of unfinished heads in a process; beyond that each may have `SMALL_HEAD`."""

SMALL_HEAD = 8 * 1024
"""Bytes of a head that is always read."""

MAX_FIELDS = 100
"""Header fields of a request; those after a chunked body count too."""

MAX_QUERY = 50
"""Parameters of a query."""

MAX_URL = 8 * 1024
"""Bytes of the path and the query of a URL: escaped characters take time to decode."""

KEEP_ALIVE = 75.0
"""Seconds that a connection without requests is kept."""

STALLED = 30.0
"""Seconds without progress after which a client that does not read its answer is cut off."""

MAX_UNREAD = 96 * 1024 * 1024
"""Bytes of answers that a process keeps for clients which have not read them."""

MAX_REPLIES = 64 * 1024 * 1024
"""Bytes of messages that replies under way may take in a process, before they become answers. In
memory, a byte takes up to four: as message, as part of the answer, and in between."""

MAX_REPLIES_OF_NAMESPACE = 16 * 1024 * 1024
"""Bytes of these that the replies of one namespace may take."""

WAITING_BYTES = MAX_BODY
"""Bytes of the messages that a waiting claim gets at most; a single message may be larger."""

MAX_DISCARDED = 1024 * 1024
"""Bytes of a refused request that are discarded before the connection is reset."""

MAX_BUFFERED = 64 * 1024 * 1024
"""Bytes that large bodies may take in a process, or two of the largest if that is more."""

MAX_BATCH_MESSAGES = 200_000
"""How many messages the commands of one batch may name together."""

MAX_JSON = 4 * 1024 * 1024
"""Bytes of a request in JSON that puts or edits no messages; a batch may be larger in msgpack."""

MAX_OBJECTS = 100_000
"""Objects that a request of more than 1 MiB may hold in JSON, unless it puts or edits messages."""

MAX_VALUES = 400_000
"""Values that a request of more than 1 MiB may hold in JSON, unless it puts or edits messages."""

MAX_HEADERS = 256 * 1024
"""Bytes of the headers of a message in a request, as they are sent."""

MAX_PACKED = 6_000_000
"""Values that a batch of more than 4 MiB may hold in msgpack; a name of a field is one as well."""

MAX_FIELDS_TOTAL = 500_000
"""Header fields and failures that the messages of one request may have together."""

MAX_LEASE_TOKEN = 81
"""Characters of a lease token."""

MAX_DETAIL = 4_000
"""Characters of what an error of the server says."""

MAX_CLAIMERS = 1_000
"""How many programs that claim over HTTP a server process remembers."""

MAX_HINTS = 10_000
"""Hints that wait for an event stream whose client reads slowly; more are dropped."""

MAX_TALLIES = 5_000
"""Queues whose claims a server process counts; those that were not claimed from for the longest are
forgotten."""

MAX_LOGGED_METHOD = 20
MAX_LOGGED_PATH = 200
"""Characters of a request's method and path that are logged."""

# What other servers answer.

MAX_RECEIVER_HEAD = 16 * 1024
"""Bytes of the head of a receiver's answer to a push, and of each interim answer (1xx)."""

MAX_RECEIVER_INTERIM = 8
"""Interim answers (1xx) of a receiver before its answer."""

MAX_RECEIVER_BODY = 16 * 1024
"""Bytes of a receiver's answer that are read; a longer one costs its connection."""

MAX_ANSWER = 32 * MAX_BYTES
"""Bytes of an answer of a server to its `http://` client: the budget of a server's replies, with
room for what else is in them and for messages larger than the budget."""

MAX_INTERIM = 8
"""Interim answers (1xx) of a server to its `http://` client before its answer."""

MAX_EVENT_LINE = 16 * 1024 * 1024
"""Bytes of a line of an event stream that the `http://` client reads."""

MAX_AMQP_BODY = 2 * MAX_BODY
"""Bytes of the body of a message from RabbitMQ that are read; smaller ones that are too large get a
dead letter's reason."""

MAX_AMQP_HEADERS = 100_000
"""Bytes of the headers of a message to or from RabbitMQ: they must fit into a frame."""

# Subscriptions and pages.

MAX_SUBSCRIPTIONS = 10_000
"""Subscriptions of a store."""

MAX_FORM = 1024 * 1024
"""Bytes of a form of the dashboard."""

MAX_LOGIN_FORM = 4 * 1024
"""Bytes of a form of the dashboard that anyone may send: to log in or out, or choose a language."""

# Who asks.

MAX_FAILED_LOGINS = 20
"""Wrong tokens that an address may send within a minute."""

MAX_TOKEN_NAME = 200
"""Characters of a token's name."""

MAX_PATTERNS = 32
"""Patterns of queues that a token may have."""

MAX_SUBJECT = 200
"""Characters of the subject of a JWT."""

MAX_DOCUMENT = 512 * 1024
"""Bytes of a document of an OpenID Connect issuer."""

MAX_KEYS = 100
"""Keys that an issuer may have."""


def check_whole(value: object, name: str, least: int, most: int) -> int:
    """Return a whole number after a check.

    Raises:
        InvalidArgument: it is no whole number, or not from `least` to `most`.

    Example:
        >>> check_whole(0, "batch", 1, 10_000)
        Traceback (most recent call last):
          ...
        bide.model.errors.InvalidArgument: batch=0 must be a whole number from 1 to 10,000
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(f"{name}={value!r} must be a whole number from {least:,} to {most:,}")
    return value if type(value) is int else int.__int__(value)  # an IntEnum becomes its number


def check_range(value: float, name: str, least: float, most: float) -> None:
    """Check that a value is a number from `least` to `most`.

    Raises:
        InvalidArgument: the value is not a number, or is out of these bounds.

    Example:
        >>> check_range(0, "workers", 1, 256)
        Traceback (most recent call last):
          ...
        bide.model.errors.InvalidArgument: workers=0 must be between 1 and 256
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidArgument(f"{name}={value!r} must be between {least:,} and {most:,}")
