"""One message: its fields, its body, its failures, and what can be done with it."""

from bide.dashboard.view import Page, Refused, View
from bide.model.commands import Find, History
from bide.model.identity import check_name
from bide.model.message import size_of
from bide.model.replies import Ends, Found
from bide.observing.explanation import Explanation

POSSIBLE = {
    "delayed": ("reschedule", "edit", "cancel", "copy"),
    "ready": ("reschedule", "edit", "cancel", "copy"),
    "leased": ("release", "copy"),
    "dead": ("edit", "revive", "purge", "copy"),
    "acked": ("copy",),
    "expired": ("copy",),
}
"""What can be done with a message, by its state."""


async def message(view: View) -> Page:
    """Return the page of a message."""
    full, id = view.queue(), view.request.get("id")
    found = await view.store.ask(Found, Find(full, [check_name(id)]))
    one = found.messages[0]
    ends = (await view.store.ask(Ends, History(full, id))).ends
    if one is None and not ends:
        raise Refused(404, "no-message", id)
    facts = await view.store.explain(full, id)
    if one is None:
        explanation = Explanation(id, view.own(full), facts)
        gone = {"explanation": explanation, "queue": view.own(full), "id": id, "ends": ends}
        return Page("ended.html", gone)
    return Page("message.html", {
        "explanation": Explanation(id, view.own(full), facts),
        "queue": view.own(full), "message": one, "body": view.body(one),
        "editable": view.editable(one), "headers": view.headers(one), "size": size_of(one),
        "ends": ends,
        "actions": [action for action in POSSIBLE[one.state] if view.may(action)],
    })  # fmt: skip
