"""deploy/prometheus-alerts.yml: Prometheus reads it, and each alert is raised when it should be."""

import re
import shutil
import subprocess
from pathlib import Path

from bide.observing import families
from tests.docs.test_pages import ROOT

ALERTS = ROOT / "deploy/prometheus-alerts.yml"
PLAY = Path(__file__).with_name("alerts_test.yml")


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_is_raised_and_no_other(tmp_path: Path) -> None:
    for path in (ALERTS, PLAY):
        shutil.copy(path, tmp_path)
    assert "rules found" in promtool("check", "rules", str(tmp_path / ALERTS.name))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / PLAY.name))


def test_each_alert_is_played() -> None:
    names = re.findall(r"alert: (\w+)", ALERTS.read_text())
    played = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", PLAY.read_text())
    assert sorted(names) == sorted(played)


def test_the_metrics_exist() -> None:
    declared = [one for one in vars(families).values() if isinstance(one, families.Family)]
    for group in (families.QUEUES, families.FLOWS, families.DELIVERIES, families.CLAIMS):
        declared += group
    ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_sum", "_count", "_bucket")}
    known = {one.name + end for one in declared for end in ends[one.type]}
    used = set(re.findall(r"\bbide_\w+", ALERTS.read_text()))
    assert used - known == set()
