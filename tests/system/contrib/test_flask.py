"""bide in Flask: queues of an application, handlers in its context, `flask bide`."""

import asyncio
import importlib
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flask import Flask, current_app, g
from flask.cli import FlaskGroup, ScriptInfo
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import bide
from bide.consuming.handling import Handler
from bide.contrib.flask import TARGET, Bide, _environment
from bide.testing import WorkerFactory
from bide.worker.app.loading import load


def app_of(tmp_path: Path, name: str = "shop") -> Flask:
    app = Flask(name)
    app.config["BIDE_URL"] = f"sqlite:///{tmp_path}/{name}.db?durability=normal"
    return app


def test_a_queue_of_a_module_belongs_to_the_current_application(tmp_path: Path) -> None:
    extension = Bide()
    orders = extension.queue("orders", keep="1d")
    one, two = app_of(tmp_path, "one"), app_of(tmp_path, "two")
    extension.init_app(one)
    with one.app_context():
        orders.put(1, id="one", delay="1h")
        assert orders.counts().keep == 86_400_000
    extension.init_app(two)
    with two.app_context():
        assert orders.get("one") is None
        assert orders.url == two.config["BIDE_URL"]
    with one.app_context():
        assert orders.get("one") is not None
    assert orders.url == two.config["BIDE_URL"]  # without a context: that of the last one


