# ruff: noqa: D102  (the name of each case says what it checks)
"""Debounce: puts with `latest`, and the successors of leased messages."""

from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.message import Item, State
from bide.model.replies import Outcome
from bide.testing.conformance.driver import HOUR, RICH, START, Driver


def put(
    driver: Driver, data: bytes = b"1", delay: int = 50, latest: int = 200, **more: Any
) -> Outcome:
    """Put the message `a`, due after a quiet time of `delay`."""
    (outcome,) = driver.replace("a", **{"data": data, "delay": delay, "latest": latest, **more})
    return outcome


def put_and_claim(driver: Driver, lease: int = 1_000, **fields: Any) -> cmd.Lease:
    """Put the message `a`, and claim it."""
    driver.put("a", group="old", **fields)
    (lease_of_a,) = driver.hold(1, lease)
    return lease_of_a


class DebounceCases:
    """What holds for puts with `latest`."""

    def test_each_put_moves_the_due_time_but_never_past_the_latest(self, driver: Driver) -> None:
        for number, due in enumerate((50, 90, 130, 170, 200, 200)):
            state: State = "delayed" if 40 * number < due else "ready"
            assert put(driver, b"%d" % number) == Outcome("a", True, state, START + due)
            driver.shows("a", body=number, due=START + due, created=START)
            driver.wait(40)
        assert put(driver, b"6") == Outcome("a", True, "ready", START + 200)
        assert driver.claim().messages[0].body == 6

    # While a worker holds the message.

    def test_a_put_while_the_message_is_leased_is_its_successor(self, driver: Driver) -> None:
        lease = put_and_claim(driver)
        driver.wait(10)
        before, stored = driver.get("a"), driver.stored()
        until = START + 1_000
        outcome = Outcome("a", True, "leased", START, until, "w1", successor=START + 60)
        assert put(driver, **{**RICH, "data": b"x" * 5_000}) == outcome
        assert 5_000 <= driver.stored() - stored <= 5_300
        assert put(driver, **RICH) == outcome  # it replaces the successor
        successor = Item("a", at=START + 60, created=START + 10, **RICH)
        kept = {"data": b"1", "group": "old", "version": before.version}
        after = driver.shows("a", successor=successor, **kept)
        assert driver.page("leased").messages == driver.page().messages == [after]
        assert driver.explain("a").successor == START + 60
        assert driver.counts().sizes.total == 1
        assert driver.take() == []
        assert driver.extend(lease, lease=2_000)[0].done
        driver.shows("a", successor=successor)

    def test_what_does_not_end_the_lease_leaves_the_successor(self, driver: Driver) -> None:
        put_and_claim(driver)
        put(driver, b"2", group="g")
        seen, refused = driver.get("a"), [driver.refusal("a")]
        debounced = {"on_conflict": "replace", "latest": 5}
        for more in (
            {"on_conflict": "keep"},
            {"on_conflict": "replace"},
            {"on_conflict": "revive"},
            {**debounced, "if_version": seen.version},
            {**debounced, "died": START},
        ):
            assert driver.put("a", data=b"9", **more) == refused
        assert driver.edit("a", data=b"3") == refused
        assert driver.reschedule("a", delay=5) == driver.set_aside("a") == refused
        assert driver.cancel("a", if_due=START) == refused
        assert driver.cancel("a", if_version=seen.version) == refused
        assert driver.cancel_where(after=0).count == driver.cancel_where(group="g").count == 0
        assert driver.scan(group="g") == []
        assert driver.purge("leased").count == 0
        assert not driver.delete().done
        assert driver.get("a") == seen

    @pytest.mark.parametrize("change", ["cancel", "reschedule", "edit", "replace"])
    def test_after_a_lapsed_lease_the_version_is_that_of_the_successor(
        self, driver: Driver, change: str
    ) -> None:
        put_and_claim(driver)
        put(driver, b"2", delay=HOUR, latest=HOUR)
        seen = driver.get("a").version
        changes: dict[str, Any] = {"cancel": {}, "reschedule": {"delay": 5}}
        fields = changes.get(change, {"data": b"3"})
        refused = [Outcome("a", False, "delayed", START + HOUR)]
        assert getattr(driver.wait(1_000), change)("a", if_version=seen, **fields) == refused
        driver.shows("a", data=b"2")

    def test_an_edit_of_a_successor_changes_whether_its_body_is_json(self, driver: Driver) -> None:
        put_and_claim(driver)
        put(driver, b"2", delay=HOUR, latest=HOUR)
        assert driver.wait(1_000).edit("a", data=b"2", json=False)[0]
        driver.shows("a", data=b"2", json=False)

    def test_successors_of_other_queues_and_ids_stay(self, driver: Driver) -> None:
        other = driver.apart("other")
        lease, twin = put_and_claim(driver), put_and_claim(other)
        put(driver, b"2")
        driver.shows("a", successor=Item("a", b"2", at=START + 50, created=START))
        scans: list[dict[str, Any]] = [{"state": "leased"}, {"where": cmd.Where(group="old")}, {}]
        for scan in scans:
            assert [message.successor for message in other.messages(**scan)] == [None]
        other.shows("a", successor=None)
        put(other, b"3")
        assert driver.ack(driver.lease("b")) == [Outcome("b", True)]
        driver.ack(lease)
        assert (driver.get("a").body, other.get("a").body) == (2, 1)
        other.ack(twin)
        assert (driver.get("a").body, other.get("a").body) == (2, 3)

    def test_a_put_gives_a_successor_to_its_message_alone(self, driver: Driver) -> None:
        driver.put("a", "b")
        driver.hold()
        put(driver, b"2")
        assert driver.get("a").successor is not None
        assert driver.get("b").successor is None

    def test_a_cancel_takes_the_successor_of_its_message_alone(self, driver: Driver) -> None:
        driver.put("a", "b")
        driver.hold()
        driver.put("a", "b", on_conflict="replace", delay=50, latest=50)
        driver.cancel("a")
        assert driver.get("a").successor is None
        assert driver.get("b").successor is not None

    def test_a_last_attempt_that_fails_counts_and_the_successor_waits(self, driver: Driver) -> None:
        held = put_and_claim(driver, attempts=1)
        put(driver, b"2")
        driver.retry(held, reason="no")
        assert (driver.state("a"), driver.get("a").body) == ("delayed", 2)
        flow = driver.counts().flow
        assert (flow.put, flow.died, flow.revived) == (1, 1, 1)
