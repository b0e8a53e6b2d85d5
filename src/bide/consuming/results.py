"""Results: what handlers return, for queues that remember it."""

import logging

from bide.consuming import delivery_log
from bide.consuming.handling import Handling
from bide.consuming.outcomes import text_of
from bide.model.ended import encode_result


def keep_result(one: Handling) -> None:
    """Encode what a handler has returned, if its queue remembers results.

    A message whose result cannot be stored is acked without one.
    """
    returned, one.returned = one.returned, None
    if not one.keeps_result:
        return
    try:
        one.result = encode_result(returned)
    except Exception as error:  # noqa: BLE001  (code of a user's class, such as a property)
        delivery_log.tell(
            logging.ERROR, one, "result", "%s returned what cannot be kept as its result: %s",
            one.handler.name, text_of(error) or type(error).__name__,
        )  # fmt: skip
