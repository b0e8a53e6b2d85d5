"""What a server's errors mean to the users of bide: the cause, and the mend."""

from redis import exceptions as raised

from bide.model.errors import (
    NotAStore,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

__all__ = ["passes", "translate"]

_KNOWN: tuple[tuple[str, type[StoreError], str], ...] = (
    ("OOM", StoreFull,
     "the server is at its maxmemory: raise it, or let workers drain the queues (claims and acks "
     "go on)"),
    ("MISCONF", StoreReadOnly,
     "the server cannot write its snapshot to disk and refuses changes: look into its log, "
     "mostly the disk is full or the folder may not be written to"),
    ("READONLY", StoreReadOnly,
     "this server is a replica: name the master in the URL"),
    ("NOREPLICAS", StoreReadOnly,
     "the server has fewer replicas than its min-replicas-to-write asks for: bring them back"),
    ("NOAUTH", StoreUnavailable, "the server wants a password: redis://user:password@host"),
    ("WRONGPASS", StoreUnavailable, "the user or the password in the URL is wrong, or the user is "
     "off"),
    ("NOPERM", StoreUnavailable,
     "this user may not do that: its ACL needs what bide's documentation lists under Redis"),
    ("DENIED", StoreUnavailable, "the server is in protected mode: give it a password"),
    ("WRONGTYPE", NotAStore,
     "a key of bide's holds something that bide did not store: another program uses keys that "
     "begin with bide:"),
    ("BUSY", StoreBusy, "a script of somebody's runs for long on the server: see SCRIPT KILL"),
    ("LOADING", StoreUnavailable, "the server is still loading its data: try again in a while"),
    ("MASTERDOWN", StoreUnavailable, "this replica has lost its master: name the master"),
    ("CLUSTERDOWN", StoreUnavailable, "slots of the cluster are served by nobody"),
    ("MOVED", StoreUnavailable, "this server is part of a cluster: name one that stands alone"),
    ("CROSSSLOT", StoreUnavailable, "this server is part of a cluster: name one that stands alone"),
)  # fmt: skip


def translate(error: Exception, shown: str) -> StoreError:
    """Return a server's error as one of bide's, with cause and mend.

    Args:
        error: what redis-py raised.
        shown: the URL without its password.
    """
    text = str(error)
    for word, kind, mend in _KNOWN:
        if word in text.split(" ")[:1] or _is(error, word):
            return kind(f"{shown}: {mend} ({text})")
    if isinstance(error, raised.AuthenticationError):
        return StoreUnavailable(f"{shown}: the user or the password is wrong or missing ({text})")
    if "unknown command" in text:
        return StoreUnavailable(f"{shown}: this is no Redis of version 7.0 or newer ({text})")
    return StoreError(f"{shown}: {text}")


_PASSING = ("BUSY", "MASTERDOWN", "NOREPLICAS")


def passes(answer: object) -> bool:
    """Tell whether an answer means that nothing was done, for a reason that may soon be over."""
    return isinstance(answer, raised.ResponseError) and (
        isinstance(answer, raised.MasterDownError) or str(answer).partition(" ")[0] in _PASSING
    )


_KINDS = {
    "OOM": raised.OutOfMemoryError,
    "READONLY": raised.ReadOnlyError,
    "LOADING": raised.BusyLoadingError,
    "NOPERM": raised.NoPermissionError,
}


def _is(error: Exception, word: str) -> bool:
    """Whether redis-py has made a kind of its own of this error, and left out the word."""
    kind = _KINDS.get(word)
    if kind is not None and isinstance(error, kind):
        return True
    text = str(error)
    if word == "NOPERM" and "The user executing the script" in text:
        return True
    return (word == "NOAUTH" and "Authentication required" in text) or (
        word == "WRONGPASS" and "invalid username-password" in text
    )
