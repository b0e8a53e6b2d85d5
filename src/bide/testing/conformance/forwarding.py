# ruff: noqa: D102  (the name of each case says what it checks)
"""Commands from an outbox: each row is executed once, whatever becomes of its message."""

from typing import Any

from bide.model import commands as cmd
from bide.model.limits import MAX_FORWARDED
from bide.model.replies import Outcome
from bide.testing.conformance.driver import HOUR, START, Driver, done, numbered


def origin(rows: str, outbox: str = "shop", before: str = "") -> cmd.Origin:
    """Return the origin of commands, with the names of rows in one text."""
    return cmd.Origin(outbox, rows.split(), before)


def put(
    driver: Driver,
    ids: str,
    rows: str,
    conflict: Any = "keep",
    outbox: str = "shop",
    before: str = "",
    **fields: Any,
) -> list[Outcome]:
    """Put messages from an outbox.

    Args:
        driver: of the queue.
        ids: the ids, of one letter each.
        rows: the names of their rows, with blanks between them.
        conflict: as `Put.on_conflict`.
        outbox: the name of the outbox.
        before: as `Origin.before`.
        fields: of all the messages.
    """
    put_origin = origin(rows, outbox, before)
    return driver.put(*ids, on_conflict=conflict, origin=put_origin, **fields)


def executed_before(*ids: str) -> list[Outcome]:
    """Return the outcomes of rows that were executed before."""
    return [Outcome(id, False, "forwarded") for id in ids]


class ForwardCases:
    """Commands with an origin."""

    def test_versions_stay_with_their_messages(self, driver: Driver) -> None:
        driver.put("a", "b", delay=HOUR)
        version, other, rows = driver.get("a").version, "0" * 16, origin("1 2")
        outcomes = driver.cancel("a", "b", versions=[version, other], origin=rows)
        assert done(outcomes) == [True, False]
        outcomes = driver.cancel("a", "b", versions=[other, version], origin=rows)
        assert outcomes == [*executed_before("a"), Outcome("b", True, due=START + HOUR)]

    def test_outboxes_queues_and_commands_apart(self, driver: Driver) -> None:
        put(driver, "a", "1", delay=HOUR)
        assert put(driver, "b", "1", outbox="shop2")[0].done
        assert put(driver, "c", "1", outbox="sho")[0].done
        assert put(driver.apart("other"), "a", "1")[0].done
        assert put(driver, "d", "11")[0].done
        assert put(driver, "a", "1") == executed_before("a")
        # One outbox numbers its rows: a row is of one command.
        assert driver.cancel("a", origin=origin("1")) == executed_before("a")

    def test_a_put_of_nothing_forgets_the_rows_of_all_messages(self, driver: Driver) -> None:
        ids, rows = "abcdefgh", "1 2 3 4 5 6 7 8"
        assert all(put(driver, ids, rows, delay=HOUR))
        assert driver.put(origin=origin("", before="9")) == []
        assert done(put(driver, ids, rows, conflict="replace", delay=HOUR)) == [True] * 8

    def test_rows_before_one_are_forgotten(self, driver: Driver) -> None:
        other = driver.apart("other")
        for row in ("08", "09", "10"):
            put(driver, "a", row, "replace", delay=HOUR)
        put(driver, "a", "08", "replace", outbox="mail", delay=HOUR)
        put(other, "a", "08", delay=HOUR)
        assert put(driver, "a", "11", "replace", before="10")[0].done
        assert driver.cancel(origin=origin("", before="10")) == []
        assert driver.put(origin=origin("", before="10")) == []
        assert put(driver, "a", "10") == executed_before("a")
        assert put(driver, "a", "08", "replace", outbox="mail") == executed_before("a")
        assert put(other, "a", "08") == executed_before("a")
        for row in ("08", "09"):
            assert put(driver, "a", row, "replace", delay=HOUR)[0].done
        # That they are remembered again does no harm: they may be forgotten again.
        assert driver.reschedule("a", at=START, origin=origin("12", before="99"))[0].done
        assert put(driver, "a", "12") == executed_before("a")
        assert put(driver, "a", "09", "replace")[0].done

    def test_a_put_forgets_before_it_remembers(self, driver: Driver) -> None:
        """Also one that names a message twice, for which a store may need two steps."""
        assert all(put(driver, "aa", "07 08", "replace", before="10", delay=HOUR))
        assert put(driver, "aa", "07 08", "replace") == executed_before("a", "a")

    def test_how_many_rows_are_remembered(self, bare: Driver) -> None:
        half = MAX_FORWARDED // 2
        other = bare.apart("other")
        put(other, "x", "0", outbox="mail")
        put(bare, "x", "0", outbox="mail")
        put(bare, "y", "0", outbox="zoo")
        for first in (0, half):
            rows = numbered(half, first, "")
            bare.put(*rows, origin=cmd.Origin("shop", rows), delay=HOUR)
        # With the three rows above there are two too many in this queue: those of the outboxes
        # whose names come first are forgotten, "mail" and the first of "shop".
        assert put(bare, "y", "0", outbox="zoo") == executed_before("y")
        ids = [rows[-1], *numbered(2, 0, "")]
        bare.cancel(*ids)
        assert done(bare.put(*ids, origin=cmd.Origin("shop", ids))) == [False, True, False]
        assert bare.cancel("x")[0].done
        assert put(bare, "x", "0", outbox="mail")[0].done
        assert put(other, "x", "0", outbox="mail") == executed_before("x")
