"""`python -m benchmarks compare`: an older tree beside this one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare.pairs import Pairs, interval

ROOT = Path(__file__).parents[3]


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A repository whose only commit is this tree, without `Queue.get`."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "src/bide/__init__.py").open("a") as package:
        package.write("\nimport bide.queue.aio\n\nQueue.get = None\n")
    for command in (("init", "--quiet"), ("add", "src"), ("commit", "--quiet", "-m", "older")):
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "gc.auto=0")
        subprocess.run(["git", *author, *command], cwd=tmp_path, check=True)
    return tmp_path


def compare(repository: Path, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks", "compare", "HEAD", "--json"]
    command += ["--repository", str(repository), "--turns", "1", "--seconds", "0", *options]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.full
def test_both_trees_are_measured_beside_raw_work(older: Path) -> None:
    (figures,) = compare(older, "--store", "sqlite", "--only", "put_many")
    assert (figures["store"], figures["row"]) == ("sqlite", "put_many(100)")
    assert figures["speed"] == pytest.approx(figures["old"] / figures["new"])
    assert figures["raw"] == "INSERT and commit"
    assert figures["new_in_raw"] == pytest.approx(figures["new"] / figures["new_raw"])


@pytest.mark.full
def test_what_the_older_tree_lacks_is_told_and_measured_on_this_one(older: Path) -> None:
    (figures,) = compare(older, "--store", "memory", "--only", "get")
    assert figures["error"] == "old: TypeError: 'NoneType' object is not callable"
    assert figures["new"] > 0
    assert not {"old", "speed"} & figures.keys()


def turns(*values: float) -> list[dict[str, Any]]:
    return [{"value": value, "raw": "PING", "raw_value": 2.0} for value in values]


def test_speed_is_the_median_of_pairs() -> None:
    pairs = Pairs("redis", "put", turns(10, 20, 90), turns(5, 20, 30))
    assert pairs.figures() == {
        "store": "redis",
        "row": "put",
        "old": 20,
        "new": 20,
        "raw": "PING",
        "old_raw": 2.0,
        "new_raw": 2.0,
        "old_in_raw": 10.0,
        "new_in_raw": 10.0,
        "speed": 2.0,
        "low": 1.0,
        "high": 3.0,
    }


@pytest.mark.parametrize(
    ("count", "ends"),
    [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (15, (3, 11))],
)
def test_an_interval_leaves_out_what_a_median_is_rarely_beyond(
    count: int, ends: tuple[int, int]
) -> None:
    assert interval(range(count)) == ends
