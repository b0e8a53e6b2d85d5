"""Why a message is where it is."""

from typing import Literal

import msgspec

from bide.model.commands import Explain
from bide.model.identity import check_name
from bide.model.replies import Explained
from bide.observing.explanation import Explanation, Reason
from bide.server import wire
from bide.server.call import Call
from bide.server.operation import MESSAGE, Routes
from bide.server.problem import Problem

route = Routes("messages")


class ExplainQuery(wire.Request):
    """How to explain."""

    language: Literal["en", "zh"] = "en"
    """Of the sentence: English or Simplified Chinese."""


class ExplanationOut(msgspec.Struct):
    """Why a message is where it is."""

    id: str
    queue: str
    sentence: str
    reasons: list[Reason]
    """The causes, the most important one first."""
    facts: Explained
    """What the sentence is made of."""


@route("explain", "GET", f"{MESSAGE}/explanation", "read", problems=(404,))
async def explain(call: Call, query: ExplainQuery) -> ExplanationOut:
    """Tell why a message is where it is.

    When it is due, who holds it, or why no worker has taken it: the queue is paused, no worker
    serves it, all are busy, others go first. Its cost does not depend on how many messages are
    pending.
    """
    queue, id = call.arguments.queue, check_name(call.part("id"))
    facts = await call.ask(Explained, Explain(queue, id))
    found = Explanation(id, call.queue, await call.service.explained(queue, id, facts))
    if facts.state is None and found.facts.end is None:
        raise Problem("not-found", found.sentence)
    sentence = found.in_language(query.language)
    return ExplanationOut(id, call.queue, sentence, list(found.reasons), found.facts)
