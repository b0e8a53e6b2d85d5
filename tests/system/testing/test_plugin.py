"""The fixtures, as a project meets them that installs bide and runs pytest."""

import pytest

SHOP = """
import bide

app = bide.App()
orders = bide.Queue("orders", "sqlite:////nowhere/production.db")
cancelled = []

def place(order):
    orders.put({"order": order}, delay="30m", id=f"order-{order}")

@app.handler("orders", retry=bide.Backoff(first="10s"))
def expire(body, delivery):
    if body["order"] < 0:
        raise ValueError("no such order")
    cancelled.append(body["order"])

later = bide.App()

@later.handler("orders")
async def expire_later(body):
    cancelled.append(body["order"])
"""


@pytest.fixture(autouse=True)
def without_other_plugins(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the inner runs import what they need, and not all that bide itself is tested with."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis -p no:hypothesispytest -p no:xdist")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=SHOP)
    pytester.syspathinsert()
    return pytester


def test_nothing_of_bide_is_imported_before_it_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_unused(request):
            assert request.config.pluginmanager.has_plugin("bide")
            assert [name for name in sys.modules if name.partition(".")[0] == "bide"] == []

        def test_used(bide_store):
            assert "bide" in sys.modules
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


def test_the_fixtures_explain_themselves(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--fixtures")
    for name in ("bide_clock", "bide_url", "bide_store", "bide_worker", "bide_async_worker"):
        result.stdout.re_match_lines([rf"{name} -- .*", "    .+"])


FORGETS = """
    import shop
    import pytest

    def test_that_forgets_the_store():
        shop.place(42)

    def test_beside_it(bide_store):
        assert bide_store.pending("orders") == []
        shop.place(43)
        bide_store.assert_put("orders", {"order": 43})
"""


@pytest.mark.full
def test_every_test_has_a_store_of_its_own_where_a_project_says_so(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(FORGETS)
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*there is no directory*"])
    project.makepyprojecttoml("[tool.pytest.ini_options]\nbide_always = true\n")
    project.runpytest_subprocess().assert_outcomes(passed=2)


def test_a_worker_says_that_it_was_given_the_module(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import shop
        import bide
        import pytest

        def test_the_module(bide_worker, bide_async_worker):
            for make in bide_worker, bide_async_worker:
                with pytest.raises(bide.InvalidArgument, match="takes a bide.App, not module"):
                    make(shop)
                with pytest.raises(bide.InvalidArgument, match="takes a bide.App, not str"):
                    make("shop:app")
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_program_with_queues_of_its_own_is_tested(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import shop

        def test_unpaid(bide_worker, bide_store):
            worker = bide_worker(shop.app)
            shop.place(42)
            bide_store.assert_put("orders", {"order": 42}, delay="30m", id="order-42")
            assert worker.advance("29m") == [] == shop.cancelled
            assert [one.outcome for one in worker.advance("1m")] == ["acked"]
            assert shop.cancelled == [42]

        def test_each_test_has_a_store_of_its_own(bide_store):
            bide_store.assert_not_put("orders")
            assert bide_store.pending("orders") == []
        """
    )
    project.runpytest("-W", "error").assert_outcomes(passed=2)


def test_async_tests_have_a_worker_on_their_loop(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio
        import shop

        def test_unpaid(bide_async_worker):
            async def story():
                async with bide_async_worker(shop.later) as worker:
                    await asyncio.to_thread(shop.place, 43)
                    await worker.advance("30m")
                assert shop.cancelled == [43]
            asyncio.run(story())
        """
    )
    project.runpytest("-W", "error").assert_outcomes(passed=1)


def test_a_failed_assertion_says_what_was_put_instead(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import shop

        def test_wrong(bide_store):
            shop.place(7)
            bide_store.assert_put("orders", {"order": 8}, delay="30m")
        """
    )
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: no such message was put into 'orders':",
            "E*body={'order': 8} delay=1800.0",
            "E*what was put into 'orders' (1):",
            "E*1. id='order-7' body={'order': 7} (due 20*-*-* *:*:*+00:00)",
            "E*differs in: body={'order': 7}",
        ]
    )
    result.stdout.no_fnmatch_line("*store.py*in assert_put*")


def test_what_a_handler_raises_fails_the_test_unless_collected(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import shop

        def test_raised(bide_worker):
            worker = bide_worker(shop.app)
            shop.place(-1)
            worker.advance("1h")

        def test_collected(bide_worker, bide_store):
            worker = bide_worker(shop.app, errors="collect")
            shop.place(-1)
            worker.advance("7d")
            assert len(worker.errors) == 10
            bide_store.assert_dead("orders", id="order--1", error="no such order")
        """
    )
    result = project.runpytest()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "E*ValueError: no such order",
            "E*Raised for the message 'order--1' of 'orders', attempt 1; it will be retried*",
        ]
    )


def test_a_project_chooses_its_store_and_its_date(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest
        from bide.testing import FakeClock

        @pytest.fixture
        def bide_url(tmp_path):
            return f"sqlite:///{tmp_path / 'bide.db'}"

        @pytest.fixture
        def bide_clock():
            return FakeClock(1_800_000_000_000)
        """
    )
    project.makepyfile(
        """
        import shop

        def test_unpaid(bide_worker, bide_store, tmp_path):
            shop.place(44)
            assert (tmp_path / "bide.db").exists()
            assert bide_store.pending("orders")[0].due == 1_800_001_800_000
            assert len(bide_worker(shop.app).advance("30m")) == 1
        """
    )
    project.runpytest("-W", "error").assert_outcomes(passed=1)


def test_a_crash_test_shows_what_it_has_found(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import shop

        def mail(order): ...

        @shop.app.handler("mails")
        def send(order):
            mail(order)

        def test_mails(bide_crash):
            assert bide_crash(shop.app, 42, queue="mails", effects=[mail])

        def test_orders(bide_crash):
            assert bide_crash(shop.app, {"order": 42}, queue="orders")
        """
    )
    result = project.runpytest_subprocess("-W", "error")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- Captured crash points call -*",
            "happens twice: *.mail(42), if the process dies",
            "    after *.mail (*.py:7)",
        ]
    )
