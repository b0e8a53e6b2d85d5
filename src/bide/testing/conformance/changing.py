# ruff: noqa: D102  (the name of each case says what it checks)
"""Cancel, reschedule, revive, purge, configure: changes of messages that no worker holds."""

from typing import Any

import msgspec
import pytest

from bide.model import commands as cmd
from bide.model.commands import BULK
from bide.model.message import State
from bide.model.replies import Affected, Outcome, Outcomes, Settings
from bide.testing.conformance.desk import HOUR, START, Desk, leases

__all__ = ["ChangeCases"]


class ChangeCases:
    """What these commands promise."""

    # By id.

    def test_cancel_is_final(self, desk: Desk) -> None:
        desk.put("a", delay=50)
        assert desk.cancel("a") == [Outcome("a", True, due=START + 50)]
        desk.wait(50)
        assert desk.take() == []
        assert desk.state("a") is None
        assert desk.counts().flow.cancelled == 1

    def test_cancel_only_if_the_version_and_due_time_are_the_same(self, desk: Desk) -> None:
        desk.put("a", at=START + 50)
        seen = desk.get("a").version
        desk.put("a", at=START + 50, data=b"2", on_conflict="replace")
        assert desk.cancel("a", if_version=seen) == [desk.refusal("a")]
        mine = desk.get("a").version
        for version in (None, mine):
            assert desk.cancel("a", if_version=version, if_due=START) == [desk.refusal("a")]
        assert desk.cancel("a", if_version=mine, if_due=START + 50)[0]

    def test_reschedule_only_if_the_version_is_the_same(self, desk: Desk) -> None:
        desk.put("a", at=START + 50, headers={"a": "ü", "b": "2"}, group="gé", expires=9)
        seen = desk.get("a").version
        assert desk.reschedule("a", at=START + 60, if_version=seen)[0]
        assert not desk.reschedule("a", at=START + 70, if_version=seen)[0]
        again = desk.get("a").version
        desk.reschedule("a", at=START + 50)
        assert not desk.cancel("a", if_version=again)[0]
        assert desk.cancel("a", if_version=seen)[0]

    def test_a_message_named_twice_has_another_version_after_its_first_change(
        self, desk: Desk
    ) -> None:
        desk.put("a", delay=9)
        seen = desk.get("a").version
        both = desk.reschedule("a", "a", delay=50, if_version=seen)
        seen = desk.get("a").version
        both += desk.reschedule("a", "a", delay=60, versions=[seen, seen])
        both += desk.edit("a", "a", data=b"2", json=True, if_version=desk.get("a").version)
        seen = desk.get("a").version
        both += desk.put("a", "a", data=b"3", on_conflict="replace", if_version=seen)
        assert [outcome.done for outcome in both] == [True, False] * 4
        assert desk.get("a").data == b"3"

    @pytest.mark.parametrize("verb", ["cancel", "reschedule", "revive", "purge"])
    def test_each_message_of_a_command_may_have_a_version_of_its_own(
        self, desk: Desk, verb: str
    ) -> None:
        for number, id in enumerate("abc"):
            desk.put(id, at=START + number, group=f"g{number}", expires=HOUR, attempts=2)
        if verb in ("revive", "purge"):
            desk.wait(2)
            desk.bury(*leases(desk.claim(3)), reason="no")
        versions = [desk.get(id).version for id in "abc"]
        desk.edit("b", priority=7)
        ids = ["c", "b", "a", "d"]
        verbs: dict[str, Any] = {
            "cancel": cmd.Cancel("q", ids),
            "reschedule": cmd.Reschedule("q", ids, START + HOUR),
            "revive": cmd.Revive("q", ids, HOUR),
            "purge": cmd.Purge("q", "dead", ids=ids),
        }
        given = [*reversed(versions), versions[0]]
        asked = msgspec.structs.replace(verbs[verb], versions=given)
        outcomes = desk.ask(asked, Outcomes).outcomes
        assert [(one.id, one.done) for one in outcomes] == [
            ("c", True), ("b", False), ("a", True), ("d", False),
        ]  # fmt: skip
        assert desk.get("b").priority == 7
        changed = desk.state("a"), desk.state("c")
        assert changed == ((None,) * 2 if verb in ("cancel", "purge") else ("delayed",) * 2)
        if verb in ("cancel", "reschedule"):
            desk.put("e", at=START + 9)
            mine = [desk.get("e").version]
            for due, done in ((START + 8, False), (START + 9, True)):
                asked = msgspec.structs.replace(verbs[verb], ids=["e"], versions=mine, if_due=due)
                assert desk.ask(asked, Outcomes).outcomes[0].done == done

    def test_a_version_outlasts_attempts_also_those_that_move_the_due_time(
        self, desk: Desk
    ) -> None:
        for expires in (None, HOUR):
            one = desk.apart(f"{expires}")
            lease = one.lease("a", priority=3, expires=expires, headers={"a": "b"})
            seen = one.get("a").version
            one.retry(lease, release=True)
            assert one.get("a").version == seen
            one.claim()
            one.wait(1_000)  # the lease lapses
            one.retry(*leases(one.claim()), delay=40, reason="no")
            one.wait(40)
            one.retry(*leases(one.claim()), delay=50, release=True)
            message = one.get("a")
            assert (message.due, message.planned, message.version) == (one.now + 50, START, seen)
            one.wait(50)
            claimed = one.claim()
            assert claimed.messages[0].version == seen
            one.bury(*leases(claimed))
            assert one.page("dead").messages[0].version == seen
            assert one.put("a", on_conflict="replace", if_version=seen, data=b"2")[0]
            assert one.get("a").version != seen

    def test_a_version_changes_when_a_retried_message_is_rescheduled(self, desk: Desk) -> None:
        desk.retry(desk.lease("a"), delay=40)
        seen = desk.get("a").version
        assert desk.reschedule("a", at=START + 99, if_version=seen)[0]
        assert (desk.get("a").planned, desk.get("a").version != seen) == (None, True)

    def test_a_version_outlasts_revivals(self, desk: Desk) -> None:
        for expires in (None, HOUR):
            one = desk.apart(f"{expires}")
            begun = one.now
            lease = one.lease("a", attempts=2, expires=expires, group="g", headers={"a": "b"})
            seen = one.get("a").version
            one.retry(lease, delay=40)
            for again in (1, 2):  # the first dies after a retry, the second after a revival
                one.wait(40)
                one.bury(*leases(one.claim()))
                assert one.revive("a", delay=30 * again)[0]
                revived = one.get("a")
                due, version = one.now + 30 * again, revived.version
                assert (revived.due, revived.asked, version) == (due, begun, seen)
                assert (revived.planned, revived.expires) == (None, expires)
                one.wait(30 * again)
                claimed = one.claim()
                assert [(m.asked, m.version) for m in claimed.messages] == [(begun, seen)]
                one.retry(*leases(claimed), delay=40)
                retried = one.get("a")
                assert (retried.planned, retried.version) == (due, seen)
                assert not one.edit("a", data=b"3", if_version="0" * 16)[0]
                assert one.edit("a", data=retried.data, if_version=seen)[0]
            assert one.page("delayed").messages[0].version == seen
            assert one.reschedule("a", delay=0, if_version=seen)[0]
            moved = one.get("a")
            assert (moved.asked, moved.planned, moved.expires) == (None, None, expires)
            assert moved.version != seen

    def test_an_edit_or_a_put_of_a_revived_message_asks_anew(self, desk: Desk) -> None:
        for id in "abc":
            desk.bring(id, "dead")
        desk.wait(5)
        desk.revive(*"abc", delay=40)
        seen = desk.get("a")
        assert desk.edit("a", priority=3, expires=7)[0]
        assert desk.edit("b", delay=9)[0]
        assert desk.put("c", on_conflict="replace", if_version=seen.version)[0]
        edited, moved, replaced = (desk.get(id) for id in "abc")
        assert (edited.asked, edited.due, edited.expires) == (START, seen.due, 7)
        assert (moved.asked, moved.due) == (None, desk.now + 9)
        assert (replaced.asked, replaced.due) == (None, desk.now)
        assert len({one.version for one in (seen, edited, moved, replaced)}) == 4

    def test_reschedule_changes_the_due_time_and_nothing_else(self, desk: Desk) -> None:
        desk.put("a", priority=7, expires=20, group="g", delay=5)
        assert not desk.reschedule("a", delay=9, if_due=START + 4)[0]
        moved = desk.reschedule("a", at=START - 3, if_due=START + 5)
        assert moved == [Outcome("a", True, "ready", START - 3)]
        assert desk.reschedule("a", delay=100) == [Outcome("a", True, "delayed", START + 100)]
        message = desk.get("a")
        assert (message.priority, message.expires, message.group) == (7, 20, "g")
        desk.wait(120)
        assert desk.take() == ["a"]
        assert desk.get("a").due == START + 100

    def test_reschedule_wakes_at_the_new_due_time(self, desk: Desk) -> None:
        desk.put("a", delay=HOUR)
        reply = desk.ask(cmd.Reschedule("q", ["b", "a"], delay=5), Outcomes)
        assert reply.wake == START + 5
        assert desk.ask(cmd.Reschedule("q", ["b"], delay=5), Outcomes).wake is None

    def test_revive_gives_all_attempts_again(self, desk: Desk) -> None:
        desk.put("a", attempts=1)
        desk.retry(*leases(desk.claim()), reason="no")
        desk.wait(9)
        assert desk.revive("a") == [Outcome("a", True, "ready", START + 9)]
        message = desk.get("a")
        assert (message.attempt, message.ended, message.error) == (0, None, "no")
        assert desk.take() == ["a"]
        assert desk.counts().flow.revived == 1

    def test_revive_with_a_delay(self, desk: Desk) -> None:
        desk.bring("a", "dead")
        reply = desk.ask(cmd.Revive("q", ["a"], 30), Outcomes)
        assert reply == Outcomes([Outcome("a", True, "delayed", START + 30)], wake=START + 30)

    # By rule.

    def test_cancel_by_group_takes_all_waiting_messages(self, desk: Desk) -> None:
        desk.put("held", group="g")
        lease = leases(desk.claim())[0]
        desk.put("a", "b", group="g", delay=5)
        desk.put("c", group="g")
        desk.put("x", group="gg")
        desk.put("y")
        assert desk.cancel_where(group="g") == Affected(3)
        assert sorted(desk.scan()) == ["held", "x", "y"]
        assert desk.ack(lease)[0]
        assert desk.counts().flow.cancelled == 3

    def test_cancel_by_due_includes_after_and_excludes_before(self, desk: Desk) -> None:
        for number in range(6):
            desk.put(f"m{number}", delay=number)
        assert desk.cancel_where(after=START + 1, before=START + 4) == Affected(3)
        assert desk.cancel_where(before=START + 1) == Affected(1)
        assert desk.cancel_where(after=START + 5) == Affected(1)
        assert desk.scan() == ["m4"]

    def test_cancel_by_due_finds_ranked_messages(self, desk: Desk) -> None:
        desk.put("a", at=START - 9, priority=3)
        desk.put("b", at=START - 8, priority=200)
        desk.put("c", at=START - 7)
        assert desk.take(1) == ["b"]
        assert desk.cancel_where(after=START - 8, before=START) == Affected(1)
        assert desk.take() == ["a"]

    def test_cancel_by_group_and_due(self, desk: Desk) -> None:
        desk.put("a", group="g", delay=5)
        desk.put("b", group="g", delay=9)
        desk.put("c", delay=9)
        assert desk.cancel_where(group="g", after=START + 6, before=START + 9) == Affected(0)
        assert desk.cancel_where(group="g", after=START + 9) == Affected(1)
        assert sorted(desk.scan()) == ["a", "c"]

    def test_cancel_by_rule_leaves_dead_and_acked_messages(self, desk: Desk) -> None:
        desk.configure(keep=HOUR)
        for id, settle in (("dead", desk.bury), ("acked", desk.ack)):
            settle(desk.lease(id, group="g"))
        assert desk.cancel_where(group="g") == Affected(0)
        assert desk.cancel_where(after=0) == Affected(0)

    @pytest.mark.parametrize("where", [{"group": "g"}, {"before": START + HOUR}])
    def test_a_dry_run_counts_all_and_changes_nothing(
        self, bare: Desk, where: dict[str, Any]
    ) -> None:
        bare.put(*(f"m{number:04}" for number in range(BULK + 5)), group="g", delay=5)
        assert bare.cancel_where(dry_run=True, **where) == Affected(BULK + 5)
        assert bare.counts().sizes.delayed == BULK + 5

    def test_a_dry_run_forgets_nothing(self, desk: Desk) -> None:
        desk.configure(keep=5)
        desk.ack(desk.lease("a"))
        desk.wait(9)
        assert desk.cancel_where(dry_run=True, after=0) == Affected(0)
        assert desk.counts().kept == 1

    @pytest.mark.parametrize("where", [{"group": "g"}, {"after": 0}])
    def test_cancel_by_rule_takes_a_limited_number_and_says_that_there_are_more(
        self, bare: Desk, where: dict[str, Any]
    ) -> None:
        bare.put(*(f"m{number:04}" for number in range(2 * BULK)), group="g", delay=5)
        bare.put("last", group="g")
        assert bare.cancel_where(**where) == Affected(BULK, more=True)
        assert bare.cancel_where(**where) == Affected(BULK, more=True)
        assert bare.cancel_where(**where) == Affected(1)
        assert bare.cancel_where(**where) == Affected(0)
        assert bare.counts().flow.cancelled == 2 * BULK + 1

    def test_cancel_by_due_finds_far_due_times(self, desk: Desk) -> None:
        far = 4_500_000_000_000  # 2112
        desk.put("a", at=far)
        desk.put("b", at=far + 1)
        assert desk.cancel_where(after=far, before=far + 1) == Affected(1)
        assert desk.cancel_where(after=START) == Affected(1)

    # Purge.

    @pytest.mark.parametrize("state", ["delayed", "ready", "dead", "acked", "expired"])
    def test_purge_deletes_one_state(self, desk: Desk, state: State) -> None:
        desk.configure(keep=HOUR)
        desk.put("late", expires=0)
        desk.put("d")
        desk.wait(1)
        desk.bury(*leases(desk.claim()))
        desk.ack(desk.lease("k"))
        desk.put("w", delay=HOUR)
        desk.put("r")
        names = {"delayed": "w", "ready": "r", "dead": "d", "acked": "k", "expired": "late"}
        before = desk.counts().flow.purged
        assert desk.purge(state) == Affected(1)
        assert desk.state(names[state]) is None
        assert len(desk.scan()) == 4
        assert desk.counts().flow.purged - before == (state in ("delayed", "ready", "dead"))

    def test_purge_leaves_leased_messages(self, desk: Desk) -> None:
        lease = desk.lease("a")
        assert desk.purge("leased") == Affected(0)
        assert desk.purge("ready") == desk.purge("delayed") == Affected(0)
        assert desk.ack(lease)[0]

    def test_purge_of_dead_letters_by_time_of_death(self, desk: Desk) -> None:
        desk.bring("a", "dead")
        desk.wait(5)
        desk.bring("b", "dead")
        assert desk.purge("dead", before=START + 5) == Affected(1)
        assert desk.scan("dead") == ["b"]

    def test_purge_by_due_of_waiting_messages(self, desk: Desk) -> None:
        for number in (-5, -4, 0, 4, 5):
            desk.put(f"m{number}", at=START + number)
        assert desk.purge("ready", before=START - 4) == Affected(1)
        assert desk.purge("delayed", before=START + 5) == Affected(1)
        assert desk.purge("ready") == Affected(2)
        assert desk.scan() == ["m5"]

    def test_purge_finds_ranked_messages(self, desk: Desk) -> None:
        desk.put("a", "b", priority=3)
        desk.put("heavy", priority=9)
        assert desk.take(1) == ["heavy"]
        assert desk.purge("ready") == Affected(2)

    @pytest.mark.parametrize("state", ["delayed", "dead"])
    def test_purge_takes_a_limited_number(self, bare: Desk, state: State) -> None:
        ids = [f"m{number:04}" for number in range(BULK + 1)]
        bare.put(*ids, delay=5, died=START if state == "dead" else None)
        assert bare.purge(state) == Affected(BULK, more=True)
        assert bare.purge(state) == Affected(1)
        assert bare.counts().flow.purged == BULK + 1

    # Settings.

    def test_configure_returns_all_settings(self, desk: Desk) -> None:
        assert desk.configure() == Settings(False, 0)
        assert desk.configure(keep=5) == Settings(False, 5)
        assert desk.configure(paused=True) == Settings(True, 5)
        assert desk.configure(keep=0) == Settings(True, 0)
        counts = desk.counts()
        assert (counts.paused, counts.keep) == (True, 0)

    def test_only_resuming_wakes(self, desk: Desk) -> None:
        assert desk.configure(paused=False).wake is None
        assert desk.configure(paused=True).wake is None
        assert desk.configure(keep=1).wake is None
        assert desk.configure(paused=False).wake == START

    def test_configure_makes_the_queue(self, desk: Desk) -> None:
        desk.configure(keep=5)
        assert desk.queues() == ["q"]
