# ruff: noqa: D102  (the name of each case says what it checks)
"""Scan: which messages it yields, while others come, go and move."""

import contextlib
from collections import Counter
from random import Random

import pytest

from bide.model.command_parts import Lease, Where
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_RETURNED
from bide.testing.conformance.driver import HOUR, START, Driver, ids_of, numbered

IDS = [f"m{number}" for number in range(10)]

# Some are there twice, so that they come more often.
MOVES = (
    "claim",
    "claim",
    "wait",
    "wait",
    "release",
    "reschedule",
    "postpone",
    "edit",
    "replace",
    "follow",
    "die",
    "revive",
    "extend",
    "retry",
)
TWO_HOURS = Where(after=START - HOUR, before=START + HOUR)


class ScanMover:
    """Changes messages at random, so that all stay there and due within `TWO_HOURS`.

    Args:
        driver: of the queue.
        chance: decides.
    """

    def __init__(self, driver: Driver, chance: Random) -> None:
        self.driver = driver
        self.chance = chance
        self.held: dict[str, Lease] = {}
        """The last lease of each message that was claimed; it may be over."""
        for id in IDS:
            driver.put(id, at=self._due(), priority=chance.choice([0, 0, 200]))
        self.claim()

    def _due(self) -> int:
        return START + self.chance.randrange(-HOUR // 2, HOUR // 2)

    def claim(self) -> set[str]:
        """Claim some messages, return their ids."""
        length = self.chance.choice([50, HOUR])
        leases = self.driver.hold(self.chance.randrange(1, 4), length)
        self.held |= {lease.id: lease for lease in leases}
        return {lease.id for lease in leases}

    def move(self) -> set[str]:
        """Do something, and return the ids of the messages that it may have moved."""
        driver, chance, id = self.driver, self.chance, self.chance.choice(IDS)
        held_id, lease = chance.choice(sorted(self.held.items()))
        match chance.choice(MOVES):
            case "claim":
                return self.claim()
            case "wait":
                driver.wait(chance.choice([1, 100]))
                driver.claim(0)
                return set(IDS)  # leases may have lapsed, and messages may be due
            case "release":
                driver.release(id)
            case "reschedule":
                driver.reschedule(id, at=self._due())
            case "postpone":
                driver.postpone(id, dues=[self._due()])
            case "edit":
                driver.edit(id, priority=chance.randrange(256))
            case "replace":
                driver.replace(id, at=self._due())
            case "follow":
                driver.replace(held_id, delay=1, latest=HOUR // 4)
                driver.ack(lease)
                return {held_id}
            case "die":
                driver.set_aside(id)
            case "revive":
                driver.revive(*IDS, delay=chance.randrange(HOUR // 4))
                return set(IDS)
            case "extend":
                driver.extend(lease, lease=chance.choice([20, HOUR]))
                return {held_id}
            case "retry":
                driver.retry(lease, delay=chance.randrange(HOUR // 4))
                return {held_id}
        return {id}


class ScanCases:
    """What a scan promises."""

    @pytest.mark.parametrize("where", [None, TWO_HOURS], ids=["all", "by_due"])
    def test_a_scan_misses_none_that_moves(self, driver: Driver, where: Where | None) -> None:
        for seed in range(40):
            chance, own_driver = Random(seed), Driver(driver.engine, f"q{seed}", watched=False)
            mover = ScanMover(own_driver, chance)
            cursor = None
            seen = Counter[str]()  # how often each message was read
            moved = set[str]()  # which may have been moved since the scan began
            if where is not None:
                own_driver.put("early", "late", at=START + 2 * HOUR)
            while True:
                page = own_driver.page(None, cursor, where=where, limit=chance.randrange(1, 4))
                assert page.messages == own_driver.find(*ids_of(page))
                seen.update(ids_of(page))
                if (cursor := page.cursor) is None:
                    break
                moved |= mover.move()
                # These return all the time, to where the scan does not look.
                own_driver.revive("early")
                own_driver.reschedule("early", at=START - 2 * HOUR)
                own_driver.set_aside("early")  # no worker gets it
                own_driver.reschedule("late", at=START + 2 * HOUR)
            assert set(seen) == set(IDS), f"seed {seed}"
            if where is not None:  # Redis, when it grows a small hash, may begin again with all
                assert {id for id, times in seen.items() if times > 1} <= moved, f"seed {seed}"
            again = own_driver.ids(where=where, limit=3)
            assert sorted(again) == sorted(IDS), f"seed {seed}"  # each once: nothing moves now

    def test_a_scan_reads_all_if_more_moves_than_a_store_remembers(self, bare: Driver) -> None:
        ids = numbered(MAX_RETURNED + 1)
        parts = [ids[first : first + 500] for first in range(0, len(ids), 500)]
        # The same in another queue, which must not matter. The lease is the one of `bare`.
        for driver in (Driver(bare.engine, "other", watched=False), bare):
            driver.put("first", "second", at=START)
            (lease, _) = driver.hold(2, HOUR)
            driver.replace("second", at=START, latest=HOUR)
        for part in parts:
            bare.put(*part, at=START + 1_000)
        bare.put("outside", at=START - 2 * HOUR)
        page = bare.page(where=TWO_HOURS, limit=2)
        bare.retry(lease, delay=10)  # behind which the scan has gone on
        for part in parts:
            bare.reschedule(*part, at=START + 1_000)
        read_ids = ids_of(page)
        while page.cursor is not None:
            page = bare.page(None, page.cursor, where=TWO_HOURS, limit=1_000)
            assert page.messages == bare.find(*ids_of(page))
            read_ids += ids_of(page)
        assert set(read_ids) == {"first", "second", *ids}
        assert read_ids.count("second") <= 2, "read in its state, and among all"

    def test_the_times_of_a_scan_bound_messages_of_each_state(self, driver: Driver) -> None:
        driver.configure(keep=HOUR)
        driver.put("acked", "dead", "leased", at=START)
        acked, _, _ = driver.hold(3, HOUR)
        driver.ack(acked)
        driver.release("dead")
        driver.set_aside("dead")
        for state in ("acked", "dead", "leased"):
            assert driver.scan(state, after=START, before=START + 1) == [state]
            assert driver.scan(state, before=START) == []
            assert driver.scan(state, after=START + 1) == []

    def test_groups_and_times_bound_a_scan_together(self, driver: Driver) -> None:
        driver.put("a", at=START, group="g")
        driver.put("b", at=START, group="h")
        for state in (None, "ready"):
            assert driver.scan(state, group="g") == ["a"]
            assert driver.scan(state, group="g", after=START, before=START + 1) == ["a"]
            assert driver.scan(state, group="g", before=START) == []
            assert driver.scan(state, group="g", after=START + 1) == []

    def test_what_returns_to_other_times_is_not_read(self, driver: Driver) -> None:
        driver.put("late", at=START)
        driver.set_aside("late")
        driver.put("a", "b", "c", "early", at=START + 1)
        first_page = driver.page(where=TWO_HOURS, limit=2)
        driver.reschedule("early", at=START - 2 * HOUR)
        driver.revive("late", delay=2 * HOUR)
        second_page = driver.page(cursor=first_page.cursor, where=TWO_HOURS)
        assert (ids_of(first_page), ids_of(second_page)) == (["a", "b"], ["c"])

    def test_an_extended_lease_is_no_return_nor_is_one_in_another_queue(
        self, driver: Driver
    ) -> None:
        lease, other = driver.lease("held", at=START), driver.apart("other")
        driver.put("a", "b", "c", at=START + 1)
        other.put("a", at=START + 1)
        first_page = driver.page(where=TWO_HOURS, limit=2)
        driver.extend(lease, lease=HOUR)
        other.reschedule("a", at=START)
        second_page = driver.page(cursor=first_page.cursor, where=TWO_HOURS)
        assert (ids_of(first_page), ids_of(second_page)) == (["a", "b"], ["c", "held"])

    def test_a_scan_by_the_beginning_of_ids(self, driver: Driver) -> None:
        # Behind U+D7FF and at the end of Unicode, the next text is not that of the next number.
        ids = ["a", "a-1", "a-2", "a.", "b", "A", "a%", "\ud7ffx", "\ue000", "\U0010ffff"]
        ids += ["é", "éa"]
        driver.put(*ids, delay=5)
        driver.bury(driver.lease("a-3"))
        ids.append("a-3")
        for prefix in ("a", "a-", "a-1", "a%", "\ud7ff", "\U0010ffff", "é", "z", ""):
            for limit in (2, 500):
                expected = sorted(id for id in ids if id.startswith(prefix))
                assert sorted(driver.ids(prefix=prefix, limit=limit)) == expected

    def test_a_scan_ends_though_messages_return_all_the_time(self, bare: Driver) -> None:
        ids = numbered(500)
        bare.put(*ids, at=START + 1_000)
        seen, pages, cursor = Counter[str](), 0, None
        while cursor is not None or not pages:
            page = bare.page(None, cursor, where=TWO_HOURS, limit=400)
            seen.update(ids_of(page))
            pages, cursor = pages + 1, page.cursor
            bare.reschedule(*ids, at=START + 1_000)
            assert pages < 100
        assert set(seen) == set(ids)

    def test_a_message_that_returned_often_is_read_once_more_at_most(self, driver: Driver) -> None:
        driver.put(*IDS, at=START + 1_000)
        first_page = driver.page(where=TWO_HOURS, limit=5)
        moved_id = ids_of(first_page)[0]
        for _ in range(5):
            driver.reschedule(moved_id, at=START + 1_000)
        second_page = driver.page(cursor=first_page.cursor, where=TWO_HOURS)
        assert ids_of(second_page).count(moved_id) <= 1

    def test_a_scan_yields_each_message_once_while_others_come_and_go(self, driver: Driver) -> None:
        driver.put(*IDS, delay=5)
        first_page = driver.page(limit=4)
        read_ids = sorted(ids_of(first_page))
        unread_ids = [id for id in IDS if id not in read_ids]
        driver.cancel(*read_ids[:2])
        driver.reschedule(unread_ids[0], read_ids[2], delay=0)
        driver.take(1)
        second_page = driver.page(cursor=first_page.cursor, limit=100)
        assert (sorted(ids_of(second_page)), second_page.cursor) == (unread_ids, None)

    def test_an_invalid_cursor_is_refused(self, driver: Driver) -> None:
        driver.put("a")
        for state in (None, "ready", "next", "dead"):
            for cursor in ("", "nonsense", "1.2", "0.-1.3", "0.1.2.3", "0.1.2~", "0.1.2~3.4"):
                with pytest.raises(InvalidArgument, match="cursor"):
                    driver.page(state, cursor)
        for since in ("0", "9" * 18, str(2**62), str(2**63 - 1)):
            cursor = f"6.0.0~{since}"  # some stores have such cursors
            with contextlib.suppress(InvalidArgument):
                assert len(driver.page(None, cursor, where=TWO_HOURS).messages) <= 1
