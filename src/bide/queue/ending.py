"""The result of a message, of what its queue remembers."""

from typing import Any, NoReturn

from bide.model.body import decoder_of
from bide.model.ended import PENDING
from bide.model.errors import AccessDenied, InvalidArgument, NotAcked, NotEnded, NotRemembered
from bide.model.replies import Ends


def result_in(id: str, reply: Ends, type: Any = Any) -> Any:
    """Return the result of a message, of what its queue remembers.

    Raises:
        NotEnded: it is still in the queue.
        NotAcked: it ended in another way.
        NotRemembered: nothing is known of it.
        AccessDenied: a server withholds results.
        InvalidArgument: it does not fit the type.
    """
    if reply.state in PENDING:
        raise NotEnded(f"{id} is {reply.state}; it has no result yet")
    if reply.ends and reply.ends[0].how == "acked":
        result = reply.ends[0].result
        if result == b"":
            raise AccessDenied(
                f"the server withholds the result of {id!r}: the token has no right 'bodies'"
            )
        return None if result is None else _decoded(id, result, type)
    _refuse(id, reply)


def _decoded(id: str, result: bytes, kind: Any) -> Any:
    try:
        return decoder_of(kind)(result)
    except Exception as error:  # validation code of the user may raise anything
        name = getattr(kind, "__name__", None) or str(kind)
        raise InvalidArgument(
            f"the result of {id!r} is no {name}; leave type= out to get it as it is: {error}"
        ) from error


def _refuse(id: str, reply: Ends) -> NoReturn:
    if reply.ends:
        end = reply.ends[0]
        by = f" by {end.by}" if end.by else ""
        why = f": {end.failures[-1].reason.splitlines()[0]}" if end.failures else ""
        told = {"dead": f"died{' at' * bool(by)}{by[3:]}{why}"}.get(end.how, f"was {end.how}{by}")
        if end.how == "expired":
            told = "expired before a worker took it"
        raise NotAcked(f"{id} {told}; it has no result", end)
    if reply.state in ("dead", "expired"):
        raise NotAcked(f"{id} is {reply.state}; it has no result", None)
    raise NotRemembered(
        f"nothing is remembered of {id!r}: there was no such message, or the queue has no "
        "result_ttl (bide set QUEUE --result-ttl 1d), or its time has passed"
    )
