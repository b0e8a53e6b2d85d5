from contextlib import closing
from pathlib import Path

from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Reschedule
from bide.model.replies import Outcomes
from bide.testing.conformance.driver import HOUR, START, Driver


def test_a_message_named_twice_with_its_version_is_changed_once(tmp_path: Path) -> None:
    with closing(SqliteEngine(tmp_path / "bide.db")) as engine:
        driver = Driver(engine)
        driver.put("a", delay=9)
        seen = driver.get("a").version
        twice = Reschedule("q", ["a", "a"], START + HOUR, versions=[seen, seen])
        assert [one.done for one in driver.ask(twice, Outcomes).outcomes] == [True, False]
