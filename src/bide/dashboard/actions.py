"""What a visitor can do: each action is one command of the store, or that command in parts."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import UNSET, UnsetType

from bide.dashboard.pages.messages import error_kind, letters
from bide.dashboard.summary import summary_of
from bide.dashboard.view import HtmlPage, PageRefused, PageView, Redirect
from bide.lane.steps import Steps, arun_steps, find_all
from bide.model import commands as cmd
from bide.model import replies
from bide.model.errors import InvalidArgument
from bide.model.identity import actor_of, check_name, new_id
from bide.model.internal_queues import internal_queue
from bide.model.message import Message
from bide.model.options import options_of
from bide.model.parts import in_parts
from bide.model.repeat import Repeat, repeat
from bide.model.replies import GONE, Outcome, Outcomes, Reply
from bide.model.runs import Run
from bide.model.time_rule import TimeRule
from bide.model.times import milliseconds
from bide.model.undoing import UNDO_FOR, Bulk, Undo, Verb, bulk_of
from bide.model.window import Window
from bide.observing.seen_runs import run_of
from bide.observing.workers import request_stop
from bide.queue.command_builder import CommandBuilder
from bide.queue.dry_run import preview_reschedule
from bide.queue.repeating import holding, resuming, running_now
from bide.queue.results import Audit, deleted
from bide.server.access.rights import is_for_admins
from bide.server.logs import DONE, Act
from bide.undoing.changes import change_in_parts, steps_of, undo_in_parts, yield_part

R = TypeVar("R", bound=Reply)

MOST_CHANGED = 10_000
"""How many messages one action changes at most, in whole parts."""

PREVIEW_COUNT = 10
"""How many messages a preview shows."""

READ_BYTES = 1 << 20


def rule_of(view: PageView) -> cmd.Where | None:
    """Return the group and range of due times that a form is about; `None` if it names ids."""
    request = view.request
    if request.get("by") != "rule":
        return None
    group = request.get("group")
    where = cmd.Where(
        check_name(group, "group") if group else None,
        request.moment("after"),
        request.moment("before"),
    )
    if where == cmd.Where():
        raise PageRefused(400, "nothing-chosen")
    return where


async def _execute(view: PageView, command: Bulk | Undo) -> Any:
    """Execute one part of a bulk change, or of an undo; return its reply.

    Raises:
        PageRefused: the visitor may not make this change.
    """

    def allow(verb: Verb) -> None:
        if not view.access.may(verb):
            raise PageRefused(403, "not-allowed", verb)

    has_server = view.store.capabilities.has_server
    if has_server and isinstance(command, Undo):
        # That server knows which change this undoes, but not this visitor: the form says it here.
        allow(cast("Verb", view.request.get("verb")))

    steps = steps_of(command, has_server=has_server, allow=allow)
    with await view.admit(command):
        return await arun_steps(steps, _admitted(view))


def _admitted(view: PageView) -> Callable[[cmd.Command], Awaitable[Reply]]:
    """Return what executes a command, unless it is beyond a quota."""

    async def execute(command: cmd.Command) -> Reply:
        with await view.admit(command):
            return await view.store.execute(command)

    return execute


async def _outcomes_of(view: PageView, queue: str, ids: list[str]) -> list[Outcome]:
    """Return outcomes of messages that were not changed: they tell where the messages are."""
    messages = await view.store.run(find_all(queue, ids))
    return [_not_done(id, messages.get(id)) for id in ids]


def _not_done(id: str, message: Message | None) -> Outcome:
    """Return the outcome for a message that was not changed; `None`: it does not exist."""
    if message is None:
        return Outcome(id, done=False)
    return Outcome(
        id,
        False,
        message.state,
        message.due,
        message.until or message.ended,
        message.holder,
    )


MOST_REFUSED = 20
"""How many messages a page names for which something could not be done."""

CONFIRMED_ACTIONS = ("cancel", "purge", "release")
"""Actions that need a confirmation, also for one message."""

UNDOABLE_ACTIONS = ("cancel", "purge", "reschedule", "revive")
"""Actions that can be taken back for a while."""


class Result(msgspec.Struct, frozen=True):
    """What an action did."""

    count: int = 1
    """How many messages were changed, or 1 for a queue."""
    refused: Sequence[Outcome] = ()
    """Messages for which it could not be done."""
    undo: str | None = None
    """The token by which it is taken back."""
    stopping: int = 0
    """How many messages are not cancelled yet: their workers were asked to stop."""
    page: HtmlPage | None = None
    """What to show instead of the page that the visitor came from."""
    parameters: Mapping[str, Any] = {}
    """More parameters of the URL of that page; see `RESULT_PARAMETERS`."""


async def act(view: PageView, log: Callable[[Act], None]) -> HtmlPage | Redirect:
    """Do what a form asks for, or ask whether it is meant.

    Args:
        view: the request of the form.
        log: takes what was done, also if it was refused or failed.

    Raises:
        PageRefused: the visitor may not do this.
        BideError: the action failed.
    """
    request = view.request
    action = request.get("action")
    if action not in _FUNCTIONS:
        raise PageRefused(404, "not-found")
    ids = [check_name(id) for id in request.form.get("id", [])]
    queue = request.get("queue")
    target = ids[0] if len(ids) == 1 else request.get("name") or None
    # An undo needs the right of what it takes back, which its own function checks.
    may_act = action == "undo" or view.access.may(action)
    if is_for_admins(internal_queue(queue), only_reads=action == "audit"):
        may_act = may_act and view.access.may("stop")  # as an admin may
    if not may_act:
        log(Act(action, queue or None, 0, "forbidden", target))
        raise PageRefused(403, "not-allowed", action)
    log_result: str | None = "failed"  # `None`: nothing is logged
    count = 0
    try:
        if action not in _WITHOUT_IDS:
            ids, where = await _chosen(view, ids)
            if action == "reschedule":
                _rescheduling(view)  # refuse a wrong time before asking a question
            if _needs_confirmation(view, action, ids, where):
                log_result = None
                return await _question(view, action, ids, where)
        result = await _FUNCTIONS[action](view, ids)
        log_result, count = DONE, result.count + result.stopping
    except PageRefused:
        if action == "undo":
            log_result = "forbidden"
        raise
    finally:
        if log_result is not None:
            log(Act(action, queue or None, count, log_result, target))
    return _page_after(view, action, result)


async def _chosen(view: PageView, ids: list[str]) -> tuple[list[str], cmd.Where | None]:
    """Return the messages that a form is about: their ids, or a rule.

    Raises:
        PageRefused: the form names no messages and no rule.
    """
    where = rule_of(view)
    if view.request.get("by") and where is None:
        ids = await _ids_of_kind(view)
    if not (ids or where):
        raise PageRefused(400, "nothing-chosen")
    return ids, where


def _needs_confirmation(
    view: PageView, action: str, ids: list[str], where: cmd.Where | None
) -> bool:
    """Tell whether to ask first if it is meant: see `CONFIRMED_ACTIONS`, or several messages."""
    is_about_several = where is not None or len(ids) > 1
    return (action in CONFIRMED_ACTIONS or is_about_several) and not view.request.get("confirmed")


def _page_after(view: PageView, action: str, result: Result) -> HtmlPage | Redirect:
    """Return what the visitor sees after an action.

    That is the page that it made, or what it could not change. Else it is the page that the form
    was on: the parameters of its URL say what was done, see `RESULT_PARAMETERS`.
    """
    if result.page is not None:
        return result.page
    if result.refused:
        return HtmlPage(
            "refused.html",
            {
                "action": action,
                "count": result.count + result.stopping,
                "refused": result.refused[:MOST_REFUSED],
                "more": len(result.refused[MOST_REFUSED:]),
                "back": _back(view),
                "undo": result.undo,
                "until": view.now + UNDO_FOR,
            },
            409,
        )
    parameters: dict[str, Any] = {"said": action, "count": result.count, **result.parameters}
    if result.stopping:
        parameters["stopping"] = result.stopping
    if result.undo is not None and result.count:
        queue = view.request.get("queue")
        parameters |= {"undo": result.undo, "of": queue, "until": view.now + UNDO_FOR}
    back = _back(view)
    return Redirect(f"{back}{'&' if '?' in back else '?'}{urlencode(parameters)}")


def _back(view: PageView) -> str:
    """Return the URL of the page that the form was on, without the result of an earlier action."""
    url, _, _fragment = view.request.inside(view.request.get("back")).partition("#")
    path, _, query = url.partition("?")
    parameters = [
        (name, value) for name, value in parse_qsl(query) if name not in RESULT_PARAMETERS
    ]
    return f"{path}?{urlencode(parameters)}" if parameters else path


async def _question(
    view: PageView, action: str, ids: list[str], where: cmd.Where | None
) -> HtmlPage:
    """Return the page that asks whether an action is meant, with the first messages."""
    stops_running_work = action == "cancel" and _includes_held(view)
    if where is None:
        preview = await _preview_of_ids(view, ids)
    elif action == "reschedule":
        count, movable = await view.store.run(preview_reschedule(view.queue(), where, READ_BYTES))
        preview = _Preview(count, movable[:PREVIEW_COUNT], max(0, count - PREVIEW_COUNT))
    else:
        preview = await _preview_of_cancel(view, where, running=stops_running_work)
    summaries = [summary_of(message, view.shown) for message in preview.first]
    shown_bodies = sum(1 for summary in summaries if summary.preview)
    view.log_shown_bodies(view.request.get("queue"), shown_bodies)
    # The form is sent again with the answer.
    fields = [(name, value) for name, values in view.request.form.items() for value in values]
    if view.request.get("by"):  # what dies after this moment is left out: see `_ids_of_kind`
        fields.append(("until", str(view.now)))
    return HtmlPage(
        "confirm.html",
        {
            "action": action,
            "queue": view.request.get("queue"),
            "first": summaries,
            "count": preview.total,
            "more": preview.more,
            "fields": fields,
            "most": MOST_CHANGED,
            "undoable": action in UNDOABLE_ACTIONS and not stops_running_work,
            "back": _back(view),
        },
    )


class _Preview(NamedTuple):
    """What an action would change."""

    total: int
    """The number of messages."""
    first: list[Message]
    """The first of them that are there."""
    more: int
    """How many there are behind those that were looked at."""


async def _preview_of_ids(view: PageView, ids: list[str]) -> _Preview:
    """Return the preview of an action on messages by id."""
    find = cmd.Find(view.queue(), ids[:PREVIEW_COUNT], max_bytes=READ_BYTES)
    found = await view.store.ask(replies.Found, find)
    first = [message for message in found.messages if message is not None]
    return _Preview(len(ids), first, len(ids[PREVIEW_COUNT:]))


async def _preview_of_cancel(view: PageView, where: cmd.Where, *, running: bool) -> _Preview:
    """Return the preview of a cancel by a rule; `running`: also of what workers hold."""
    queue = view.queue()
    dry_run = cmd.Cancel(queue, where=where, dry_run=True, running=running)
    count = (await view.store.ask(replies.Affected, dry_run)).count
    first: list[Message] = []
    for state in ("next", "leased") if running else ("next",):
        scan = cmd.Scan(queue, state, where, limit=PREVIEW_COUNT, max_bytes=READ_BYTES)
        page = await view.store.ask(replies.Page, scan)
        first += [message for message in page.messages if message.stopping is None]
    first = first[:PREVIEW_COUNT]
    return _Preview(count, first, max(0, count - len(first)))


async def _ids_of_kind(view: PageView) -> list[str]:
    """Return the ids of the dead letters of a queue: of one kind of error, or all.

    The form shows how many there are. Dead letters since then are left out, so that the action
    changes no more than the visitor has seen.
    """
    full_name, kind = view.queue(), view.request.get("kind")
    shown_at = view.request.number("until")  # see `_question`
    until = view.now if shown_at is None else shown_at
    return [
        letter.id
        async for letter in letters(view.store, full_name, MOST_CHANGED)
        if (letter.ended or 0) <= until
        and (view.request.get("by") == "all" or error_kind(letter.error) == kind)
    ][:MOST_CHANGED]


def _actor(view: PageView) -> str:
    """Return the actor of commands."""
    return actor_of(view.access.name or "the dashboard")


async def _ask(view: PageView, kind: type[R], command: cmd.Command) -> R:
    """Execute a command in the visitor's name."""
    return await view.store.ask(kind, msgspec.structs.replace(command, actor=_actor(view)))


