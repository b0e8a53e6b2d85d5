"""Makes commands of the arguments of a queue's methods, and checks these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from bide.lane.shared import present_clock
from bide.model import body as bodies
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.identity import (
    actor_of,
    check_actor,
    check_name,
    check_queue,
    new_id,
    new_ids,
    text_of,
)
from bide.model.limits import MAX_BODY, MAX_BUCKETS, MAX_COUNT, MAX_LEASE, MAX_PAGE, check_whole
from bide.model.message import Item, Message, NewMessage, Progress, State
from bide.model.options import OPTIONS, check_options
from bide.model.replies import ClosedGroup
from bide.model.times import (
    Duration,
    Moment,
    delay_in_ms,
    format_duration,
    milliseconds,
    place_in_span,
    spread_out,
    unix,
    when,
)
from bide.queue import arguments

_SIMPLE = frozenset((dict, list, str, bytes, int, float, bool, type(None)))
"""Types of bodies that are never a `NewMessage`."""


_all_but_body = attrgetter(
    *(name for name in NewMessage.__struct_fields__ if name not in ("body", "id"))
)
"""Returns the options of a message. If those of one put are the same, they are checked once."""


class CommandBuilder:
    """Makes the commands of one queue.

    Args:
        queue: its name.
        max_body: how many bytes an encoded body may take.
        actor: who changes messages; the host and process by default.
        now: returns the time in Unix milliseconds, from which on messages repeat.
    """

    def __init__(
        self,
        queue: str,
        max_body: int = MAX_BODY,
        actor: str | None = None,
        now: Callable[[], int] = lambda: present_clock().now(),
    ) -> None:
        self.queue = check_queue(queue)
        self._actor = None if actor is None else check_actor(actor)
        if not isinstance(max_body, int) or max_body < 1:
            raise InvalidArgument(f"max_body={max_body!r} must be a number of bytes above 0")
        self.max_body = max_body
        self.now = now

    @property
    def actor(self) -> str:
        """Who changes messages, as commands say it."""
        return self._actor or actor_of(arguments.own_name())

    def put_many(self, messages: Iterable[Any], shared: NewMessage, on_conflict: str) -> cmd.Put:
        """Return the command that puts messages, or bodies with the options of `shared`."""
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            kind = type(messages).__name__
            raise InvalidArgument(
                f"put_many takes an iterable of messages or bodies, not {kind}; for one message "
                "use put"
            )
        listed = list(messages)
        # With a spread, the due time depends on the id.
        share_due = shared.spread is None
        if not listed or not share_due or not _SIMPLE.issuperset(map(type, listed)):
            whole_messages = [
                arguments.whole_message(element) or msgspec.structs.replace(shared, body=element)
                for element in listed
            ]
            return self.put(whole_messages, on_conflict)
        # All are bodies, whose items differ in their first three fields only.
        ids = new_ids(len(listed))
        shared_fields = msgspec.structs.astuple(self.item(shared, ""))[3:]
        datas, are_json = bodies.encode_all(listed, self.max_body)
        items = list(map(Item, ids, datas, are_json, *map(repeat, shared_fields)))
        return cmd.Put(self.queue, items, _policy_of(on_conflict))

    def put(self, messages: Iterable[NewMessage], on_conflict: str = "keep") -> cmd.Put:
        """Return the command that puts messages."""
        policy = _policy_of(on_conflict)
        listed = list(messages)
        without_id = sum([message.id is None for message in listed])
        unused_ids = iter(new_ids(without_id) if without_id else ())
        datas, are_json = bodies.encode_all([message.body for message in listed], self.max_body)
        items: list[Item] = []
        checked_options: tuple[Any, ...] | None = None  # of the last message
        checked_fields: tuple[Any, ...] = ()  # what its item has of them
        for message, data, is_json in zip(listed, datas, are_json, strict=True):
            id = next(unused_ids) if message.id is None else check_name(message.id)
            options = _all_but_body(message)
            if options == checked_options and type(message.body) in _SIMPLE:  # as in most batches
                if message.repeat is not None:
                    import bide.model.runs as runs

                    runs.check_repeated_id(id)
                items.append(Item(id, data, is_json, *checked_fields))
                continue
            item = self.item(message, id, encoded=(data, is_json))
            items.append(item)
            # Items share no headers, which may change; `latest` needs an id that is checked, and
            # with a spread the due time depends on the id.
            can_repeat = item.headers is None and item.latest is None and message.spread is None
            checked_options = options if can_repeat else None
            checked_fields = msgspec.structs.astuple(item)[3:]
        arguments.check_latest(items, policy)
        return cmd.Put(self.queue, items, policy)

    def put_one(self, message: NewMessage, on_conflict: str, if_version: str | None) -> cmd.Put:
        """Return the command that puts one message; its body may be a whole one, or a job."""
        body = message.body
        if type(body) not in _SIMPLE and (whole := arguments.whole_message(body)) is not None:
            if _all_but_body(message) != _all_but_body(NewMessage(None)) or message.id is not None:
                raise InvalidArgument(
                    f"{type(body).__name__} has its own id, due time and options: set them "
                    "there, and call put(message) without others"
                )
            message = whole
        policy = _policy_of(on_conflict, ["raise"])
        item = self.item(message)
        if item.latest is not None:
            arguments.check_latest([item], policy, if_version)
        if if_version is None:
            return cmd.Put(self.queue, [item], policy)
        if message.id is None or on_conflict != "replace":
            raise InvalidArgument(
                f"if_version={if_version!r} is for replacing what you saw: add its id and "
                'on_conflict="replace"'
            )
        return cmd.Put(self.queue, [item], policy, arguments.checked_version(if_version))

    def item(
        self,
        message: NewMessage,
        id: str | None = None,
        *,
        decoded: bool = False,
        encoded: tuple[bytes, bool] | None = None,
    ) -> Item:
        """Return a message as the store takes it.

        Args:
            message: as the user made it.
            id: a valid id; by default that of the message, or a new one.
            decoded: the body was decoded from JSON, see `bodies.encode`.
            encoded: the encoded body, and whether it is JSON, if that is known.
        """
        body, headers = message.body, message.headers
        # A job makes a message with a header, and itself as the body.
        if headers is None and type(body) not in _SIMPLE and isinstance(body, msgspec.Struct):
            arguments.refuse_whole(body)
        data, is_json = encoded or bodies.encode(body, self.max_body, decoded=decoded)
        latest = None
        if message.latest is not None:
            latest = arguments.latest_of(message)
        at_ms: int | None
        rule = run = None
        if id is None:
            id = new_id() if message.id is None else check_name(message.id)
        if message.timezone is not None:
            at_ms, delay_ms, rule = self._on_date(message, id)
        else:
            at_ms, delay_ms = when(message.delay, message.at)
            if message.repeat is not None:
                # Here: most programs put no message that repeats. In this form it takes a third of
                # the time of `from ...`.
                import bide.model.runs as runs

                runs.check_repeated_id(id)
                rule, run, at_ms = runs.first_run_of(message, at_ms, delay_ms, self.now())
                delay_ms = 0
            elif message.window is not None:
                from bide.queue.rules import placed  # here: most messages have no window

                rule, at_ms, delay_ms = placed(message, id, (at_ms, delay_ms), self.now())
            elif message.spread is not None:
                at_ms, delay_ms = spread_out((at_ms, delay_ms), id, message.spread)
        expires = message.expires
        return Item(
            id,
            data,
            is_json,
            at_ms,
            delay_ms,
            **check_options(message),
            expires=None if expires is None else arguments.lasting(expires),
            headers=None if headers is None else arguments.headers_of(headers),
            latest=latest,
            rule=rule,
            run=run,
        )

    @staticmethod
    def _on_date(message: NewMessage, id: str) -> tuple[int, int, str | None]:
        """Return when a message is due that has a local date, no delay, and its rule.

        Raises:
            InvalidArgument: it is no date, or the message has what does not go with one.
        """
        from bide.model.local_date import planned_date  # here: most messages have none
        from bide.model.time_rule import TimeRule, checked_window

        for name in ("delay", "repeat"):
            if getattr(message, name) is not None:
                hint = ": a rule has a zone of its own" if name == "repeat" else ""
                raise InvalidArgument(f"{name}= and timezone= cannot be combined{hint}")
        place = 0
        if message.spread is not None:
            place = place_in_span(id, milliseconds(message.spread, "spread"))
        date = planned_date(message.at, message.timezone, spread=place)
        window = None if message.window is None else checked_window(message.window)
        rule = TimeRule(date=date, window=window)
        return rule.opening(date.at), 0, rule.text

    def cancel(
        self,
        ids: Iterable[str],
        if_due: Moment | None,
        if_version: str | None = None,
        *,
        running: bool = False,
    ) -> cmd.Cancel:
        """Return the command that cancels by id."""
        return cmd.Cancel(
            self.queue,
            arguments.ids_of(ids),
            None if if_due is None else unix(if_due, "if_due"),
            None if if_version is None else arguments.checked_version(if_version),
            running=running,
            actor=self.actor,
        )

    def cancel_where(
        self,
        group: str | None,
        after: Moment | None,
        before: Moment | None,
        dry_run: bool,
        *,
        running: bool = False,
    ) -> cmd.Cancel:
        """Return the command that cancels by rule."""
        where = self.where(group, after, before)
        if where is None:
            raise InvalidArgument(
                "cancel needs an id, group=, after= or before=; to empty the queue "
                'use purge(state="delayed") and purge(state="ready")'
            )
        return cmd.Cancel(
            self.queue, where=where, dry_run=dry_run, running=running, actor=self.actor
        )

    def close_group(self, group: str, keep: Duration) -> cmd.CloseGroup:
        """Return the command that closes a group."""
        name, keep_ms = check_name(group, "group"), milliseconds(keep, "keep")
        if keep_ms <= 0:
            raise InvalidArgument(
                f"keep={keep!r} must be longer than 0; reopen_group opens a closed group"
            )
        return cmd.CloseGroup(self.queue, name, keep_ms, actor=self.actor)

    def reopen_group(self, group: str) -> cmd.ReopenGroup:
        """Return the command that opens a closed group."""
        return cmd.ReopenGroup(self.queue, check_name(group, "group"), actor=self.actor)

    def closed_groups(self, after: ClosedGroup | None, limit: int) -> cmd.ClosedGroups:
        """Return the command that lists closed groups."""
        return cmd.ClosedGroups(self.queue, after, check_whole(limit, "limit", 1, MAX_PAGE))

    def where(
        self, group: str | None, after: Moment | None, before: Moment | None
    ) -> cmd.Where | None:
        """Return a rule, `None` if it matches all messages."""
        if group is None and after is None and before is None:
            return None
        return cmd.Where(
            None if group is None else check_name(group, "group"),
            None if after is None else unix(after, "after"),
            None if before is None else unix(before, "before"),
        )

    def reschedule(
        self,
        ids: Sequence[str],
        delay: Duration | None,
        at: Moment | str | None,
        if_due: Moment | None,
        if_version: str | None = None,
    ) -> cmd.Reschedule:
        """Return the command that changes when messages are due."""
        if delay is None and at is None:
            raise InvalidArgument("reschedule needs the new due time: delay= or at=")
        at_ms, delay_ms = when(delay, at)
        return cmd.Reschedule(
            self.queue,
            arguments.ids_of(ids),
            at=at_ms,
            delay=delay_ms,
            if_due=None if if_due is None else unix(if_due, "if_due"),
            if_version=None if if_version is None else arguments.checked_version(if_version),
            actor=self.actor,
        )

    def edit(
        self,
        ids: Sequence[str],
        body: Any,
        delay: Duration | None,
        at: Moment | str | None,
        if_version: str | None,
        *,
        repeat: Any = UNSET,
        window: Any = UNSET,
        message: Message | None = None,
        decoded: bool = False,
        **options: Any,
    ) -> cmd.Edit:
        """Return the command that changes what is named of messages; `UNSET` is not named.

        Args:
            ids: of the messages.
            body, delay, at, if_version, repeat, window: as for `Queue.edit`.
            message: as it is, if that is needed: see `bide.queue.rules.needs_message`.
            decoded: the body was decoded from JSON, see `bodies.encode`.
            options: priority, expires, attempts, group, headers.
        """
        changed = {name: value for name, value in options.items() if value is not UNSET}
        changes_due = delay is not None or at is not None
        changes_rule = repeat is not UNSET or window is not UNSET
        if body is UNSET and not changed and not changes_due and not changes_rule:
            raise InvalidArgument(
                "edit needs at least one change: body=, priority=, expires=, attempts=, group=, "
                "headers=, repeat=, window=, delay= or at="
            )
        for name, option in OPTIONS.items():
            if name in changed:
                changed[name] = option.check(changed[name])
        if changed.get("expires") is not None:
            changed["expires"] = arguments.lasting(changed["expires"])
        if changed.get("headers") is not None:
            changed["headers"] = arguments.headers_of(changed["headers"])
        at_ms, delay_ms = when(delay, at) if changes_due else (None, None)
        if changes_rule:
            from bide.model.runs import check_repeated_id
            from bide.queue.rules import changed_rule  # here: most messages have no rule

            due = None if delay_ms is None else (at_ms, delay_ms)
            rule, run, rule_at = changed_rule(message, repeat, window, due, self.now())
            changed |= {"rule": rule, "run": run}
            if run is not None:
                for id in ids:
                    check_repeated_id(id)
            at_ms = at_ms if rule_at is None else rule_at
        data: bytes | UnsetType = UNSET
        is_json = True
        if body is not UNSET:
            if isinstance(body, msgspec.Struct):
                arguments.refuse_whole(body)
            data, is_json = bodies.encode(body, self.max_body, decoded=decoded)
        return cmd.Edit(
            self.queue,
            arguments.ids_of(ids),
            data,
            is_json,
            **changed,
            at=at_ms,
            delay=delay_ms if at_ms is None else None,
            if_version=None if if_version is None else arguments.checked_version(if_version),
            actor=self.actor,
        )

    def claim(self, count: int, lease: Duration, holder: str | None) -> cmd.Claim:
        """Return the command that claims."""
        lease_ms = self.lease(lease)
        number = check_whole(count, "count", 1, MAX_COUNT)
        return cmd.Claim(self.queue, number, lease_ms, holder or arguments.own_name())

    def lease(self, lease: Duration) -> int:
        """Return the length of a lease in milliseconds."""
        ms = milliseconds(lease, "lease")
        if not 1 <= ms <= MAX_LEASE:
            raise InvalidArgument(
                f"lease={format_duration(ms)} must be between 1 ms and 24 hours; for longer work "
                "take a short lease and extend it"
            )
        return ms

    def ack(self, leases: Sequence[cmd.Lease], results: Sequence[Any] | None = None) -> cmd.Ack:
        """Return the command that acks; a result that is `None` is none."""
        return cmd.Ack(self.queue, list(leases), arguments.results_of(results, len(leases)))

    def renew(
        self,
        leases: Sequence[cmd.Lease],
        next_runs: Sequence[cmd.NextRun | None],
        results: Sequence[Any] | None = None,
    ) -> cmd.Renew:
        """Return the command that acks runs of messages that repeat; results as for `ack`."""
        encoded_results = arguments.results_of(results, len(leases))
        return cmd.Renew(self.queue, list(leases), list(next_runs), results=encoded_results)

    def retry(self, leases: Sequence[cmd.Lease], delay: Duration, reason: str) -> cmd.RetryCommand:
        """Return the command that returns messages for another attempt."""
        return cmd.RetryCommand(self.queue, list(leases), delay_in_ms(delay), text_of(reason))

    def release(self, leases: Sequence[cmd.Lease]) -> cmd.RetryCommand:
        """Return the command that returns messages without counting an attempt."""
        return cmd.RetryCommand(self.queue, list(leases), release=True)

    def end_lease(self, id: str, reason: str | None) -> cmd.Release:
        """Return the command that ends a lease of any worker."""
        actor = self.actor
        given_reason = f"released by {actor}" if reason is None else reason
        return cmd.Release(self.queue, [check_name(id)], text_of(given_reason), actor=actor)

    def configure(self, *, paused: bool | None = None) -> cmd.Configure:
        """Return the command that pauses or resumes."""
        return cmd.Configure(self.queue, paused, actor=self.actor)

    def pause(self, until: Moment | None, lasting: Duration | None) -> cmd.Configure:
        """Return the command that pauses, until a time or for a while."""
        if until is not None and lasting is not None:
            raise InvalidArgument("until= and lasting= cannot be combined; give one")
        return cmd.Configure(
            self.queue,
            paused=True,
            paused_until=None if until is None else unix(until, "until"),
            paused_for=None if lasting is None else milliseconds(lasting, "lasting"),
            actor=self.actor,
        )

    def settings(self, *, paused: bool | None = None, **given: object) -> cmd.Configure:
        """Return the command that changes the settings that are given."""
        settings = arguments.settings_of(**given)
        return msgspec.structs.replace(self.configure(paused=paused), **settings)

    def history(self, id: str, *, watch: bool = False) -> cmd.History:
        """Return the command that reads how messages with an id ended."""
        return cmd.History(self.queue, check_name(id), watch=watch)

    def bury(self, leases: Sequence[cmd.Lease], reason: str) -> cmd.BuryCommand:
        """Return the command that makes messages dead letters."""
        return cmd.BuryCommand(self.queue, list(leases), text_of(reason))

    def extend(self, leases: Sequence[cmd.Lease], lease: Duration) -> cmd.Extend:
        """Return the command that extends leases."""
        return cmd.Extend(self.queue, list(leases), self.lease(lease))

    def report(
        self, leases: Sequence[cmd.Lease], done: float, of: float | None, text: str
    ) -> cmd.Extend:
        """Return the command that says how far a worker has come."""
        reports: list[Progress | None] = [arguments.progress_of(done, of, text)] * len(leases)
        return cmd.Extend(self.queue, list(leases), None, reports)

    def forecast(self, bucket: Duration, horizon: Duration) -> cmd.ForecastCommand:
        """Return the command that forecasts."""
        bucket_ms, horizon_ms = milliseconds(bucket, "bucket"), milliseconds(horizon, "horizon")
        count = -(-horizon_ms // max(1, bucket_ms))  # rounded up: the last one may reach beyond
        if bucket_ms < 1 or horizon_ms < bucket_ms or count > MAX_BUCKETS:
            raise InvalidArgument(
                f"bucket={format_duration(bucket_ms)} and horizon={format_duration(horizon_ms)} "
                f"must give 1 to {MAX_BUCKETS:,} buckets"
            )
        return cmd.ForecastCommand(self.queue, bucket_ms, count)

    def scan(
        self,
        state: State | Literal["next"] | None,
        group: str | None,
        after: Moment | None,
        before: Moment | None,
        limit: int,
        *,
        name: str = "page",
    ) -> cmd.Scan:
        """Return the command that reads the first page of a scan; errors give `limit` this name."""
        scanned = state if state is None or state == "next" else arguments.check_state(state)
        size = check_whole(limit, name, 1, MAX_PAGE)
        return cmd.Scan(self.queue, scanned, self.where(group, after, before), limit=size)

    def list_ended(
        self, how: str | None, after: Moment | None, before: Moment | None, limit: int = 500
    ) -> cmd.ListEnded:
        """Return the command that reads the first page of the messages that have ended."""
        return cmd.ListEnded(
            self.queue,
            None if how is None else arguments.check_ending(how),
            None if after is None else unix(after, "after"),
            None if before is None else unix(before, "before"),
            limit=limit,
        )

    def purge(self, state: str, before: Moment | None) -> cmd.Purge:
        """Return the command that purges."""
        checked = arguments.check_state(state)
        if checked == "leased":
            raise InvalidArgument(
                "leased messages cannot be purged, a worker holds them; wait for an ack, or until "
                "their leases lapse"
            )
        before_ms = None if before is None else unix(before, "before")
        return cmd.Purge(self.queue, checked, before_ms, actor=self.actor)

    def find(self, id: str) -> cmd.Find:
        """Return the command that looks a message up."""
        return cmd.Find(self.queue, [check_name(id)])

    def revive(self, ids: Sequence[str], delay: Duration) -> cmd.Revive:
        """Return the command that revives dead letters."""
        return cmd.Revive(self.queue, arguments.ids_of(ids), delay_in_ms(delay), actor=self.actor)


def _policy_of(on_conflict: str, others: Sequence[str] = ()) -> cmd.OnConflict:
    """Return what a put does if an id exists; `others` are handled by the caller."""
    if on_conflict not in (known := ("keep", "replace", *others)):
        raise InvalidArgument(f"on_conflict={on_conflict!r} must be one of {', '.join(known)}")
    return "replace" if on_conflict == "replace" else "keep"