def test_threads_share_a_queue(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    orders = Bide(app).queue("orders")

    @app.put("/<int:number>")
    def put(number: int) -> dict[str, bool]:
        return {"new": bool(orders.put(number, delay="1h"))}

    def ask(number: int) -> None:
        assert app.test_client().put(f"/{number}").get_json() == {"new": True}

    threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with app.app_context():
        assert orders.counts().sizes.delayed == 8


def test_without_init_app_the_error_names_the_fix() -> None:
    orders = Bide().queue("orders")
    with pytest.raises(bide.WrongContext, match=r"call init_app\(app\)"):
        orders.put(1)
    with Flask("other").app_context(), pytest.raises(bide.WrongContext):
        orders.put(1)


def test_the_url_is_that_of_the_environment_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIDE_URL", "sqlite:////srv/of-the-environment.db")
    extension = Bide(app := Flask("shop"))
    with app.app_context():
        assert extension.queue("orders").url == "sqlite:////srv/of-the-environment.db"
    app = Flask("shop")
    app.config["BIDE_URL"] = "shop.db"
    with pytest.raises(bide.InvalidArgument, match=r"sqlite:///shop\.db"):
        Bide(app)


@pytest.mark.parametrize("is_async", [True, False])
def test_handlers_run_in_the_application_context(
    tmp_path: Path, bide_store: Any, bide_worker: WorkerFactory, is_async: bool
) -> None:
    told: list[Any] = []
    app = app_of(tmp_path)
    extension = Bide(app)

    @app.teardown_appcontext
    def teardown(error: BaseException | None) -> None:
        told.append(("closed", g.pop("session"), threading.get_ident() == main))

    def use(body: str) -> None:
        assert "session" not in g
        g.session = body
        told.append((current_app.name, threading.get_ident() == main))
        if body == "bad":
            raise ValueError(body)

    async def use_async(body: str) -> None:
        await asyncio.sleep(0)
        use(body)

    main = threading.get_ident()
    extension.handler("q", retry=bide.Backoff(attempts=1))(use_async if is_async else use)
    bide_store.queue("q").put("good")
    bide_store.queue("q").put("bad")
    worker = bide_worker(extension, errors="collect")
    assert sorted(one.outcome for one in worker.run_due()) == ["acked", "dead"]
    assert sorted(name for name, *_ in told) == ["closed", "closed", "shop", "shop"]
    where = {here for *_, here in told}
    assert len(where) == 1  # the teardown runs where the handler ran


@pytest.mark.parametrize("is_async", [True, False])
def test_a_task_runs_in_the_application_context(
    tmp_path: Path, bide_store: Any, bide_worker: WorkerFactory, is_async: bool
) -> None:
    names: list[str] = []
    app = app_of(tmp_path)
    jobs = Bide(app)

    def expire(order: int) -> None:
        names.append(f"{order} in {current_app.name}")

    async def expire_async(order: int) -> None:
        expire(order)

    task = jobs.task(name="expire")(expire_async if is_async else expire)

    @app.put("/<int:order>")
    def place(order: int) -> dict[str, bool]:
        return {"new": task.later("30m", id=f"order-{order}").put(order).done}

    @app.delete("/<int:order>")
    def pay(order: int) -> dict[str, bool]:
        return {"in_time": task.cancel(f"order-{order}").done}

    client = app.test_client()
    assert client.put("/42").get_json() == {"new": True}
    assert client.put("/43").get_json() == {"new": True}
    assert client.delete("/43").get_json() == {"in_time": True}
    bide_worker(jobs).advance("30m")
    assert names == ["42 in shop"]


def test_a_task_puts_into_the_store_of_the_current_application(tmp_path: Path) -> None:
    jobs = Bide()

    @jobs.task
    def expire(order: int) -> None: ...

    with pytest.raises(bide.WrongContext, match=r"call init_app\(app\)"):
        expire.put(1)
    one, two = app_of(tmp_path, "one"), app_of(tmp_path, "two")
    jobs.init_app(one)
    jobs.init_app(two)
    orders = jobs.async_queue("expire")
    with one.app_context():
        expire.later("1h", id="one").put(1)
        assert asyncio.run(orders.counts()).sizes.delayed == 1
    with two.app_context():
        assert expire.get("one") is None
        assert asyncio.run(orders.counts()).sizes.delayed == 0
    jobs.close()


def test_the_url_of_a_worker_is_that_of_what_its_handlers_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f"sqlite:///{tmp_path}/given.db"
    jobs = Bide(app := app_of(tmp_path))
    other = app_of(tmp_path, "other")

    @jobs.task
    def expire(order: int) -> None: ...

    module = types.ModuleType("shop_of_a_worker")
    monkeypatch.setattr(module, "jobs", jobs, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert load(f"{module.__name__}:jobs", given) is jobs  # as bide worker --url does
    with app.app_context():
        assert expire.queue.url == given
        assert jobs.queue("orders").url == given
    jobs.init_app(other)
    with app.app_context():
        assert expire.queue.url == app.config["BIDE_URL"]
    jobs.close()


def test_an_application_has_one_extension(tmp_path: Path) -> None:
    jobs = Bide(app := app_of(tmp_path))
    jobs.init_app(app)
    with pytest.raises(bide.InvalidArgument, match=r"'shop' has a Bide already, .* one Bide\(\)"):
        Bide(app)
    assert app.extensions["bide"].jobs is jobs


def test_a_task_joins_a_session(tmp_path: Path) -> None:
    jobs = Bide(app := app_of(tmp_path))

    @jobs.task
    def expire(order: int) -> None: ...

    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with app.app_context(), Session(engine) as session:
        expire.later("30m", id="a", within=session).put(42)
        session.rollback()
        assert expire.get("a") is None
        expire.later("30m", id="a", within=session).put(42)
        session.commit()
        assert expire.get("a") is not None
    engine.dispose()
    jobs.close()


def test_schedules_and_sources_run_in_it_too(
    tmp_path: Path, bide_store: Any, bide_worker: WorkerFactory
) -> None:
    seen: list[str] = []
    extension = Bide(app_of(tmp_path))

    @extension.schedule("nightly", every="1h")
    def nightly(tick: bide.Tick) -> None:
        seen.append(f"tick of {current_app.name}")

    @extension.source("orders", every="1m", window="10m")
    def unpaid(after: Any, before: Any) -> list[bide.NewMessage]:
        seen.append(f"source of {current_app.name}")
        return []

    bide_worker(extension).advance("1h")
    assert set(seen) == {"tick of shop", "source of shop"}


def test_a_handler_without_an_application_names_the_fix(
    bide_store: Any, bide_worker: WorkerFactory
) -> None:
    extension = Bide()
    extension.handler("q", retry=bide.Backoff(attempts=1))(lambda body: None)
    bide_store.queue("q").put(1)
    (handled,) = bide_worker(extension, errors="collect").run_due()
    assert isinstance(handled.error, bide.WrongContext)
    assert "run flask bide worker" in str(handled.error)


def run(app: Flask, *arguments: str) -> Any:
    group = FlaskGroup(create_app=lambda: app)
    info = ScriptInfo(create_app=lambda: app)
    return CliRunner().invoke(group, ["bide", *arguments], obj=info)


def test_flask_bide_is_the_command_line_of_the_store(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    Bide(app)
    put = run(app, "put", "orders", '{"order": 42}', "--delay", "30m", "--id", "order-42")
    assert put.exit_code == 0, put.output
    assert (tmp_path / "shop.db").exists()
    got = run(app, "get", "orders", "order-42", "--json")
    assert '"order": 42' in got.output or '"order":42' in got.output
    assert run(app, "get", "orders", "order-43").exit_code == 1
    assert run(app, "cancel", "orders").exit_code == 2


SHOP = """
from flask import Flask
from bide.contrib.flask import TARGET, Bide, _environment

jobs = Bide()

@jobs.task(queue="orders")
def expire(order: int) -> None: ...

def create_app():
    app = Flask("shop")
    app.config["BIDE_URL"] = "sqlite:///shop.db"
    jobs.init_app(app)
    return app
"""


@pytest.mark.full
def test_flask_bide_lists_and_checks_the_tasks_of_the_application(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    def bide_of(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "flask", "--app", "shop", "bide", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert bide_of("tasks").stdout == "task\texpire\torders\t(order: int)\t60000\t16\t\t10\t\n"
    assert bide_of("call", "shop:expire", "42").returncode == 0
    checked = bide_of("check-deploy")
    assert (checked.returncode, "the pending message fits" in checked.stderr) == (0, True)
    assert bide_of("put", "orders", "5").returncode == 0
    assert bide_of("check-deploy").returncode == 1


def test_flask_bide_makes_the_application_once(tmp_path: Path) -> None:
    jobs = Bide()

    def create_app() -> Flask:
        jobs.init_app(app := app_of(tmp_path))

        @jobs.handler("orders")
        def time_out(order: int) -> None: ...

        return app

    app = create_app()
    assert run(app, "put", "orders", "42").exit_code == 0
    listed = run(app, "tasks", "--json")
    assert (listed.exit_code, '"queue":"orders"' in listed.output) == (0, True)
    checked = run(app, "check-deploy")
    assert (checked.exit_code, "the pending message fits" in checked.output) == (0, True)


def test_check_deploy_makes_the_handlers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, made = Bide(app := app_of(tmp_path)), list[str]()
    in_context = jobs._in_context
    jobs.handler("orders")(lambda body: None)
    with app.app_context():
        jobs.queue("orders").put_many([1, 2, 3])

    def counting(handler: Handler) -> Handler:
        made.append(handler.name)
        return in_context(handler)

    monkeypatch.setattr(jobs, "_in_context", counting)
    assert run(app, "check-deploy").exit_code == 0
    assert len(made) == 1
    jobs.close()


def test_a_process_of_a_worker_loads_the_application_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_a_program.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FLASK_APP", raising=False)
    shop = importlib.import_module("shop_of_a_program")
    with pytest.raises(bide.InvalidArgument, match="FLASK_APP=module:create_app names it"):
        load(TARGET)
    with shop.create_app().app_context():
        by_lambda = _environment(ScriptInfo(create_app=lambda: shop.create_app()))
        environment = _environment(ScriptInfo(create_app=shop.create_app))
    assert "FLASK_APP" not in by_lambda
    monkeypatch.setenv("FLASK_APP", environment["FLASK_APP"])
    assert load(TARGET) is shop.jobs


def test_flask_bide_shows_its_help(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    Bide(app)
    listed = run(app)
    assert "Usage: flask bide" in listed.output
    assert "worker" in listed.output
    help = run(app, "worker", "--help")
    assert "Usage: flask bide worker [OPTIONS]" in help.output
    assert "MODULE:APP" not in help.output.partition("Options:")[0]
    assert run(app, "--help").output == listed.output
