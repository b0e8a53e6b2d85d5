"""Results: what handlers return, for queues that remember it."""

import logging

from bide.consuming import delivery_log
from bide.consuming.handling import Handling
from bide.model.ended import encode_result
from bide.model.errors import InvalidArgument


def keep_result(one: Handling) -> None:
    """Encode what a handler has returned, if its queue remembers results.

    A message whose result cannot be stored is acked without one.
    """
    returned, one.returned = one.returned, None
    if not one.keeps_result:
        return
    try:
        one.result = encode_result(returned)
    except InvalidArgument as error:
        delivery_log.tell(
            logging.ERROR, one, "result", "%s returned what cannot be kept as its result: %s",
            one.handler.name, error,
        )  # fmt: skip
