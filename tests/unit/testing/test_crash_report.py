"""What a crash test makes of the effects of two runs, and how it says it."""

import pytest

from bide.testing import CrashFinding, CrashReport, Effect
from bide.testing.crashing.await_points import awaits_of
from bide.testing.crashing.crash_report import compare
from bide.testing.crashing.effects import EffectRecord, record_of_call


def called(*keys: str, name: str = "send", once: bool = False) -> list[EffectRecord]:
    return [EffectRecord(name, key, f"{name}({key})", once) for key in keys]


@pytest.mark.parametrize(
    ("expected", "actual", "twice", "never"),
    [
        (called("a", "b"), called("a", "b"), [], []),
        (called("a"), called("a", "a"), ["send(a)"], []),
        (called("a", "a"), called("a", "a", "a"), ["send(a)"], []),
        (called("a", "b"), called("b"), [], ["send(a)"]),
        (called("a", "b"), called("a", "a"), ["send(a)"], ["send(b)"]),
        (called("random 1"), called("random 2"), [], []),
        (called("random 1"), called("random 2", "random 3"), ["send(random 3)"], []),
        (called("a", once=True), called("a", "a", once=True), [], []),
        (called("a", once=True), called(once=True), [], ["send(a)"]),
        ([], called("a", name="only_the_second_time"), [], []),
        ([], called("a", "a"), ["send(a)"], []),
    ],
)
def test_effects_are_compared(
    expected: list[EffectRecord], actual: list[EffectRecord], twice: list[str], never: list[str]
) -> None:
    assert compare(expected, actual) == (twice, never)


def test_a_report_lists_its_findings_by_effect() -> None:
    findings = tuple(CrashFinding("send(1)", f"at {number}") for number in range(5))
    report = CrashReport(("at 0",), ("send(1)",), twice=findings, dead=findings[:1])
    assert str(report).splitlines() == [
        "1 crash points",
        "happens twice: send(1), if the process dies",
        "    at 0",
        "    at 1",
        "    at 2",
        "    and 2 more",
        "the message becomes a dead letter: send(1), if the process dies",
        "    at 0",
    ]
    assert not report
    assert repr(report) == (
        "<CrashReport: 6 findings, the first: twice send(1), if the process dies at 0; print it "
        "for all>"
    )


def test_a_report_without_findings_says_what_happens() -> None:
    report = CrashReport(("at 0", "at 1"), ("send(1)",))
    assert report
    assert str(report) == "2 crash points, no finding; effects: send(1)"
    assert repr(report) == "<CrashReport: 2 crash points, no finding>"


def pay(order: object, key: str | None = None) -> None: ...


def test_a_call_without_its_key_is_an_effect_each_time() -> None:
    keyed = Effect(pay, key="key")
    assert record_of_call(keyed, "pay", (1, "k"), {}) == ("pay", "'k'", "pay(1, 'k')", True)
    assert record_of_call(keyed, "pay", (1,), {}) == ("pay", "1", "pay(1)", False)


def test_arguments_are_shown_whatever_their_repr_does() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    calls = [
        record_of_call(Effect(pay), "pay", (x,), {}).call for x in (Broken(), object(), "x" * 99)
    ]
    assert calls == ["pay(<Broken>)", "pay(<object>)", f"pay('{'x' * 56}...)"]


def test_an_effect_is_a_function_that_has_its_key() -> None:
    with pytest.raises(ValueError, match="an effect is a function or a method, not int"):
        Effect(5)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"key='id' is not a parameter of .*pay, which has: order, key"
    ):
        Effect(pay, key="id")


def test_each_await_has_a_place_before_and_after_it() -> None:
    async def waits(lock: object, rows: object) -> None:
        await rows  # type: ignore[misc]
        async with lock:  # type: ignore[attr-defined]
            async for _ in rows:  # type: ignore[attr-defined]
                pass

    whens = list(awaits_of(waits.__code__).values())
    # The await, the beginning of the block, the next row, and the end of the block: with an
    # exception or without.
    assert whens.count("before") == whens.count("after") == 5

    def gives() -> object:
        yield from ()

    assert awaits_of(gives.__code__) == {}
    assert awaits_of(pytest.raises.__code__) == {}