async def _each(view: PageView, ids: list[str], command: Any) -> Result:
    """Execute a command for messages, a thousand at a time."""
    outcomes: list[Outcome] = []
    for part in in_parts(ids):
        part_command = msgspec.structs.replace(command, ids=list(part))
        outcomes += (await _ask(view, Outcomes, part_command)).outcomes
    return _result(outcomes)


def _result(outcomes: Sequence[Outcome]) -> Result:
    """Return the result of a command that had these outcomes."""
    refused = [outcome for outcome in outcomes if not outcome]
    return Result(len(outcomes) - len(refused), refused)


async def _undoably(view: PageView, command: Any, where: cmd.Where | None) -> Result:
    """Execute a command, so that the visitor can take it back.

    It is executed in parts until `MOST_CHANGED` messages were changed.

    Args:
        view: the page that the visitor sees.
        command: names the messages, unless `where` does.
        where: the rule that selects them; `None`: the command has their ids.
    """
    command = msgspec.structs.replace(command, actor=_actor(view))
    bulk = bulk_of(command, where, by_id=where is None)
    parts = change_in_parts(bulk, yield_part)
    count = 0
    unchanged: list[str] = []
    reply: Any = None
    with suppress(StopIteration):  # after the last part
        while count < MOST_CHANGED:
            reply = await _execute(view, parts.send(reply))
            count += reply.count
            unchanged += reply.unchanged
    return Result(count, await _outcomes_of(view, bulk.queue, unchanged), bulk.undo)


