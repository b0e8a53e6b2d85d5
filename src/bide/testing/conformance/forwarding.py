# ruff: noqa: D102  (the name of each case says what it checks)
"""Commands from an outbox: each row is executed once, whatever becomes of its message."""

from typing import Any

import pytest
from msgspec import structs

from bide.model import commands as cmd
from bide.model.limits import MAX_FORWARDED
from bide.model.message import Item
from bide.model.replies import Outcome, Outcomes
from bide.testing.conformance.driver import HOUR, START, Driver

__all__ = ["ForwardCases"]


def origin(*rows: str, outbox: str = "shop", before: str = "") -> cmd.Origin:
    return cmd.Origin(outbox, list(rows), before)


def put(
    driver: Driver, ids: str, of: cmd.Origin, conflict: Any = "keep", **fields: Any
) -> Outcomes:
    """Put messages whose ids are the letters of `ids`."""
    items = [Item(id, b"1", **fields) for id in ids]
    return driver.ask(cmd.Put(driver.queue, items, conflict, origin=of), Outcomes)


def again(*ids: str) -> list[Outcome]:
    return [Outcome(id, False, "forwarded") for id in ids]


class ForwardCases:
    """Commands with an origin."""

    @pytest.mark.parametrize("conflict", ["keep", "replace"])
    def test_a_row_is_put_once(self, driver: Driver, conflict: Any) -> None:
        stored = put(driver, "a", origin("1"), conflict)
        assert stored == Outcomes([Outcome("a", True, "ready", START)], START)
        for _ in range(2):
            assert put(driver, "a", origin("1"), conflict) == Outcomes(again("a"))
        (lease,) = driver.hold()
        assert put(driver, "a", origin("1"), conflict) == Outcomes(again("a"))
        driver.ack(lease)
        assert put(driver, "a", origin("1"), conflict) == Outcomes(again("a"))
        assert driver.find("a") == [None]
        assert driver.counts().flow.put == 1

    @pytest.mark.parametrize("conflict", ["keep", "replace"])
    def test_only_rows_that_are_new_are_put(self, driver: Driver, conflict: Any) -> None:
        put(driver, "bd", origin("2", "4"), conflict, delay=HOUR)
        driver.cancel("b", "d")
        reply = put(driver, "abcde", origin("1", "2", "3", "4", "5"), conflict, delay=9)
        due = START + 9
        assert reply == Outcomes(
            [
                Outcome("a", True, "delayed", due), *again("b"), Outcome("c", True, "delayed", due),
                *again("d"), Outcome("e", True, "delayed", due),
            ],
            due,
        )  # fmt: skip
        assert driver.scan("delayed") == ["a", "c", "e"]

    @pytest.mark.parametrize("change", ["reschedule", "edit", "replace", "set_aside"])
    def test_what_became_of_a_message_stays(self, driver: Driver, change: str) -> None:
        put(driver, "a", origin("1"), "replace", delay=HOUR)
        if change == "replace":
            driver.put("a", on_conflict="replace", data=b"2")
        elif change == "set_aside":
            driver.set_aside("a")
        else:
            getattr(driver, change)("a", delay=2 * HOUR)
        before = driver.get("a")
        assert put(driver, "a", origin("1"), "replace").outcomes == again("a")
        assert driver.get("a") == before

    def test_a_refused_row_is_not_remembered(self, driver: Driver) -> None:
        driver.put("a", delay=HOUR)
        refused = put(driver, "ab", origin("1", "2")).outcomes
        assert refused[0] == Outcome("a", False, "delayed", START + HOUR)
        assert put(driver, "ab", origin("1", "2")).outcomes == [refused[0], *again("b")]
        driver.cancel("a")
        assert put(driver, "a", origin("1")).outcomes == [Outcome("a", True, "ready", START)]
        assert put(driver, "a", origin("1")).outcomes == again("a")

    @pytest.mark.parametrize(
        "verb", [cmd.Cancel("q", ["a", "b"]), cmd.Reschedule("q", ["a", "b"], START + 50)]
    )
    def test_a_row_is_cancelled_or_rescheduled_once(
        self, driver: Driver, verb: cmd.Cancel | cmd.Reschedule
    ) -> None:
        command = structs.replace(verb, origin=origin("1", "2"))
        driver.put("a", delay=HOUR)
        first, missing = driver.ask(command, Outcomes).outcomes
        assert (first.done, missing) == (True, Outcome("b", False))
        driver.cancel("a")
        driver.put("a", delay=HOUR)
        assert driver.ask(command, Outcomes).outcomes == [*again("a"), missing]
        driver.put("b", delay=HOUR)
        outcomes = driver.ask(command, Outcomes).outcomes
        assert (outcomes[0], outcomes[1].done) == (*again("a"), True)
        assert driver.get("a").due == START + HOUR
        assert driver.ask(command, Outcomes).outcomes == again("a", "b")

    def test_versions_stay_with_their_messages(self, driver: Driver) -> None:
        driver.put("a", "b", delay=HOUR)
        version = driver.get("a").version

        def cancel(*versions: str) -> list[Outcome]:
            command = cmd.Cancel(
                driver.queue, ["a", "b"], versions=list(versions), origin=origin("1", "2")
            )
            return driver.ask(command, Outcomes).outcomes

        assert [bool(each) for each in cancel(version, "0" * 16)] == [True, False]
        assert cancel("0" * 16, version) == [*again("a"), Outcome("b", True, due=START + HOUR)]

    def test_outboxes_queues_and_commands_apart(self, driver: Driver) -> None:
        other = driver.apart("other")
        put(driver, "a", origin("1"), delay=HOUR)
        assert put(driver, "b", origin("1", outbox="shop2")).outcomes[0].done
        assert put(driver, "c", origin("1", outbox="sho")).outcomes[0].done
        assert put(other, "a", origin("1")).outcomes[0].done
        assert put(driver, "d", origin("11")).outcomes[0].done
        assert put(driver, "a", origin("1")).outcomes == again("a")
        # One outbox numbers its rows: a row is of one command.
        command = cmd.Cancel(driver.queue, ["a"], origin=origin("1"))
        assert driver.ask(command, Outcomes).outcomes == again("a")

    def test_rows_before_one_are_forgotten(self, driver: Driver) -> None:
        other = driver.apart("other")
        for row in ("08", "09", "10"):
            put(driver, "a", origin(row), "replace", delay=HOUR)
        put(driver, "a", origin("08", outbox="mail"), "replace", delay=HOUR)
        put(other, "a", origin("08"), delay=HOUR)
        assert put(driver, "a", origin("11", before="10"), "replace").outcomes[0].done
        assert put(driver, "a", origin("10")).outcomes == again("a")
        assert put(driver, "a", origin("08", outbox="mail"), "replace").outcomes == again("a")
        assert put(other, "a", origin("08")).outcomes == again("a")
        for row in ("08", "09"):
            assert put(driver, "a", origin(row), "replace", delay=HOUR).outcomes[0].done
        # That they are remembered again does no harm: they may be forgotten again.
        command = cmd.Reschedule(driver.queue, ["a"], START, origin=origin("12", before="99"))
        assert driver.ask(command, Outcomes).outcomes[0].done
        assert put(driver, "a", origin("12")).outcomes == again("a")
        assert put(driver, "a", origin("09"), "replace").outcomes[0].done

    def test_several_commands_in_a_batch(self, driver: Driver) -> None:
        def puts(*rows: str) -> list[Any]:
            commands = [
                cmd.Put(driver.queue, [Item(f"m{row}", b"1", delay=HOUR)], origin=origin(row))
                for row in rows
            ]
            plain = cmd.Put(driver.queue, [Item(f"plain{rows[0]}", b"1")])
            return driver.batch(commands[0], plain, *commands[1:], commands[0])

        first = puts("1", "2")
        assert [reply.outcomes[0].done for reply in first] == [True, True, True, False]
        second = puts("2", "1", "3")
        assert [reply.outcomes[0].state for reply in second] == [
            "forwarded", "ready", "forwarded", "delayed", "forwarded",
        ]  # fmt: skip
        assert driver.counts().flow.put == 5

    def test_a_deleted_queue_remembers_no_rows_and_others_do(self, driver: Driver) -> None:
        other = driver.apart("other")
        put(driver, "a", origin("1"))
        driver.cancel("a")
        other.configure()
        assert other.delete().done
        assert put(driver, "a", origin("1")) == Outcomes(again("a"))
        assert driver.delete().done
        assert put(driver, "a", origin("1")).outcomes[0].done

    def test_how_many_rows_are_remembered(self, bare: Driver) -> None:
        half = MAX_FORWARDED // 2
        put(bare, "x", origin("0", outbox="mail"))
        put(bare, "y", origin("0", outbox="zoo"))
        for first in range(0, MAX_FORWARDED, half):
            rows = [f"{number:05}" for number in range(first, first + half)]
            items = [Item(row, b"1", delay=HOUR) for row in rows]
            bare.ask(cmd.Put(bare.queue, items, origin=origin(*rows)), Outcomes)
        assert put(bare, "y", origin("0", outbox="zoo")).outcomes == again("y")
        ids = ["00000", "00001", f"{MAX_FORWARDED - 1:05}"]
        bare.cancel(*ids)
        items = [Item(id, b"1") for id in ids]
        reply = bare.ask(cmd.Put(bare.queue, items, origin=origin(*ids)), Outcomes)
        assert [each.done for each in reply.outcomes] == [True, False, False]
        assert bare.cancel("x")[0].done
        assert put(bare, "x", origin("0", outbox="mail")).outcomes[0].done
