"""Work as classes: name, due moment and what to do in one place."""

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.model import body as bodies
from bide.model.commands import Put
from bide.model.message import Item
from tests.system.worker.worker_app import Scene, until

STARTS = datetime(2030, 1, 1, 9, tzinfo=UTC)
ran: list[Any] = []


class Remind(bide.Job):
    meeting: int
    starts: datetime = STARTS

    def due(self) -> datetime:
        return self.starts - timedelta(minutes=10)

    def key(self) -> str:
        return f"remind-{self.meeting}"

    async def run(self, delivery: bide.Handling) -> None:
        ran.append(("remind", self.meeting, delivery.id))


class Refuse(bide.Job):
    meeting: int

    def due(self) -> str:
        return "30m"

    def run(self) -> None:
        ran.append(("refuse", self.meeting))


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()
    Remind._name = Refuse._name = ""


async def put(scene: Scene, new: bide.NewMessage, headers: dict[str, str] | None) -> None:
    data, is_json = bodies.encode(new.body)
    item = Item(new.id or f"m{len(ran)}", data, is_json, headers=headers)
    await scene.lane.acall(Put("meetings", [item]))


def test_a_job_says_what_is_to_be_put() -> None:
    app = bide.App("memory://")
    app.job("meetings", "remind")(Remind)
    app.job("meetings")(Refuse)
    remind = Remind(7).message()
    assert (remind.id, remind.at, remind.delay) == (
        "remind-7",
        STARTS - timedelta(minutes=10),
        None,
    )
    assert remind.headers == {"bide-job": "remind"}
    refuse = Refuse(7).message()
    assert (refuse.id, refuse.at, refuse.delay) == (None, None, "30m")
    assert refuse.headers == {"bide-job": "Refuse"}


def test_what_a_job_says_can_be_put() -> None:
    app = bide.App("memory://jobs")
    app.job("meetings")(Remind)
    with bide.Queue("meetings", "memory://jobs") as meetings:
        (outcome,) = meetings.put_many([Remind(7).message()])
        found = meetings.get("remind-7")
    assert outcome
    assert found is not None
    assert found.body == {"meeting": 7, "starts": "2030-01-01T09:00:00Z"}


def test_a_job_is_put_as_it_is() -> None:
    app = bide.App("memory://jobs-put")
    app.job("meetings")(Remind)
    meetings = app.queue("meetings")
    assert meetings.put(Remind(7)).id == "remind-7"
    assert [outcome.done for outcome in meetings.put_many([Remind(7), Remind(8)])] == [False, True]
    assert meetings.get("remind-8") is not None
    with pytest.raises(bide.InvalidArgument, match="Remind has its own id, due time and options"):
        meetings.put(Remind(9), delay=5)
    with pytest.raises(bide.InvalidArgument, match="cannot be the body of another message"):
        meetings.put(bide.NewMessage(Remind(9)))


def test_each_message_goes_to_its_job(scene: Scene) -> None:
    async def story() -> None:
        scene.app.job("meetings", "remind", concurrency=8)(Remind)
        scene.app.job("meetings")(Refuse)
        assert scene.app.queue_handlers["meetings"].concurrency == 8
        for job in (Remind(1), Refuse(2)):
            new = job.message()
            await put(scene, new, dict(new.headers or {}))
        async with scene.at_work():
            await scene.acked(2, "meetings")
        assert sorted(ran) == [("refuse", 2), ("remind", 1, "remind-1")]

    scene.play(story())


def test_the_only_job_of_a_queue_gets_what_has_no_header(scene: Scene) -> None:
    async def story() -> None:
        scene.app.job("meetings")(Refuse)
        await put(scene, bide.NewMessage(body={"meeting": 3}), None)
        async with scene.at_work():
            await scene.acked(1, "meetings")
        assert ran == [("refuse", 3)]

    scene.play(story())


def test_a_job_that_is_not_known_here_is_tried_again(scene: Scene) -> None:
    """A newer process may know it."""

    async def story() -> None:
        scene.app.job("meetings")(Refuse)
        await put(scene, bide.NewMessage(body={}, id="new"), {"bide-job": "Celebrate"})
        async with scene.at_work():
            await scene.delayed(1, "meetings")
        message = await scene.find("new", "meetings")
        assert message.error == "unknown work: the job 'Celebrate'; this worker knows Refuse"
        assert message.attempt == 0

    scene.play(story())


def test_a_job_that_is_not_known_here_starts_no_other_beyond_the_concurrency(scene: Scene) -> None:
    gate = asyncio.Event()

    class Hold(bide.Job):
        async def run(self) -> None:
            await gate.wait()

    async def story() -> None:
        scene.app.job("meetings", concurrency=1)(Hold)
        async with scene.at_work() as runner:
            consumer = runner.consumers["meetings"]
            consumer.prefetch.pace = 0.0001  # as if the handlers so far were fast
            held = {"bide-job": "Hold"}
            await put(scene, bide.NewMessage(body={}, id="first"), held)
            await until(lambda: len(consumer.running) == 1)
            await put(scene, bide.NewMessage(body={}, id="second"), held)
            await until(lambda: len(consumer.prefetch.waiting) == 1)
            await put(scene, bide.NewMessage(body={}, id="new"), {"bide-job": "Celebrate"})
            await scene.delayed(1, "meetings")
            assert [one.id for one in consumer.running] == ["first"]
            gate.set()
            await scene.acked(2, "meetings")

    scene.play(story())