async def _cancel(view: PageView, ids: list[str]) -> Result:
    """Cancel messages; so that it can be taken back, unless the form is about held ones, too."""
    where = rule_of(view)
    if not _includes_held(view):
        return await _undoably(view, cmd.Cancel(view.queue(), ids, where=where), where)
    if where is not None:
        return await _cancel_all(view, cmd.Cancel(view.queue(), where=where, running=True))
    result = await _each(view, ids, cmd.Cancel(view.queue(), running=True))
    refused = [outcome for outcome in result.refused if outcome.state != "stopping"]
    return Result(result.count, refused, stopping=len(result.refused) - len(refused))


async def _cancel_all(view: PageView, command: cmd.Cancel) -> Result:
    """Cancel up to `MOST_CHANGED` messages by rule, also those that workers hold."""
    count = stopping = 0
    while count + stopping < MOST_CHANGED:
        with await view.admit(command):
            affected = await _ask(view, replies.Affected, command)
        count += affected.count
        stopping += len(affected.stopping)
        if not affected.more:
            break
    return Result(count, stopping=stopping)


def _includes_held(view: PageView) -> bool:
    """Return whether a form that cancels is also about messages that workers hold."""
    return view.request.get("running") == "1"


async def _reschedule(view: PageView, ids: list[str]) -> Result:
    command = msgspec.structs.replace(_rescheduling(view), ids=ids)
    return await _undoably(view, command, rule_of(view))


