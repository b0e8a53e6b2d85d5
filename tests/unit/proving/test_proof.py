"""The result of `bide prove`: its figures, its table, and the page that stands alone."""

import re

import msgspec
import pytest

from bide.engines.findings import Finding
from bide.proving.page import page_of
from bide.proving.proof import ROWS, Proof
from bide.testing.history import KINDS, CheckedHistory, Violation


def proof_of(*violations: Violation, **more: object) -> Proof:
    checked = CheckedHistory(
        violations=list(violations),
        confirmed=1_200,
        delivered=1_300,
        acked=1_100,
        cancelled=100,
        twice={"killed": 3, "lapsed": 1},
        lateness=list(range(1_000)),
    )
    proof = Proof(
        store="redis://:***@cache/0",
        queue="prove-1",
        processes=4,
        seed=7,
        seconds=10.0,
        kills=12,
        faults=2,
        pending=0,
        checked=checked,
        findings=[Finding("danger", "appendonly no", "a restart <loses> all", "set it")],
    )
    return msgspec.structs.replace(proof, **more)


LOST = Violation("lost", "x was confirmed & never delivered", "x", ("12:00 w1 tries <put>",))


def test_a_run_without_violations_is_proved() -> None:
    proof = proof_of()
    assert proof
    assert set(proof.broken().values()) == {0}
    assert proof.lateness() == {"p50": 500, "p99": 990, "p99.9": 999, "max": 999}
    assert proof.per_second() == 110
    rows = {name: (value, is_wrong) for name, value, is_wrong in proof.table()}
    assert rows["kills"] == ("12 of 4 processes at a time", False)
    assert rows["twice, explained"] == ("4 (3 killed, 1 lapsed)", False)
    assert "clock was set" not in rows
    assert not any(is_wrong for _, is_wrong in rows.values())
    assert proof.verdict().startswith("proved: nothing that redis://:***@cache/0 had confirmed")


def test_every_kind_of_violation_is_in_a_row() -> None:
    counted = {kind for kinds in ROWS.values() for kind in kinds}
    assert counted | {"unexplained"} == set(KINDS)
    for kind in counted:
        proof = proof_of(Violation(kind, f"it is {kind}"))
        assert not proof
        assert sum(proof.broken().values()) == 1
        assert sum(is_wrong for _, _, is_wrong in proof.table()) == 1, kind


def test_second_deliveries_that_nothing_explains_are_wrong() -> None:
    proof = proof_of()
    proof.checked.twice["unexplained"] = 2
    rows = {name: (value, is_wrong) for name, value, is_wrong in proof.table()}
    assert rows["twice, explained"] == ("4 (3 killed, 1 lapsed)", False)
    assert rows["twice, unexplained"] == ("2", True)
    assert proof.facts()["twice_unexplained"] == 2


def test_json_has_everything() -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(proof_of(LOST).as_json()))
    assert decoded["proved"] is False
    assert decoded["lost"] == 1
    assert decoded["violations"][0]["story"] == ["12:00 w1 tries <put>"]
    assert decoded["settings"][0]["level"] == "danger"


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (proof_of(), ["proved: nothing", "appendonly no", "a restart &lt;loses&gt; all"]),
        (proof_of(LOST), ["NOT proved", "confirmed &amp; never", "tries &lt;put&gt;"]),
        (proof_of(LOST, Violation("lost", "y", "y")), ["and 1 more"]),
        (proof_of(findings=[]), ["bide doctor has found nothing"]),
        (proof_of(findings=[], unexamined="it is a server"), ["it is a server"]),
    ],
)
def test_the_page_stands_alone(proof: Proof, words: list[str]) -> None:
    page = page_of(proof, "2026-12-01 09:00 UTC")
    assert [word for word in words if word not in page] == []
    assert re.findall(r"<script|<link|<img|@import|url\(|(?:src|href)=|https?://", page) == []
    assert page.count("<table>") == page.count("</table>")