def test_a_job_says_how_it_is_to_be_put() -> None:
    class Weighty(bide.Job):
        def options(self) -> dict[str, Any]:
            return {"priority": 9, "expires": "1h", "group": "g", "headers": {"trace": "1"}}

        def run(self) -> None: ...

    bide.App("memory://").job("weighty")(Weighty)
    message = Weighty().message()
    assert (message.priority, message.expires, message.group) == (9, "1h", "g")
    assert message.headers == {"trace": "1", "bide-job": "Weighty"}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_a_job_may_have_become_unwanted(scene: Scene, is_async: bool) -> None:
    class Celebrate(bide.Job):
        guest: str

        async def still_wanted(self) -> bool:
            return self.guest == "Ada"

        async def run(self) -> None:
            ran.append(self.guest)

    class Toast(bide.Job):
        guest: str

        def still_wanted(self, delivery: bide.Handling) -> bool:
            return delivery.attempt == 1 and self.guest == "Ada"

        def run(self) -> None:
            ran.append(self.guest)

    async def story() -> None:
        kind: Any = Celebrate if is_async else Toast
        scene.app.job("meetings")(kind)
        for guest in ("Ada", "Ben"):
            new = kind(guest).message()
            await put(scene, bide.NewMessage(new.body, id=guest), new.headers)
        async with scene.at_work():
            await scene.acked(2, "meetings")
        assert ran == ["Ada"]

    scene.play(story())


def test_a_check_that_blocks_the_loop_is_refused() -> None:
    class Mixed(bide.Job):
        def still_wanted(self) -> bool:
            return True

        async def run(self) -> None: ...

    with pytest.raises(bide.InvalidArgument, match=r"still_wanted of .*Mixed.run must be async"):
        bide.App("memory://").job("mixed")(Mixed)


def test_a_job_is_spread() -> None:
    class Spread(bide.Job):
        def due(self) -> datetime:
            return datetime.fromtimestamp(4_000_000_000, UTC)

        def key(self) -> str:
            return "user-1"

        def options(self) -> dict[str, Any]:
            return {"spread": "15m"}

        def run(self) -> None: ...

    bide.App("memory://").job("spread")(Spread)
    with bide.Queue("spread", "memory://spread-jobs") as queue:
        assert queue.put(Spread()).due == 4_000_000_698_765


def test_an_option_that_no_message_has_is_refused() -> None:
    class Odd(bide.Job):
        def options(self) -> dict[str, Any]:
            return {"colour": "red"}

        def run(self) -> None: ...

    bide.App("memory://").job("odd")(Odd)
    with pytest.raises(bide.InvalidArgument, match=r"options of Odd: .*colour"):
        Odd().message()


def test_a_job_without_a_queue_says_what_is_missing() -> None:
    with pytest.raises(bide.InvalidArgument, match="Remind belongs to no queue yet"):
        Remind(1).message()


def test_a_subclass_is_a_job_only_if_it_is_registered_itself() -> None:
    class Welcome(Refuse):
        def run(self) -> None:
            ran.append(("welcome", self.meeting))

    app = bide.App("memory://")
    app.job("meetings")(Refuse)
    with pytest.raises(bide.InvalidArgument, match="Welcome belongs to no queue yet"):
        Welcome(7).message()
    app.job("meetings")(Welcome)
    assert Welcome(7).message().headers == {"bide-job": "Welcome"}
    assert Refuse(7).message().headers == {"bide-job": "Refuse"}


def test_a_job_has_one_name() -> None:
    app = bide.App("memory://")
    app.job("meetings")(Refuse)
    with pytest.raises(bide.InvalidArgument, match="Refuse is registered as 'Refuse' already"):
        app.job("others", "refuse")(Refuse)
    app.job("others")(Refuse)
    assert list(app.queue_handlers) == ["meetings", "others"]
    assert Refuse(7).message().headers == {"bide-job": "Refuse"}


def test_a_job_may_have_no_headers() -> None:
    class Plain(Refuse):
        def options(self) -> dict[str, Any]:
            return {"headers": None}

    bide.App("memory://").job("meetings")(Plain)
    assert Plain(7).message().headers == {"bide-job": "Plain"}


def test_a_job_without_run_says_what_is_missing() -> None:
    class Idle(bide.Job): ...

    with pytest.raises(NotImplementedError, match="Idle has no method run"):
        Idle().run()


def test_a_job_is_due_at_once_under_an_id_of_its_own_by_default() -> None:
    class Now(bide.Job):
        def run(self) -> None: ...

    bide.App("memory://").job("now")(Now)
    message = Now().message()
    assert (message.at, message.delay, message.id) == (None, None, None)


def test_what_does_not_go_together_is_refused() -> None:
    app = bide.App("memory://")
    app.job("meetings")(Remind)
    with pytest.raises(bide.InvalidArgument, match="knows 'Remind' already"):
        app.job("meetings")(Remind)
    with pytest.raises(bide.InvalidArgument, match="give all its jobs the same"):
        app.job("meetings", lease="5m")(Refuse)
    with pytest.raises(bide.InvalidArgument, match=r"handled by .*Remind.run already"):
        app.handler("meetings")(lambda body: None)
    app.handler("plain")(lambda body: None)
    with pytest.raises(bide.InvalidArgument, match="has a plain handler already"):
        app.job("plain")(Refuse)
    wrong: Any = dict
    with pytest.raises(bide.InvalidArgument, match=r"not a subclass of bide.Job"):
        app.job("other")(wrong)


@pytest.mark.parametrize("method", [bide.Job.run, bide.Job.still_wanted])
def test_type_checkers_take_each_form_of_a_method(method: Any) -> None:
    """To them, `*args: Any, **kwargs: Any` together mean any parameters."""
    kinds = {one.kind for one in inspect.signature(method).parameters.values()}
    assert kinds >= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