def _rescheduling(view: PageView, default: str | None = None) -> cmd.Reschedule:
    """Return the command with the due time of a form; its id is "-".

    Args:
        view: the request.
        default: the delay of a form without a due time; `None`: it must have one.

    Raises:
        InvalidArgument: there is none, or no valid one.
    """
    at = view.request.moment("at")
    delay = view.request.get("delay") or (default if at is None else None)
    if delay is None and at is None:
        raise InvalidArgument('delay="" is not a duration; write 30s, 5m or 1h30m, or give a time')
    moment = None if at is None else at / 1000
    return CommandBuilder(view.queue()).reschedule(["-"], delay, moment, None)


async def _message(view: PageView, id: str) -> Message:
    """Return a message that a form names."""
    (message,) = (await view.store.ask(replies.Found, cmd.Find(view.queue(), [id]))).messages
    if message is None:
        raise PageRefused(404, "no-message", id)
    return message


async def _edit(view: PageView, ids: list[str]) -> Result:
    """Change the fields in which a form differs from the message, if the message is unchanged."""
    full_name, request = view.queue(), view.request
    message = await _message(view, ids[0])
    changes: dict[str, Any] = {}
    for name, value in options_of(message).items():
        number = request.number(name) if isinstance(value, int) else None
        new_value = (request.get(name) or None) if number is None else number  # empty: none
        if new_value != value:
            is_text = isinstance(new_value, str)
            changes[name] = (str(new_value).strip() or None) if is_text else new_value
    text = request.get("body").replace("\r\n", "\n")
    if view.shown.editable(message) not in (None, text):  # `None`: the form has no body
        try:
            changes["body"] = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise InvalidArgument(f"body is not JSON: {error}; write text in quotes") from None
    new_rule, new_window = _rule_in_form(view, message), _window_in_form(view, message)
    if not changes and new_rule is UNSET and new_window is UNSET:
        return Result(0)
    if view.shown.version(message) != request.get("version"):  # it has changed meanwhile
        return Result(0, [_not_done(message.id, message)])
    body = changes.pop("body", UNSET)
    command = _builder(view, full_name).edit(
        ids[:1],
        body,
        None,
        None,
        message.version,
        repeat=new_rule,
        window=new_window,
        message=message,
        **changes,
    )
    old_run = run_of(message)
    if isinstance(command.run, str) and old_run is not None and old_run.held:  # it stays held
        held_run = msgspec.structs.replace(Run.of(command.run), held=True)
        command = msgspec.structs.replace(command, run=held_run.text, at=held_run.due)
    with await view.admit(command):
        return await _each(view, ids[:1], command)


