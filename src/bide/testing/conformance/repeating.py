# ruff: noqa: D102  (the name of each case says what it checks)
"""Commands that are sent again because their reply was lost."""

from collections.abc import Sequence
from random import Random

import pytest

from bide.engines.port import Identity, PartlyDone
from bide.model import commands as cmd
from bide.model import replies as rep
from bide.model.errors import OutcomeUnknown
from bide.model.message import Item
from bide.testing.conformance.driver import (
    HOUR,
    RULE,
    RUNS,
    START,
    Driver,
    done,
    ids_of,
    leases,
)


def of(number: int, place: int = 0, *, sender: str = "owner:a", repeated: bool = False) -> Identity:
    """Return the identity of a command.

    Args:
        number: of the batch, among those of the sender.
        place: in the batch.
        sender: who has sent it.
        repeated: whether it was sent before, and its reply was lost.
    """
    return Identity(sender, number, place, repeated)


class RepetitionCases:
    """What a store remembers of commands with an identity."""

    @pytest.fixture
    def sends(self, bare: Driver) -> "RepeatingSender":
        """Provide a sender to a store that remembers answers."""
        if not bare.engine.capabilities.remembers:
            pytest.skip("this store does not remember answers")
        return RepeatingSender(bare)

    def test_a_repeated_command_is_not_executed_twice(self, sends: "RepeatingSender") -> None:
        put = cmd.Put("q", [Item("a", b"1"), Item("b", b"1")])
        reply = sends(put, of(1))
        assert done(reply.outcomes) == [True, True]
        assert sends(put, of(1, repeated=True)) == reply
        assert sends.driver.counts().flow.put == 2

        cancel = cmd.Cancel("q", ["a", "none"])
        reply = sends(cancel, of(2))
        assert done(reply.outcomes) == [True, False]
        assert sends(cancel, of(2, repeated=True)) == reply

    def test_a_message_that_was_acked_meanwhile_is_not_put_again(
        self, sends: "RepeatingSender"
    ) -> None:
        put = cmd.Put("q", [Item("a", b"1")])
        assert done(sends(put, of(1)).outcomes) == [True]
        sends.driver.ack(*sends.driver.hold())
        assert done(sends(put, of(1, repeated=True)).outcomes) == [True]
        assert sends.driver.find("a") == [None]

    def test_every_kind_of_change_is_repeated_with_its_answer(
        self, sends: "RepeatingSender"
    ) -> None:
        driver = sends.driver
        held_leases = [
            driver.lease(name) for name in ("acked", "retried", "buried", "extended", "lost")
        ]
        renewed = driver.lease("renewed", rule=RULE, run=RUNS[0])
        driver.put("late", "version", "purged", "grouped", delay=1_000, group="g")
        driver.set_aside("purged")
        (version,) = driver.find("version")
        assert version is not None
        changes: list[tuple[cmd.Command, rep.Reply]] = []
        commands: Sequence[cmd.Command] = [
            cmd.Ack("q", held_leases[:1]),
            cmd.Renew("q", [renewed], [cmd.NextRun(START + HOUR, RUNS[1])]),
            cmd.RetryCommand("q", held_leases[1:2], delay=5_000),
            cmd.BuryCommand("q", held_leases[2:3]),
            cmd.Extend("q", held_leases[3:4], lease=60_000),
            cmd.Release("q", ["lost"]),
            cmd.Reschedule("q", ["late"], delay=9_000),
            cmd.Edit("q", ["version"], priority=7, if_version=version.version),
            cmd.Revive("q", ["buried"], delay=5_000),
            cmd.Purge("q", "dead", ids=["purged"]),
            cmd.Put("q", [Item("late", b"2", delay=7_000)], "replace"),
            cmd.Configure("q", keep=5_000),
            cmd.Cancel("q", where=cmd.Where(group="g")),
            cmd.Delete("other"),
        ]
        for number, command in enumerate(commands, 1):
            changes.append((command, sends(command, of(number))))
            counts = driver.counts()
            assert sends(command, of(number, repeated=True)) == changes[-1][1], command
            assert driver.counts() == counts, command
        assert [reply for _, reply in changes if isinstance(reply, rep.Outcomes)]
        for command, reply in changes:
            if isinstance(reply, rep.Outcomes):
                assert all(reply.outcomes), command

    def test_what_was_not_executed_is_executed_by_its_repetition(
        self, sends: "RepeatingSender"
    ) -> None:
        sends(cmd.Put("q", [Item("a", b"1")]), of(1))
        put = cmd.Put("q", [Item("b", b"1")])
        assert done(sends(put, of(2, repeated=True)).outcomes) == [True]
        assert done(sends(put, of(2, repeated=True)).outcomes) == [True]
        cancel = cmd.Cancel("q", ["a"])
        assert done(sends(cancel, of(2, 1, repeated=True)).outcomes) == [True]
        assert done(sends(cancel, of(2, 1, repeated=True)).outcomes) == [True]

    def test_an_original_that_comes_after_its_repetition_is_not_executed(
        self, sends: "RepeatingSender"
    ) -> None:
        sends(cmd.Put("q", [Item("a", b"1")]), of(1))
        cancel = cmd.Cancel("q", ["a"])
        assert done(sends(cancel, of(2, repeated=True)).outcomes) == [True]
        assert done(sends(cancel, of(2)).outcomes) == [True]

    @pytest.mark.parametrize("repeated", [False, True])
    def test_a_command_that_was_given_up_is_never_executed_later(
        self, sends: "RepeatingSender", repeated: bool
    ) -> None:
        sends(cmd.Put("q", [Item("a", b"1")]), of(2))
        with pytest.raises(OutcomeUnknown):
            sends(cmd.Cancel("q", ["a"]), of(1, repeated=repeated))
        assert sends.driver.scan() == ["a"]

    def test_a_repetition_of_an_unknown_sender_is_not_executed(
        self, sends: "RepeatingSender"
    ) -> None:
        with pytest.raises(OutcomeUnknown):
            sends(cmd.Put("q", [Item("a", b"1")]), of(1, repeated=True))
        assert sends.driver.scan() == []

    def test_senders_are_remembered_apart(self, sends: "RepeatingSender") -> None:
        put = cmd.Put("q", [Item("a", b"1")])
        commands: list[cmd.Command] = [put, put, cmd.Find("q", ["a"])]
        identities = [of(7), of(1, sender="owner:b"), None]
        first_reply, second_reply, _ = sends.driver.engine.execute(
            commands, sends.driver.now, identities
        )
        assert isinstance(first_reply, rep.Outcomes)
        assert isinstance(second_reply, rep.Outcomes)
        assert (done(first_reply.outcomes), done(second_reply.outcomes)) == ([True], [False])
        assert sends(put, of(7, repeated=True)) == first_reply
        assert sends(put, of(1, sender="owner:b", repeated=True)) == second_reply
        with pytest.raises(OutcomeUnknown):
            sends(put, of(1, sender="owner:c", repeated=True))

    def test_one_unknown_outcome_spoils_no_other(self, sends: "RepeatingSender") -> None:
        puts = [cmd.Put("q", [Item(id, b"1")]) for id in "abc"]
        identities = [of(1), of(1, sender="owner:new", repeated=True), of(1, 1)]
        with pytest.raises(PartlyDone) as partly:
            sends.driver.engine.execute(puts, sends.driver.now, identities)
        first_reply, error, last_reply = partly.value.outcomes
        assert isinstance(first_reply, rep.Outcomes)
        assert isinstance(last_reply, rep.Outcomes)
        assert isinstance(error, OutcomeUnknown)
        assert sorted(sends.driver.scan()) == ["a", "c"]

    def test_a_repeated_claim_returns_what_it_still_holds(self, sends: "RepeatingSender") -> None:
        driver = sends.driver
        driver.put("a", "b", "c", "d")
        claim = cmd.Claim("q", 3, 1_000, "w1")
        first_reply = sends(claim, of(1))
        assert ids_of(first_reply) == ["a", "b", "c"]
        driver.ack(leases(first_reply)[1])
        repeated_reply = sends(claim, of(1, repeated=True))
        assert (ids_of(repeated_reply), repeated_reply.token) == (["a", "c"], first_reply.token)
        assert [message.attempt for message in repeated_reply.messages] == [1, 1]
        assert driver.wait(2_000).take() == ["a", "c", "d"]
        assert ids_of(sends(claim, of(1, repeated=True))) == []

    def test_a_claim_without_messages_asks_again_under_its_identity(
        self, sends: "RepeatingSender"
    ) -> None:
        claim = cmd.Claim("q", 3, 1_000, "w1")
        assert ids_of(sends(claim, of(1))) == []
        sends.driver.put("a")
        assert ids_of(sends(claim, of(1))) == ["a"]
        assert ids_of(sends(claim, of(1))) == ["a"]

    def test_a_caller_that_waits_for_an_end_asks_again_under_its_identity(
        self, sends: "RepeatingSender"
    ) -> None:
        sends.driver.configure(history=10_000)
        lease = sends.driver.lease("a")
        watch = cmd.History("q", "a", watch=True)
        assert sends(watch, of(1)).state == "leased"
        sends.driver.ack(lease)
        assert [end.how for end in sends(watch, of(1)).ends] == ["acked"]

    def test_what_is_refused_is_not_remembered(self, sends: "RepeatingSender") -> None:
        ack = cmd.Ack("q", [cmd.Lease("a", 1)])
        assert done(sends(ack, of(1)).outcomes) == [False]
        assert done(sends(ack, of(1, repeated=True)).outcomes) == [False]

    def test_a_batch_is_as_true_if_all_of_it_is_repeated(self, sends: "RepeatingSender") -> None:
        driver = sends.driver
        chance = Random(7)
        for number in range(1, 60):
            id = f"m{chance.randrange(6)}"
            middle: list[cmd.Command] = [cmd.Cancel("q", [id]), cmd.Claim("q", 2, 5, "w1")]
            commands: list[cmd.Command] = [
                cmd.Put("q", [Item(id, b"1", delay=chance.randrange(3))]),
                chance.choice(middle),
                cmd.Reschedule("q", [id], delay=chance.randrange(3)),
            ]
            identities = [of(number, place) for place in range(len(commands))]
            replies = driver.engine.execute(commands, driver.now, identities)
            counts = driver.counts()
            for command, reply, identity in zip(commands, replies, identities, strict=True):
                if not isinstance(reply, rep.Claimed) or reply.messages:
                    repeated = of(identity.number, identity.place, repeated=True)
                    assert sends(command, repeated) == reply
            assert driver.counts() == counts
            driver.wait(1)
        assert driver.now > START


class RepeatingSender:
    """Executes commands with an identity."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __call__(self, command: cmd.Command, identity: Identity):  # type: ignore[no-untyped-def]
        """Execute a command; return its reply, which is of the type that the command has."""
        (reply,) = self.driver.engine.execute([command], self.driver.now, [identity])
        return reply
