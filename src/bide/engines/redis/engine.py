"""The Redis engine: one queue for many machines, on a Redis or Valkey server."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Any

from bide.engines import losses
from bide.engines.ended_pages import end_position
from bide.engines.port import Capabilities, Identities, Notifier, PartlyDone
from bide.engines.redis.calls import CHANGING, Result, ScriptCall, Step, with_identity
from bide.engines.redis.claim import claim, claim_shards
from bide.engines.redis.constants import SLICE
from bide.engines.redis.faults import is_of_shards
from bide.engines.redis.groups import close_group, closed_groups, reopen_group
from bide.engines.redis.messages import change, put, script_of
from bide.engines.redis.notifier import RedisNotifier
from bide.engines.redis.queue_wide import configure, delete, sweep
from bide.engines.redis.queues import ShardedQueue, ShardMap, names_of_queues
from bide.engines.redis.reads import count, explain, find, forecast, history, list_ended
from bide.engines.redis.scan import check_cursor, scan
from bide.engines.redis.sender import CallSender
from bide.engines.redis.settings import RedisSettings
from bide.model import commands as cmd
from bide.model.errors import BideError, Closed, StoreError, StoreUnavailable
from bide.model.replies import Names, Reply
from bide.model.times import LIMITS

_STEP_OF: dict[Any, Callable[[Any, int], Step]] = {
    step.__name__: step
    for step in (
        history,
        list_ended,
        find,
        configure,
        count,
        scan,
        forecast,
        explain,
        delete,
        close_group,
        reopen_group,
        closed_groups,
    )
}
"""By the verb of a command: the function of that name, which executes one command.

