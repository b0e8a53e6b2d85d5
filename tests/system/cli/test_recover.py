"""`bide recover`: what is overdue, what a plan would do, and doing it."""

import json
import time

import bide
from tests.system.cli.conftest import Bide, Terminal

HOUR = 3_600
COUNT = 10


def put_late(orders: bide.Queue, hours: float = 2) -> None:
    now = time.time()
    orders.put_many(
        [
            bide.NewMessage(n, id=f"m{n}", at=now - hours * HOUR + n, group=f"g{n % 2}")
            for n in range(COUNT)
        ]
    )


def test_it_shows_what_is_overdue(run: Bide, orders: bide.Queue) -> None:
    put_late(orders)
    orders.put("later", delay="1h")
    name, *numbers, oldest = run("recover").output.split()
    assert (name, numbers) == ("orders", [str(COUNT), "0", "0", "0", str(COUNT), "0"])
    assert int(oldest) == orders.overdue().oldest
    facts = json.loads(run("recover", "orders", "--json").output)
    assert (facts["messages"], facts["groups"]) == (COUNT, {"g0": 5, "g1": 5})
    assert run("recover").exit_code == 0


def test_it_shows_what_a_plan_would_do_and_does_it(run: Bide, orders: bide.Queue) -> None:
    put_late(orders)
    plan = ["orders", "--latest-of-group", "--spread", "10m"]
    result = run("recover", *plan)
    facts = dict(line.split("\t") for line in result.output.splitlines())
    assert (facts["would-supersede"], facts["would-move"]) == ("8", "2")
    assert "undo" not in facts
    assert result.exit_code == 0
    assert orders.overdue().messages == COUNT

    done = json.loads(run("recover", *plan, "--apply", "--json").output)
    assert (done["superseded"], done["moved"], done["overdue"]) == (8, 2, COUNT)
    assert done["last"] - done["first"] == 300_000
    assert orders.counts().sizes.total == 2
    assert run("undo", "orders", done["undo"]).exit_code == 0
    assert orders.counts().sizes.total == COUNT


def test_it_recovers_all_queues_or_those_that_are_named(run: Bide, url: str) -> None:
    with bide.Queue("mails", url) as mails, bide.Queue("orders", url) as orders:
        put_late(mails)
        put_late(orders)
        lines = run("recover", "--rate", "1/h", "--apply", "--json").output.splitlines()
        assert [json.loads(line)["queue"] for line in lines] == ["mails", "orders"]
        assert mails.counts().sizes.delayed >= COUNT - 1


def test_its_exit_code_says_whether_there_is_anything_to_do(run: Bide, orders: bide.Queue) -> None:
    orders.put("later", delay="1h")
    assert run("recover", "orders", "--spread", "10m").exit_code == 1
    assert run("recover", "orders", "--spread", "10m", "--apply").exit_code == 1
    assert run("recover", "orders").exit_code == 0
    assert run("recover", "others").exit_code == 1


def test_mistakes_are_explained(run: Bide, orders: bide.Queue) -> None:
    put_late(orders)
    for arguments, why in (
        (["--apply"], "--apply needs a plan"),
        (["--spread", "10m", "--rate", "5/s"], "not both"),
        (["--drop-later-than", "0"], "must be longer than 0"),
        (["--drop-later-than", "0", "--spread", "10m"], "must be longer than 0"),
        (["--rate", "fast"], "is not a valid rate"),
        (["--spread", "soon"], "is not a valid duration"),
    ):
        result = run("recover", "orders", *arguments)
        assert (result.exit_code, why in result.output + result.stderr) == (2, True), result.output
    assert run("set", "orders", "--overdue", "soon").exit_code == 2


def test_the_plan_of_a_queue_is_set_and_shown(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    result = run("set", "orders", "--overdue", "drop 6h,spread 10m")
    assert result.output.splitlines()[-1] == "overdue\tdrop 6h, spread 10m"
    assert json.loads(run("counts", "orders", "--json").output)["overdue"] == "drop 6h, spread 10m"
    assert "overdue" not in run("set", "orders", "--overdue", "0").output
    assert orders.counts().overdue == ""


def test_a_terminal_shows_a_table_and_what_to_do_next(
    terminal: Terminal, orders: bide.Queue
) -> None:
    put_late(orders)
    shown, _code = terminal("recover")
    assert "largest groups" in shown
    assert "bide recover orders --drop-later-than 6h --spread 10m" in shown
    shown, _code = terminal("recover", "orders", "--spread", "10m")
    assert f"{COUNT} messages overdue: {COUNT} would be moved" in shown
    assert "to do it, add --apply" in shown
    shown, _code = terminal("recover", "orders", "--spread", "10m", "--apply")
    assert "to take it back, within 10 minutes: bide undo orders" in shown
