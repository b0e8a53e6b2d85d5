"""What a server's errors mean to the users of bide: the cause, and the fix."""

import re
import ssl

from redis import exceptions as redis_errors

from bide.model import errors
from bide.model.errors import (
    OutcomeUnknown,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)


class Refusal(Exception):
    """What a server answered instead of doing what it was asked."""

    @property
    def word(self) -> str:
        """The first word, which names the kind of error; NOFUNCTION if the library is missing."""
        text = str(self)
        return "NOFUNCTION" if text == "ERR Function not found" else text.partition(" ")[0]


_MEANINGS: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "^OOM ",
        errors.StoreFull,
        "the server is at its maxmemory: raise it, or let workers drain the queues (claims and "
        "acks go on)",
    ),
    (
        "^MISCONF ",
        StoreReadOnly,
        "the server cannot write its snapshot or its append-only file to disk and refuses changes: "
        "look into its log, usually the disk is full, or the folder may not be written to",
    ),
    ("^READONLY ", StoreReadOnly, "this server is a replica: name the master in the URL"),
    (
        "^NOREPLICAS ",
        StoreReadOnly,
        "the server has fewer replicas than its min-replicas-to-write asks for: bring them back",
    ),
    (
        "^NOAUTH |Authentication required",
        StoreUnavailable,
        "the server wants a password: redis://user:password@host; sentinels want one of their own: "
        "?sentinel_password=... (and sentinel_user=...)",
    ),
    (
        "^(WRONGPASS|AUTH) |invalid (username-|)password",
        StoreUnavailable,
        "the user or the password in the URL is wrong, or the user is off or needs none",
    ),
    (
        "^NOPERM |has no permissions|The user executing the script",
        StoreUnavailable,
        "this user may not do that: its ACL needs what bide's documentation lists under Redis",
    ),
    (
        "^(DB|DENIED|MASTERDOWN) |No such master|cluster support disabled",
        StoreUnavailable,
        "the server does not support what this URL asks for: change the URL, or the server's "
        "settings",
    ),
    (
        "^WRONGTYPE ",
        errors.NotAStore,
        "a key of bide's holds something that bide did not store: another program uses keys that "
        "begin with bide:",
    ),
    (
        "^CORRUPT ",
        StoreCorrupt,
        "the counters and settings of a queue cannot be read: something else has written to this "
        "key. Delete it (redis-cli DEL): the next change creates it from the messages, "
        "without settings",
    ),
    (
        "^SHARDS ",
        StoreUnavailable,
        "the store has lost how many shards the queue has, and nothing was done: try again",
    ),
    (
        "^REPETITION forgotten",
        OutcomeUnknown,
        "the connection was lost after the command was sent, and the store does not remember its "
        "sender, or not in this part of the queue: the command may have been carried out or not",
    ),
    (
        "^REPETITION late",
        OutcomeUnknown,
        "the command arrived after later commands of its sender, which had given it up; it was not "
        "carried out now, and may have been before",
    ),
    (
        "^REPETITION large",
        OutcomeUnknown,
        "the command was carried out, but its reply was lost, and was too large to be remembered: "
        "look at the messages to see what it did",
    ),
    (
        "^BUSY ",
        errors.StoreBusy,
        "a script of another program keeps the server busy: see SCRIPT KILL",
    ),
    (
        "^LOADING |is loading the dataset",
        StoreUnavailable,
        "the server is still loading its data: try again in a while",
    ),
    (
        "^CLUSTERDOWN ",
        StoreUnavailable,
        "no node serves some slots of the cluster: see `redis-cli --cluster check`; with "
        "cluster-require-full-coverage no the other slots work meanwhile",
    ),
    (
        "^(TRYAGAIN|ASK|MOVED) ",
        StoreUnavailable,
        "the slot is moving from node to node: try again in a while, or wait longer with "
        "?reconnect=",
    ),
    (
        "[Uu]nknown (Redis )?command",
        StoreUnavailable,
        "this is not Redis 7.0 or newer, or not a sentinel (mostly port 26379), or it is "
        "set to rename a command that bide needs (rename-command)",
    ),
    (
        "@user_function",
        StoreCorrupt,
        "what is stored for this queue cannot be read: something else has written to the keys of "
        "bide",
    ),
)
"""A pattern of the text of an error, the error of bide, and its cause and fix.

redis-py leaves out the first word of some texts. The first pattern that is found counts."""


_LASTING = re.compile(
    "^(NOAUTH|WRONGPASS|AUTH|NOPERM|DB) |Authentication required|invalid (username-|)password|"
    "has no permissions|cluster support disabled|[Uu]nknown (Redis )?command"
)
"""Refusals of a user, a password, a right or a database: waiting does not help."""