Put, claim, cancel and purge by a rule are told apart in `_step`. All other commands name messages:
`change` executes them."""

_OF_SEVERAL_ROUNDS = (
    cmd.Scan,
    cmd.ForecastCommand,
    cmd.Explain,
    cmd.Delete,
    cmd.CloseGroup,
    cmd.ReopenGroup,
)
"""Commands between whose rounds nothing else may be executed."""


def _what_is_shared(command: cmd.Command) -> object:
    """Return what is equal for commands that can be executed as one: all but their messages.

    For a command that must be executed by itself, something that equals nothing else.
    """
    names_messages = command.named_by and getattr(command, "where", None) is None
    is_from_outbox = getattr(command, "origin", None) is not None
    is_of_its_own = isinstance(command, (cmd.Edit, cmd.Find))  # one call for each
    if not names_messages or is_from_outbox or is_of_its_own:
        return object()
    return command.queue, script_of(command)


def _stores_rules(run: Sequence[Any]) -> bool:
    """Return whether commands, executed as one, may store a message that repeats."""
    if isinstance(run[0], cmd.Put):
        return any(item.rule is not None for command in run for item in command.items)
    return isinstance(run[0], cmd.Edit) and (isinstance(run[0].rule, str) or bool(run[0].times))


class RedisEngine:
    """Executes each batch of commands in as few pipelines of scripts as it allows.

    Args:
        settings: where the servers are; `from_url` reads them from a URL.

    Raises:
        StoreError: the store cannot be reached, or is not what bide needs.
    """

    capabilities = Capabilities(ids_ordered=False, resends=True, recovers=True, remembers=True)

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._lane = secrets.token_hex(6)
        """The name of the lane that uses this engine, among all of the store."""
        self._notifier: RedisNotifier | None = None
        self._closed = False
        self._has_noted_repeating = False
        """Whether the store knows from this engine that it has messages that repeat."""
        self._sender = CallSender(settings, self._lane, self._report_loss)
        self._sender.open()
        self._shards = ShardMap(self._sender, settings.shards)

    def execute(
        self, commands: Sequence[cmd.Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Execute the commands in order."""
        if self._closed:
            raise Closed("this engine was closed")
        for command in commands:
            if isinstance(command, cmd.Scan):
                check_cursor(command)
            elif isinstance(command, cmd.ListEnded):
                end_position(command.cursor)
        try:
            if self._sender.claims:  # an exception of a signal handler has left them
                self._give_back(now)
            outcomes = self._execute(commands, now, identities)
            if errors := [outcome for outcome in outcomes if isinstance(outcome, BideError)]:
                texts = {(type(error), str(error)) for error in errors}
                all_are_one = len(errors) == len(outcomes) and len(texts) == 1
                raise errors[0] if all_are_one else PartlyDone(outcomes)
        except BideError:
            self._sender.claims = []
            raise
        # Last, and no call: no signal handler comes between it and the return.
        self._sender.claims = []
        return outcomes  # type: ignore[return-value]

    def reader(self) -> "RedisEngine":
        """Return an engine with connections of its own, whose reads wait for no batch."""
        return RedisEngine(self._settings)

    def notifier(self) -> Notifier | None:
        """Start to listen for what other processes put."""
        if self._notifier is None:
            self._notifier = RedisNotifier(self._settings, self._lane)
            self._sender.listens = True
        return self._notifier

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._notifier is not None:
            self._notifier.close()
        self._sender.nodes.close()

    # Executing.

    def _give_back(self, now: int | None) -> None:
        """Release what an interrupted call has claimed.

        Where that fails, the leases expire later.
        """
        interrupted = self._sender.claims
        # First of all: the reply to another call would take the place of that to a claim.
        answers = [self._sender.answer_or_resend(request) for _, request in interrupted]
        for answer in answers:
            call, _ = interrupted[0]
            if not isinstance(answer, StoreError):
                (_now, _change, token, *_), ids, _records = answer
                rows = [word for id in ids for word in (id, str(token))]
                script, arguments = script_of(cmd.RetryCommand(call.queue, [], release=True))
                release = ScriptCall(
                    script, call.queue, arguments, call.shard, call.shards, rows=rows
                )
                self._sender.send([release], now)
            del interrupted[0]  # a further interrupt leaves the others

    def _execute(
        self, commands: Sequence[cmd.Command], now: int | None, identities: Identities
    ) -> list[Result]:
        """Execute commands, in one pipeline what can be; return what came of each."""
        # A run: consecutive commands that are executed as one.
        runs: Iterable[Sequence[cmd.Command]] = (commands,)
        if identities is not None:  # the store remembers an answer to each
            runs = [(command,) for command in commands]
        elif len(commands) != 1:
            runs = [list(run) for _, run in groupby(commands, _what_is_shared)]
        asked: dict[str, ShardedQueue | StoreError] = {}
        outcomes: list[Result] = []
        together: list[Step] = []  # those before the one at hand that are not executed yet
        for place, run in enumerate(runs):
            step, is_alone = self._step(run, asked, now)
            if identities is not None and (identity := identities[place]) is not None:
                step = with_identity(step, identity)
            if is_alone:
                outcomes += self._advance(together, now)
                outcomes += self._advance([step], now)
                together = []
            else:
                together.append(step)
        return outcomes + self._advance(together, now)

    def _queue_of(
        self, command: cmd.Command, asked: dict[str, ShardedQueue | StoreError], now: int | None
    ) -> ShardedQueue | StoreError:
        """Return the queue of a command, an error as a value; make it if the command creates it.

        The arguments are those of `_step`.
        """
        queue = command.queue
        known = self._shards.known.get(queue)
        if known is not None and known.kept:
            return known
        creates = isinstance(command, (cmd.Put, cmd.Configure, cmd.CloseGroup))
        earlier = asked.get(queue)
        # A command that only read has not made the queue.
        if earlier is None or (creates and not isinstance(earlier, StoreError)):
            sets_limits = any(getattr(command, name, None) for name in LIMITS)
            shards_of_new = 1 if sets_limits else self._settings.shards
            try:
                asked[queue] = self._shards.find(queue, shards_of_new if creates else 0, now)
            except StoreError as error:
                asked[queue] = error
        return asked[queue]

    def _step(
        self, run: Sequence[Any], asked: dict[str, ShardedQueue | StoreError], now: int | None
    ) -> tuple[Step, bool]:
        """Return what commands become, and whether nothing else may be executed meanwhile.

        Args:
            run: commands on one queue that are executed as one.
            asked: by name, the queues for which this batch has asked the store.
            now: see `execute`.
        """
        command = run[0]
        if isinstance(command, cmd.Queues):
            return self._list(command), True
        sharded = self._queue_of(command, asked, now)
        if isinstance(sharded, StoreError):
            return _return_errors([sharded] * len(run)), False
        shards = sharded.count
        if not self._has_noted_repeating and _stores_rules(run):
            try:
                self._sender.note_repeating()
            except StoreError as error:
                return _return_errors([error] * len(run)), False
            self._has_noted_repeating = True
        match command:
            case cmd.Put():
                return put(run, sharded), False
            case cmd.Claim():
                step = claim(command) if shards == 1 else claim_shards(command, sharded)
                return step, shards > 1 or command.count > SLICE
            case cmd.Cancel(where=cmd.Where()) | cmd.Purge(ids=None):
                return sweep(command, shards), True
            case _ if step_of := _STEP_OF.get(command.__struct_config__.tag):
                looks_at_messages = isinstance(command, cmd.Count) and (
                    command.recount or command.stored
                )
                is_alone = isinstance(command, _OF_SEVERAL_ROUNDS) or looks_at_messages
                return step_of(command, shards), is_alone
            case _:
                return change(run, shards), False

    def _list(self, command: cmd.Queues) -> Step:
        """Return the names of queues, in a step that calls no script."""
        yield ()
        return [Names(names_of_queues(self._sender, command.queue))]

    def _advance(self, steps: Sequence[Step], now: int | None) -> list[Result]:
        """Execute steps: what they ask for in the same round goes in one pipeline."""
        outcomes: list[list[Result]] = [[]] * len(steps)
        # Of each: its place among all steps, the step, and the calls of its next round.
        waiting = [(place, step, next(step)) for place, step in enumerate(steps)]
        while waiting:
            answers = self._ask([call for _, _, calls in waiting for call in calls], now)
            answered, waiting = waiting, []
            first = 0  # the index of the first answer for the step at hand
            for place, step, calls in answered:
                behind = first + len(calls)
                try:
                    next_calls = step.send(answers[first:behind])
                except StopIteration as end:
                    outcomes[place] = end.value
                except StoreError as error:
                    outcomes[place] = [error]
                else:
                    waiting.append((place, step, next_calls))
                first = behind
        return list(chain.from_iterable(outcomes))

    def _ask(self, calls: Sequence[ScriptCall], now: int | None) -> list[Any]:
        """Send calls; make shards that were not there. Return what each answered."""
        answers = self._sender.send(calls, now)
        for _ in range(3):  # others may delete the queue again meanwhile
            if StoreUnavailable not in map(type, answers):
                break
            self._make_shards(calls, answers, now)
        return answers

    def _make_shards(
        self, calls: Sequence[ScriptCall], answers: list[Any], now: int | None
    ) -> None:
        """Make shards that were not there, and send the calls again that found none.

        Later calls of the same shard are sent again, too, which keeps the order of commands: but
        not behind one that has made a change, since the shard was there by then.
        """
        missing: set[tuple[str, int]] = set()  # queue and number of a shard
        call_by_place: dict[int, ScriptCall] = {}  # those to send again
        for place, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            shard = call.queue, call.shard
            if is_of_shards(answer):
                missing.add(shard)
            elif call.script in CHANGING:  # another process has made the shard meanwhile
                missing.discard(shard)
            if shard in missing:
                call_by_place[place] = call
        with suppress(StoreError):  # the calls fail likewise then
            for queue, shards in {(call.queue, call.shards) for call in call_by_place.values()}:
                self._shards.make(queue, shards, now)
        new_answers = self._sender.send([*call_by_place.values()], now)
        for place, answer in zip(call_by_place, new_answers, strict=True):
            answers[place] = answer

    def _report_loss(self, queue: str, count: int) -> None:
        """Report lost changes; what is kept for all queues may be lost with them."""
        losses.report(self._settings.shown, queue, count)
        self._shards.forget(queue)
        self._has_noted_repeating = False


def _return_errors(errors: list[Result]) -> Step:
    """Return errors, in a step that calls no script."""
    yield ()
    return errors
