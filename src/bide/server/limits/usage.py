"""How much a namespace uses of its quotas, as answers show it."""

import msgspec


class Usage(msgspec.Struct, kw_only=True):
    """How much a namespace uses, and how much it may use; `null`: no limit."""

    namespace: str | None
    """`null`: the whole store."""
    messages: int
    """How many messages are in its queues, dead and kept ones included; for a token of some queues:
    in these."""
    max_messages: int | None
    """How many messages there may be."""
    stored_bytes: int
    """How many bytes these messages take at most: the last count, within a minute, and what this
    server has put since."""
    max_stored_bytes: int | None
    queues: int
    """How many queues it has."""
    max_queues: int | None
    max_message_bytes: int | None
    """How many bytes a message may take: body, headers, group and id."""
    max_rate: float | None
    """How many messages may be put per second."""
    max_bytes_per_second: float | None
    """How many bytes its requests and answers may take per second."""
    longest_delay: str | float | None
    """How far ahead a message may be due."""
    max_subscriptions: int | None
    max_push_concurrency: int | None
    """How many requests its subscriptions may have under way together."""