def _rule_in_form(view: PageView, message: Message) -> Repeat | UnsetType | None:
    """Return the rule of a form if it is another one than that of the message; `None`: it has none.

    Bounds of the rule, which the form does not have, stay.

    Raises:
        InvalidArgument: there is no such rule.
    """
    request = view.request
    if request.get("rule") != "1":  # the form has no rule
        return UNSET
    cron, every, rule = request.get("cron"), request.get("every"), message.repeat
    if not cron and not every:
        return UNSET if rule is None else None
    new_rule = repeat(
        cron=cron or None,
        every=every or None,
        timezone=(request.get("timezone") or None) if cron else None,
        start=None if rule is None else rule.start,
        until=None if rule is None else rule.until,
        times=None if rule is None else rule.times,
        missed="once" if rule is None else rule.missed,
        grace=None if rule is None else rule.grace,
    )
    return UNSET if new_rule == rule else new_rule


def _window_in_form(view: PageView, message: Message) -> Window | UnsetType | None:
    """Return the window of a form if it is another one than that of the message; `None`: none.

    Holidays, which the form does not have, stay.

    Raises:
        InvalidArgument: there is no such window.
    """
    request = view.request
    if request.get("window") != "1":  # the form has none
        return UNSET
    hours, window = request.get("hours"), message.window
    if not hours:
        return UNSET if window is None else None
    holidays = () if window is None else window.holidays
    new_window = Window(hours, request.get("hours_timezone") or "UTC", holidays)
    return UNSET if new_window == window else new_window


def _builder(view: PageView, queue: str) -> CommandBuilder:
    """Return what makes the commands of a queue in the visitor's name."""
    return CommandBuilder(queue, actor=_actor(view), now=lambda: view.now)


async def _of_runs(
    view: PageView, ids: list[str], steps: Callable[[CommandBuilder, str], Steps[Outcome]]
) -> Result:
    """Do something with the runs of messages that repeat."""
    builder, execute = _builder(view, view.queue()), _admitted(view)
    return _result([await arun_steps(steps(builder, id), execute) for id in ids])


async def _copy(view: PageView, ids: list[str]) -> Result:
    """Put a copy of a message under another id. It does not repeat, and keeps the window.

    If the window is closed when the copy would be due, it is due when the window opens.
    """
    full_name, copy_id = view.queue(), view.request.get("new")
    new_time = _rescheduling(view, "0s")
    original = await _message(view, ids[0])
    rule = TimeRule(window=original.window)
    wanted_due = view.now + new_time.delay if new_time.at is None else new_time.at
    opening = rule.opening(wanted_due)
    # An open window leaves a delay a delay, which the store counts by its own clock.
    at = new_time.at if opening == wanted_due else opening
    item = msgspec.structs.replace(
        original.as_item((), None),
        id=check_name(copy_id) if copy_id else new_id(),
        created=None,
        at=at,
        delay=new_time.delay,  # without effect if `at` is set
        expires=original.as_edited().expires,
        attempt=0,
        rule=rule.text,
        run=None,
    )
    put = cmd.Put(full_name, [item])
    with await view.admit(put):
        return _result((await view.store.ask(Outcomes, put)).outcomes)