def translate(error: Exception, shown: str) -> StoreError:
    """Return a server's error as one of bide's, with cause and fix.

    Args:
        error: what redis-py raised.
        shown: the URL without its password.
    """
    text = str(error)
    for pattern, kind, fix in _MEANINGS:
        if re.search(pattern, text):
            translated = kind(f"{shown}: {fix} ({text})")
            if isinstance(translated, StoreUnavailable):
                translated.lasts = _LASTING.search(text) is not None
            return translated
    return StoreError(f"{shown}: {text}")


def unfit(text: str) -> StoreUnavailable:
    """Return the error of a server that cannot be what bide needs until its settings change."""
    error = StoreUnavailable(text)
    error.lasts = True
    return error


def passes(answer: object) -> bool:
    """Tell whether an answer says that nothing was done, for a reason that may soon be over."""
    return isinstance(answer, Refusal) and answer.word in ("BUSY", "MASTERDOWN", "NOREPLICAS")


def is_of_shards(answer: object) -> bool:
    """Tell whether nothing was done because a shard is not there, or is one of another number."""
    cause = answer.__cause__ if isinstance(answer, StoreUnavailable) else None
    return isinstance(cause, Refusal) and cause.word == "SHARDS"


def has_run(answer: Refusal) -> bool:
    """Tell whether an error comes from a script of bide, not from the server before it.

    The script looks first whether the call was executed before. So its error says that the call was
    not. A refusal of the server, such as of one that is full, says nothing about that.
    """
    return answer.word in ("SHARDS", "CORRUPT", "REPETITION") or "@user_function" in str(answer)


def no_connection(error: Exception, shown: str, address: str) -> StoreError:
    """Return why there is no connection, with the fix.

    Args:
        error: what redis-py or the system raised.
        shown: the URL without its password.
        address: of the server.
    """
    first = origin(error)
    refusals = (
        Refusal,
        redis_errors.ResponseError,
        redis_errors.AuthenticationError,
        redis_errors.BusyLoadingError,
    )
    if isinstance(first, refusals):
        return translate(first, shown)
    text, is_encrypted = str(error).rstrip("."), shown.startswith("rediss")
    broke_off = isinstance(first, (ssl.SSLError, ConnectionResetError, BrokenPipeError))
    # With a Unix socket these mean its path; with TLS, a file of a certificate or key.
    lacks_file = is_encrypted and isinstance(first, (FileNotFoundError, PermissionError))
    causes = (
        (
            isinstance(first, redis_errors.InvalidResponse),
            "what answers there is not a Redis server: is it the right port?",
        ),
        (
            isinstance(first, ssl.SSLCertVerificationError),
            "its certificate is not trusted here: name the file with the certificate of its issuer "
            "(?ca=/path/ca.pem), and connect by the name that it is for, or have only its issuer "
            "checked (?verify=ca)",
        ),
        (
            broke_off
            or lacks_file
            or re.search("max number of clients|closed by server|handshake", f"{text} {first}"),
            "it broke off: is it a port for TLS (rediss://) or one without (redis://), does it "
            "want a certificate of this client (?cert=...&cert_key=..., readable files that belong "
            "together) and trust who issued that, or has it reached its maxclients?",
        ),
        (True, "is the server running, is the address right, does a firewall block it?"),
    )
    fix = next(fix for is_cause, fix in causes if is_cause)
    return StoreUnavailable(f"{shown}: no connection to {address} ({text}); {fix}")


def is_away(error: StoreError) -> bool:
    """Tell whether no server answered, so that it may help to try again soon."""
    cause = error.__cause__
    errors_of_network = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)
    # To redis-py some of these are kinds of `ConnectionError`; a further try does not mend them.
    refusals = (
        redis_errors.AuthenticationError,
        redis_errors.ResponseError,
        ssl.SSLCertVerificationError,
    )
    return isinstance(cause, errors_of_network) and not isinstance(origin(cause), refusals)


_NETWORK = ("redis", "socket", "ssl", "gevent", "eventlet")
"""Packages whose code raises what the network does, beside that of this engine."""


def is_of_network(error: BaseException) -> bool:
    """Tell whether an error of the network, or of a server, is that, and not of a signal handler.

    A handler may raise the same kinds, such as a `TimeoutError` of a time limit: its code, and not
    that which sends and receives, is the last in the traceback.
    """
    trace = origin(error).__traceback__
    if trace is None:  # it was made of an answer, and not raised
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    module: str = trace.tb_frame.f_globals.get("__name__", "")
    return module.startswith("bide.engines.redis.") or module.partition(".")[0] in _NETWORK


def origin(error: BaseException) -> BaseException:
    """Return the error that was the first of a chain."""
    # redis-py raises some while it handles an error of the system, without naming it as the cause.
    while error.__cause__ is not None or isinstance(error.__context__, OSError):
        error = error.__cause__ or error.__context__ or error
    return error
