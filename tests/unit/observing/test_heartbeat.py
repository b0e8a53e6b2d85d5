"""Who is at work: what processes say of themselves, and what is made of it."""

from msgspec.structs import replace

from bide.engines.memory import MemoryEngine
from bide.lane.steps import run_steps
from bide.model.commands import Claim, Purge, Put, Release
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item
from bide.model.replies import Counts, Outcomes
from bide.observing.heartbeat import (
    REGISTER,
    REMEMBER_SECONDS,
    SILENT,
    WINDOW_BEATS,
    Busy,
    LastMinute,
    Report,
    delete_report,
    put_report,
)
from bide.observing.sample import Lateness, Sample, Worker, take_sample
from bide.observing.tally import Histogram, Tally
from bide.observing.workers import STOPS, list_workers
from bide.undoing.steps import forget_changes

START = 1_700_000_000_000


def of(*seconds: float) -> Histogram:
    histogram = Histogram()
    for one in seconds:
        histogram.observe(one)
    return histogram


class Store:
    """A store in this process, and a clock that it goes by."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.now = START

    def do(self, *commands: object) -> None:
        self.engine.execute(commands, self.now)  # type: ignore[arg-type]

    def look(self, *queues: str, registers: tuple[str, ...] = (REGISTER,)) -> Sample:
        steps = take_sample(
            queues, registers, self.now / 1000, self.now, lambda name: name in queues
        )
        return run_steps(steps, lambda command: self.engine.execute([command], self.now)[0])


def test_a_worker_without_work_is_seen_for_as_long_as_it_says_so() -> None:
    store = Store()
    for _ in range(40):
        store.do(put_report("web1:7", Report({"web1:7": ["orders", "mail"]})))
        store.now += 5_000
    (worker,) = store.look("orders").workers.values()
    assert worker == Worker("web1:7", {"orders": 0}, seen=store.now / 1000)
    assert store.look("other").workers == {}


def test_one_that_falls_silent_is_told_and_forgotten_after_a_while() -> None:
    store = Store()
    store.do(put_report("web1:7", Report({"web1:7": ["orders"]}, {"orders": of(1)})))
    store.now += SILENT + 3_000
    sample = store.look("orders")
    assert (sample.workers["web1:7"].silent, sample.lateness) == (3_000, {})
    assert sample.workers["web1:7"].seen == sample.moment - 3
    store.now += round(REMEMBER_SECONDS * 1000)
    assert store.look("orders").workers == {}
    store.do(Purge(REGISTER, "ready"))
    assert store.look(REGISTER).queues[REGISTER].sizes.total == 0


def test_what_can_no_longer_be_taken_back_is_forgotten() -> None:
    store = Store()
    names = (
        InternalQueue.UNDO.beside("orders"),
        InternalQueue.UNDO.beside("shop/orders"),
        "orders",
    )
    for name in names:
        store.do(Put(name, [Item("old", b"1", delay=5), Item("new", b"1", delay=50)]))
    store.now += 5
    run_steps(forget_changes(), lambda command: store.engine.execute([command], store.now)[0])
    left = [store.look(*names).queues[name].sizes.total for name in names]
    assert left == [1, 1, 2]


def test_one_that_takes_its_leave_is_seen_no_more() -> None:
    store = Store()
    store.do(put_report("web1:7", Report({"web1:7": ["orders"]})), delete_report("web1:7"))
    assert store.look("orders").workers == {}


def test_what_it_holds_counts_as_well() -> None:
    store = Store()
    store.do(
        put_report("web1:7", Report({"web1:7": ["orders", "mail"]})),
        Put("orders", [Item("a", b"1"), Item("b", b"1")]),
        Claim("orders", 1, 9_000, "web1:7"),
        Claim("orders", 1, 5_000, "by hand"),
    )
    found = store.look("orders", "mail").workers
    assert found["web1:7"].held == {"orders": 1, "mail": 0}
    assert found["by hand"].held == {"orders": 1}
    assert (found["web1:7"].until, found["by hand"].until) == (START + 9_000, START + 5_000)


def test_a_register_is_that_of_its_namespace() -> None:
    store = Store()
    put = put_report("web1:7", Report({"web1:7": ["orders"]}, {"orders": of(0.004)}))
    store.do(Put(f"shop/{REGISTER}", put.items, "replace"))
    sample = store.look("shop/orders", "orders", registers=(f"shop/{REGISTER}",))
    assert sample.workers["web1:7"].held == {"shop/orders": 0}
    assert list(sample.lateness) == ["shop/orders"]


def test_the_lateness_of_all_processes_is_told_together() -> None:
    store = Store()
    told: list[list[float]] = [[0.004] * 98, [0.2], [7_200]]
    for number, late in enumerate(told):
        report = Report({f"w{number}": ["orders"]}, {"orders": of(*late)})
        store.do(put_report(f"w{number}", report))
    assert store.look("orders").lateness == {"orders": Lateness(5, 250, 100)}
    assert Lateness.of(of(7_200)) == Lateness(None, None, 1)


def test_the_causes_of_all_processes_are_added_up_in_milliseconds() -> None:
    store = Store()
    for number, seconds in enumerate((0.25, 1.5)):
        causes = {"orders": {"backlog": seconds}}
        store.do(put_report(f"w{number}", Report({f"w{number}": ["orders"]}, causes=causes)))
    assert store.look("orders").causes == {"orders": {"backlog": 1_750.0}}


def test_what_nobody_understands_is_passed_over() -> None:
    store = Store()
    store.do(Put(REGISTER, [Item("x", b'{"later": true}', delay=9), Item("y", b"\xff", False)]))
    assert store.look("orders").workers == {}


def test_what_a_namespace_reports_is_read_as_far_as_it_is_small() -> None:
    store, shop = Store(), f"shop/{REGISTER}"

    def report(holder: str, size: int, register: str) -> None:
        queues = ["orders", *(f"q{number:08}" for number in range(size // 12))]
        store.do(replace(put_report(holder, Report({holder: queues})), queue=register))

    report("web1:7", 100, shop)
    report("huge:7", 1_000_000, shop)  # by a program that may claim in the namespace
    report("house:7", 1_000_000, REGISTER)
    found = store.look("orders", "shop/orders", registers=(REGISTER, shop)).workers
    assert set(found) == {"web1:7", "house:7"}
    store = Store()
    for number in range(100):
        report(f"many:{number}", 60_000, shop)
    sample = store.look("shop/orders", registers=(shop,))
    assert 2 < len(sample.workers) < 7
    assert sample.partly


def test_who_replaces_a_process_is_not_said_by_another_namespace() -> None:
    store, evil = Store(), f"a/{REGISTER}"
    supervised = put_report("web1:7", Report({"web1:7": ["orders"]}, supervised=True))
    store.do(supervised)
    store.do(replace(supervised, queue=evil))
    for registers in ((REGISTER, evil), (evil, REGISTER)):
        sample = store.look("orders", "a/orders", registers=registers)
        assert (sample.workers["web1:7"].stops, sample.partly) == (STOPS, False)


def test_of_two_processes_of_one_name_the_living_one_says_how_busy_it_is() -> None:
    """As in a container that was killed and started again: the report of the dead one is there."""
    store = Store()
    for number in (2, 1):  # the ids have another order than the reports
        busy = {"orders": Busy(4, number, f"order-{number}", store.now)}
        store.do(put_report(f"web1:7 {number}", Report({"web1:7": ["orders"]}, busy=busy)))
        store.now += 5_000
    for _ in range(2):
        steps = list_workers([REGISTER], store.now)
        listed = run_steps(steps, lambda command: store.engine.execute([command], store.now)[0])
        (worker,) = listed.workers
        assert (worker.busy["orders"].longest, worker.silent) == ("order-1", None)
        store.now += SILENT - 6_000  # then the first of them is overdue


def test_what_a_report_names_is_not_shown_once_the_worker_holds_nothing() -> None:
    store = Store()
    busy = {"orders": Busy(4, 1, "a", START, hours="09:00-18:00")}
    store.do(Put("orders", [Item("a", b"1")]), Claim("orders", 1, 60_000, "web1:7"))
    store.do(put_report("web1:7", Report({"web1:7": ["orders"]}, busy=busy)))
    assert store.look("orders").workers["web1:7"].longest == ("orders", busy["orders"])
    store.do(Release("orders", ["a"]))
    worker = store.look("orders").workers["web1:7"]
    assert (worker.holds, worker.longest) == (0, None)
    assert worker.busy == {"orders": Busy(4, hours="09:00-18:00")}


def test_it_is_kept_as_one_message_however_often_it_is_said() -> None:
    store = Store()
    for _ in range(3):
        store.do(put_report("web1:7", Report({"web1:7": ["orders"]})))
    reply = store.look(REGISTER).queues[REGISTER]
    assert isinstance(reply, Counts)
    assert (reply.sizes.delayed, reply.flow.put) == (1, 1)
    assert isinstance(store.engine.execute([delete_report("nobody")], store.now)[0], Outcomes)


def test_only_the_last_minute_counts() -> None:
    recent, tally = LastMinute(), Tally()
    for beat in range(36):
        tally.lateness.observe(9.0 if beat < WINDOW_BEATS else 0.004)
        found = recent.of({"orders": tally})
        assert found["orders"].lateness.count == min(beat + 1, WINDOW_BEATS)
    assert Lateness.of(found["orders"].lateness) == Lateness(5, 5, 12)
    for _ in range(WINDOW_BEATS):
        found = recent.of({"orders": tally})
    assert found["orders"] == Tally()
    assert recent.of({"new": Tally(lateness=of(1))})["new"].lateness.count == 1