async def _release(view: PageView, ids: list[str]) -> Result:
    full_name = view.queue()
    return await _each(view, ids, cmd.Release(full_name, [], f"released by {_actor(view)}"))


async def _pause(view: PageView, _: list[str]) -> Result:
    is_paused, lasting = view.request.get("on") == "1", view.request.get("for")
    paused_for = milliseconds(lasting, "for") if lasting else None
    command = cmd.Configure(view.queue(), paused=is_paused, paused_for=paused_for)
    with await view.admit(command):
        await _ask(view, replies.QueueSettings, command)
    return Result()


async def _delete(view: PageView, _: list[str]) -> Result:
    full_name = view.queue()
    deleted(view.own(full_name), await _ask(view, replies.Deleted, cmd.Delete(full_name)))
    return Result()


async def _subscription(view: PageView, _: list[str]) -> Result:
    """Pause a subscription, or resume it."""
    namespace, name = view.access.namespace, view.request.get("name")
    name = name if namespace is None else f"{namespace}/{name}"
    records = view.store.records
    subscription = await records.get(name)
    if subscription is None or view.access.caller.own(subscription.queue) is None:
        raise PageRefused(404, "not-found")
    if view.request.get("on") == "1":
        await records.pause(name, f"paused by {_actor(view)}")
    else:
        await records.resume(name)
    return Result()


async def _audit(view: PageView, _: list[str]) -> Result:
    """Recount the messages of a queue, and show whether the sums agree."""
    full_name = view.queue()
    counts = await view.store.recent.get(
        ("audit", full_name),
        0,
        lambda: view.store.ask(replies.Counts, cmd.Count(full_name, recount=True)),
    )
    page = HtmlPage(
        "audit.html",
        {
            "audits": [Audit.of(view.own(full_name), counts)],
            "gone": GONE,
            "following": None,
            "recounted": True,
        },
    )
    return Result(counts.sizes.total, page=page)


async def _stop(view: PageView, ids: list[str]) -> Result:
    """Ask the supervisors of processes to replace them."""
    glance = await view.store.glance(view.access)
    stops = {worker.holder: worker.stops for worker in glance.workers if worker.stops is not None}
    for holder in ids:
        queue = stops.get(holder)
        if queue is None or view.access.caller.own(queue) is None:
            raise PageRefused(404, "not-found")
        await _ask(view, Outcomes, request_stop(queue, holder, _actor(view)))
    return Result(len(ids))


async def _undo(view: PageView, _: list[str]) -> Result:
    """Take back the change that a form names, if the visitor may make such a change."""
    steps = undo_in_parts(view.queue(), view.request.get("undo"), _actor(view), yield_part)
    undone = await arun_steps(steps, lambda part: _execute(view, part))
    facts = msgspec.structs.asdict(undone)
    return Result(
        undone.restored,
        parameters={name: facts[name] for name in facts if name in RESULT_PARAMETERS},
    )


_FUNCTIONS: dict[str, Callable[[PageView, list[str]], Awaitable[Result]]] = {
    "cancel": _cancel,
    "reschedule": _reschedule,
    "edit": _edit,
    "hold": lambda view, ids: _of_runs(view, ids, holding),
    "resume": lambda view, ids: _of_runs(view, ids, resuming),
    "run_now": lambda view, ids: _of_runs(view, ids, running_now),
    "copy": _copy,
    "release": _release,
    "revive": lambda view, ids: _undoably(view, cmd.Revive(view.queue(), ids), None),
    "purge": lambda view, ids: _undoably(view, cmd.Purge(view.queue(), "dead", ids=ids), None),
    "pause": _pause,
    "delete": _delete,
    "subscriptions": _subscription,
    "audit": _audit,
    "stop": _stop,
    "undo": _undo,
}

RESULT_PARAMETERS = (
    "said",
    "count",
    "stopping",
    "undo",
    "of",
    "until",
    "taken",
    "claimed",
    "unknown",
    "again",
)
"""Parameters of a URL by which a page says what was done."""

_WITHOUT_IDS = ("pause", "delete", "subscriptions", "audit", "undo")
