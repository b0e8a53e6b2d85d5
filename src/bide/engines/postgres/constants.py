"""Numbers and texts that the functions on the server share with Python, where each is declared."""

from bide.engines.constants import SHARED
from bide.model.ended import STOPPED_KEEP
from bide.model.limits import BULK, MAX_BODY, MAX_DEPTH, MAX_NAME, MAX_QUEUE
from bide.model.message import KEPT_FAILURES, MAX_ATTEMPTS, RUN_ENDED, STATES
from bide.model.times import DAY_MS, LATEST, MAX_YEARS, MICROSECONDS, MINUTE_MS, SECOND_MS

LOOK_AGAIN = 5_000
"""Milliseconds within which each waiting process asks again by itself, which it does every second
or every `LOOK_AGAIN_CALM` seconds: a put for a later time wakes none."""

ASLEEP_FOR = 30_000
"""Milliseconds for which others believe what a process has stored of its sleep."""

SLEEPER_KEEP = MINUTE_MS
"""How long, in milliseconds, a process is remembered that has not stored again that it sleeps."""

WAKE_ALL = 1_000
"""Who wants to wake so many processes or more wakes all that wait."""

CLAIM_AGAIN = 10
"""Milliseconds after which a claim looks again if another one has locked what is due."""

LONGEST_CLAIM = 10_000
"""Milliseconds by which a claim that commits may be behind the clock."""

BATCH_KEEP = 2_000
"""How long, in milliseconds, a batch is remembered that another one of its sender followed."""

FORGET_EVERY = SECOND_MS
"""Senders are forgotten after so many milliseconds at the earliest."""

HISTORY_BITS = 44
"""Of the number of a return. Those above them tell in which history of the store it was."""

HISTORIES = 1 << 17
"""How many histories have a number of their own."""

MAX_DIGITS = 4_300
"""The longest integer in JSON, as Python decodes it."""

LONG_NUMBER = 200
"""A number of fewer digits in a row is in range without a closer look."""

SHOWN_NAME = 200
"""How many characters of a wrong name an error shows."""

RANDOM_IDS = 1 << 52
"""How many random numbers the end of an id is one of: a double has each of them exactly."""

LOCKED_MORE = 8
"""How many times more heads a claim looks at after all of those before were locked by others."""

SETTLING_WAIT = 50
"""How long, in milliseconds, a command waits for the transaction that has locked a leased message.
The short ones of bide itself end sooner."""

GROUP_LOCKS = 256
"""How many locks the groups of all queues share: see `3_groups.sql`. A power of two."""

MOVES_AT_ONCE = 200
"""How many changes of the counters a command has in memory at a time. A message has a few."""

OUTCOME_STATES = (*STATES, "settling", "stopping", "closed", "ending")
"""The states that outcomes have, by their numbers in SQL."""

FLOOR = (
    "LOWEST_DELAYED",
    "LOWEST_LEASED",
    "BOUND_TIME",
    "BOUND_TRANSACTION",
    "SHORTEST_LEASE",
    "ALL_ENDED",
)
"""The numbers in a floor, which says where a claim begins to look; see `_claim` in 3_claim.sql."""

CONSTANTS: dict[str, int | str] = {
    **SHARED,
    **{f"{state.upper()}_STATE": number for number, state in enumerate(OUTCOME_STATES)},
    **{name: number for number, name in enumerate(FLOOR, 1)},  # arrays of SQL begin with 1
    "ASLEEP_FOR": ASLEEP_FOR,
    "BATCH_KEEP": BATCH_KEEP,
    "BEYOND_BULK": BULK + 1,
    "CLAIM_AGAIN": CLAIM_AGAIN,
    "CLAIM_AGAIN_US": CLAIM_AGAIN * MICROSECONDS,
    "FORGET_EVERY": FORGET_EVERY,
    "HISTORIES": HISTORIES,
    "HISTORY_BITS": HISTORY_BITS,
    "HISTORY_RETURNS": 1 << HISTORY_BITS,
    "LAST_GROUP_LOCK": GROUP_LOCKS - 1,
    "LONGEST_CLAIM": LONGEST_CLAIM,
    "LONG_NUMBER": LONG_NUMBER,
    "LOOK_AGAIN": LOOK_AGAIN,
    "LOCKED_MORE": LOCKED_MORE,
    "MAX_ATTEMPTS": MAX_ATTEMPTS,
    "MAX_BODY": MAX_BODY,
    "MAX_DAYS": LATEST // DAY_MS,
    "MAX_DEPTH": MAX_DEPTH,
    "MAX_DIGITS": MAX_DIGITS,
    "MAX_DURATION": LATEST,
    "GROUP_LOCKS": GROUP_LOCKS,
    "MAX_NAME": MAX_NAME,
    "MAX_QUEUE": MAX_QUEUE,
    "MAX_YEARS": MAX_YEARS,
    "MOVES_AT_ONCE": MOVES_AT_ONCE,
    "OLDER_FAILURES": KEPT_FAILURES - 1,
    "QUEUE_REST": MAX_QUEUE - 1,
    "RANDOM_IDS": RANDOM_IDS,
    "RUN_ENDED": RUN_ENDED,
    "SECOND_US": SECOND_MS * MICROSECONDS,
    "SETTLING_WAIT": SETTLING_WAIT,
    "SHOWN_NAME": SHOWN_NAME,
    "SLEEPER_KEEP": SLEEPER_KEEP,
    "STOPPED_KEEP": STOPPED_KEEP,
    "UP_TO_MS": MICROSECONDS - 1,
    "WAKE_ALL": WAKE_ALL,
}
"""By the names that they have in SQL.

`UP_TO_MS`, added to a number that is divided, rounds it up."""
