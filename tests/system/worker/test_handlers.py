"""Handlers: what one may be and is given, in which context, task and thread it runs."""

import asyncio
import contextvars
import dataclasses
import functools
import random
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, ClassVar, NamedTuple, NewType, Optional, Self, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

import bide
from bide.consuming.handler import Unfit, decoder, make_handler
from bide.consuming.handling import Handler, Handling
from bide.consuming.run import HandlerRunner
from bide.model.body import is_of_msgspec
from bide.model.commands import Ack
from bide.model.message import Message
from tests.system.worker.processes import BOUND
from tests.system.worker.worker_app import Scene, both, entered, register, until


@dataclasses.dataclass
class Order:
    id: int
    due: datetime | None = None

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("ids begin at 0")


@pydantic.dataclasses.dataclass
class Checked:
    id: Annotated[int, pydantic.Field(ge=0)]


NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


class Paid(TypedDict):
    id: int


class Line(msgspec.Struct):
    id: int


class Model:
    """What pydantic's models look like from here."""

    def __init__(self, id: int) -> None:
        self.id = id

    @classmethod
    def model_validate_json(cls, data: bytes) -> Self:
        value = msgspec.json.decode(data)
        if not isinstance(value.get("id"), int):
            raise ValueError("1 validation error for Model")
        return cls(value["id"])

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        return cls.model_validate_json(msgspec.json.encode(value))


def claimed(body: Any) -> Handling:
    data, is_json = (body, False) if isinstance(body, bytes) else (msgspec.json.encode(body), True)
    message = Message("m", "q", data, is_json, 0, 0, 1, 10, "leased")
    return Handling(message, 1, 0, Handler("handle", print, False), SimpleNamespace())


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (Order, {"id": 1}, Order(1)),
        (Order, {"id": 1, "due": "2030-01-01T00:00:00Z"}, Order(1, NEW_YEAR)),
        (Paid, {"id": 1}, {"id": 1}),
        (Line, {"id": 1}, Line(1)),
        (list[int], [1, 2], [1, 2]),
        (int | None, None, None),
        (dict, {"a": 1}, {"a": 1}),
        (bytes, b"\x00", b"\x00"),
        (Any, {"a": [1]}, {"a": [1]}),
        (Any, b"\x00", b"\x00"),
        (object, 3, 3),
    ],
)
def test_a_body_is_decoded_into_its_type(kind: Any, body: Any, value: Any) -> None:
    assert decoder(kind, "f")(claimed(body).message) == value


def test_a_model_of_pydantic_validates_by_itself() -> None:
    assert decoder(Model, "f")(claimed({"id": 4}).message).id == 4
    with pytest.raises(Unfit, match="fit Model: 1 validation error"):
        decoder(Model, "f")(claimed({"id": "x"}).message)
    assert [
        one.id for one in decoder(list[Model], "f")(claimed([{"id": 4}, {"id": 5}]).message)
    ] == [
        4,
        5,
    ]
    with pytest.raises(Unfit, match="1 validation error"):
        decoder(list[Model], "f")(claimed([{"id": "x"}]).message)


def test_a_dataclass_of_pydantic_validates_by_itself() -> None:
    assert decoder(Checked, "f")(claimed({"id": 4}).message) == Checked(4)
    with pytest.raises(Unfit, match="fit Checked: 1 validation error"):
        decoder(Checked, "f")(claimed({"id": -1}).message)

    class Special(Checked):
        pass

    assert isinstance(decoder(Special, "f")(claimed({"id": 4}).message), Special)


@dataclasses.dataclass
class Holding:
    part: Checked


class Named(NamedTuple):
    part: Checked


CheckedId = NewType("CheckedId", Checked)


@dataclasses.dataclass
class Tree:
    branches: "list[Tree]"
    leaf: Annotated[int, pydantic.Field(ge=0)] = 0


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (list[Checked], [{"id": -1}]),
        (Checked | None, {"id": -1}),
        (dict[str, Checked], {"a": {"id": -1}}),
        (CheckedId, {"id": -1}),
        (Holding, {"part": {"id": -1}}),
        (list[Holding], [{"part": {"id": -1}}]),
        (Named, [{"id": -1}]),
        (Tree, {"branches": [{"branches": [], "leaf": -1}]}),
    ],
)
def test_checks_of_pydantic_hold_within_other_types(kind: Any, body: Any) -> None:
    with pytest.raises(Unfit, match="greater than or equal to 0"):
        decoder(kind, "f")(claimed(body).message)
    valid = msgspec.json.decode(msgspec.json.encode(body).replace(b"-1", b"1"))
    assert "1" in str(decoder(kind, "f")(claimed(valid).message))


Positive = Annotated[int, pydantic.Field(gt=0)]


@pytest.mark.parametrize("seed", range(30))
def test_checks_of_pydantic_are_found_among_types_that_are_evaluated_anew(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What strings in annotations stand for is another object each time, and is freed."""
    chance = random.Random(seed)
    kinds = [
        "list[str]",
        "list[int]",
        "str",
        "tuple[int,...]",
        "set[str]",
        "dict[str,int]",
        "list[list[int]]",
    ]
    module = sys.modules[__name__]
    for name in "ABCD":
        fields = [(f"f{n}", chance.choice(kinds)) for n in range(chance.randint(1, 4))]
        if name == "D":
            fields = [("checked", "list[Positive]")]
        made = dataclasses.make_dataclass(name, fields)
        made.__module__ = __name__
        monkeypatch.setattr(module, name, made, raising=False)
    order = dataclasses.make_dataclass("Order", zip("abcd", "ABCD", strict=True))
    order.__module__ = __name__
    assert not is_of_msgspec(order)


class StructHolding(msgspec.Struct):
    part: Checked


@pytest.mark.parametrize("kind", [StructHolding, list[StructHolding]])
def test_a_type_whose_checks_nobody_can_make_is_refused(kind: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match="pydantic is to check a part of it, and cannot"):
        decoder(kind, "f")


@dataclasses.dataclass
class HoldingBytes(Holding):
    picture: bytes = b""


@dataclasses.dataclass
class HoldingBase64(Holding):
    picture: pydantic.Base64Bytes = b""


@dataclasses.dataclass
class HoldingMeta(Holding):
    name: Annotated[str, msgspec.Meta(max_length=3)] = ""


@pydantic.dataclasses.dataclass(config={"val_json_bytes": "base64"})
class ReadsBase64:
    picture: bytes = b""


class StructOfKinds(msgspec.Struct):
    kinds: ClassVar[dict[str, Checked]] = {}
    picture: bytes = b""


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(HoldingBytes, "pydantic.Base64Bytes"), (HoldingMeta, "pydantic.Field instead")],
)
def test_what_pydantic_would_read_otherwise_is_refused(kind: Any, reason: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=reason):
        decoder(list[kind], "f")


@pytest.mark.parametrize(
    "value",
    [HoldingBase64(Checked(1), b"hello"), StructOfKinds(b"hello"), ReadsBase64(b"hello")],
)
def test_bytes_come_as_they_were_put(value: Any) -> None:
    assert decoder(type(value), "f")(claimed(value).message).picture == b"hello"


class ModelWithin(pydantic.BaseModel):
    id: Annotated[int, pydantic.Field(ge=0)]


class StructOfModel(msgspec.Struct):
    part: ModelWithin


class DictOfModel(TypedDict):
    part: ModelWithin


@pytest.mark.parametrize("kind", [StructOfModel, DictOfModel])
def test_models_of_pydantic_are_checked_within_other_types(kind: Any) -> None:
    with pytest.raises(Unfit, match="greater than or equal to 0"):
        decoder(kind, "f")(claimed({"part": {"id": -1}}).message)


@pytest.mark.parametrize(
    "mark", [pydantic.Field(gt=5), msgspec.Meta(gt=5)], ids=["pydantic", "msgspec"]
)
def test_constraints_of_an_annotation_hold(mark: Any) -> None:
    def handle(body: Annotated[int, mark]) -> Any:
        return body

    made = make_handler(handle)
    assert made.call(claimed(6)) == 6
    with pytest.raises(Unfit, match="the body does not fit "):
        made.call(claimed(5))
    several = decoder(dict[str, list[Annotated[int, mark]]], "f")
    assert several(claimed({"a": [6]}).message) == {"a": [6]}
    with pytest.raises(Unfit):
        several(claimed({"a": [6, 5]}).message)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (
            Order,
            {"id": "x"},
            r"the body does not fit Order: Expected `int`, got `str` - at `\$.id`",
        ),
        (Order, {"id": -1}, "the body does not fit Order: ids begin at 0"),
        (Order, {}, "missing required field `id`"),
        (Line, 3, "the body does not fit Line"),
        (list[int], ["a"], "Expected `int`"),
        (Order, b"\x00", "the body is bytes, and the handler takes Order"),
        (bytes, {"id": 1}, "the body is JSON, and the handler takes bytes"),
    ],
)
def test_a_body_that_does_not_fit_says_why(kind: Any, body: Any, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        decoder(kind, "f")(claimed(body).message)


def test_a_type_that_no_body_can_be_is_refused_at_once() -> None:
    app = bide.App("memory://")

    def handle(module: ModuleType) -> None: ...

    with pytest.raises(bide.InvalidArgument, match="takes module, which no body can be"):
        app.handler("q")(handle)

    async def nested(modules: list[ModuleType]) -> None: ...

    with pytest.raises(bide.InvalidArgument, match="nothing is known of module"):
        app.handler("q")(nested)


async def only_body(order: Order) -> None:
    SEEN.append(order)


async def body_and_delivery(order: Order, delivery: bide.Delivery) -> None:
    SEEN.append((order, delivery))


async def delivery_and_body(held: bide.Handling, order: Order) -> None:
    SEEN.append((order, held))


async def only_delivery(delivery: bide.Handling) -> None:
    SEEN.append(delivery)


async def unannotated(order, delivery):  # type: ignore[no-untyped-def]
    SEEN.append((order, delivery))


async def with_defaults(order: Order, other: int = 3, *rest: Any, key: str = "k") -> None:
    SEEN.append((order, other, rest, key))


def plain(order: Order, delivery: bide.Delivery) -> None:
    SEEN.append((order, delivery))


def plain_body(order: Order) -> None:
    SEEN.append(order)


class Callable_:
    async def __call__(self, order: Order) -> None:
        SEEN.append(order)


SEEN: list[Any] = []


@pytest.mark.parametrize(
    "function",
    [
        only_body,
        body_and_delivery,
        delivery_and_body,
        only_delivery,
        unannotated,
        with_defaults,
        plain,
        plain_body,
        Callable_(),
        functools.partial(only_body),
    ],
)
def test_every_signature_is_served(scene: Scene, function: Any) -> None:
    SEEN.clear()

    async def story() -> None:
        assert scene.app.handler("q")(function) is function
        await scene.put({"id": 7})
        async with scene.at_work():
            await scene.acked(1)
        parts = SEEN[0] if isinstance(SEEN[0], tuple) else SEEN
        for part in parts:
            match part:
                case bide.Delivery():
                    assert (part.id, part.attempt, part.body) == ("q-0", 1, {"id": 7})
                case Order():
                    assert part == Order(7)
                case dict():
                    assert part == {"id": 7}
        assert SEEN

    scene.play(story())


def test_the_defaults_of_further_parameters_stay(scene: Scene) -> None:
    SEEN.clear()

    async def story() -> None:
        scene.app.handler("q")(with_defaults)
        await scene.put({"id": 7})
        async with scene.at_work():
            await scene.acked(1)
        assert [(Order(7), 3, (), "k")] == SEEN

    scene.play(story())


async def nothing() -> None: ...
async def two(a: int, b: int) -> None: ...
async def three(a: int, delivery: bide.Delivery, c: int) -> None: ...
async def keyword(a: int, *, needed: int) -> None: ...
async def wrapper(*args: int, **kwargs: int) -> None: ...
async def generator(a: int):  # type: ignore[no-untyped-def]
    yield a


async def unknown(a: "NoSuchName") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (nothing, "names no parameter .*; a handler takes"),
        (two, "takes too many arguments; a handler takes"),
        (three, "takes too many arguments; a handler takes"),
        (wrapper, r"names no parameter \(a decorator needs functools.wraps\); a handler takes"),
        (keyword, "needs needed=, which bide does not pass"),
        (generator, "is a generator"),
        (unknown, "annotations of .*unknown cannot be resolved"),
        (3, "a handler must be a function, not int"),
    ],
)
def test_other_signatures_are_refused_when_they_are_registered(function: Any, hint: str) -> None:
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match=hint):
        app.handler("q")(function)
    assert app.queue_handlers == {}


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"queue": "a b"}, "a b"),
        ({"lease": 0}, "lease=0s must be between"),
        ({"lease": "40d"}, "lease=40d must be between"),
        ({"concurrency": 0}, "concurrency=0 must be"),
        ({"concurrency": True}, "concurrency=True must be"),
        ({"timeout": 0}, "timeout must be longer than 0"),
        ({"retry": 3}, r"retry=3 must be a bide.Backoff: bide.Backoff\(attempts=3\)"),
        ({"still_wanted": lambda body: True}, "still_wanted of .* must be async"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], hint: str) -> None:
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match=hint):
        app.handler(**{"queue": "q", **options})(only_body)


def test_a_queue_has_one_handler() -> None:
    app = bide.App("memory://")
    app.handler("q")(only_body)
    with pytest.raises(bide.InvalidArgument, match=r"handled by .*only_body already.*@app.job"):
        app.handler("q", lease="5m")(plain)


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(bide.InvalidArgument, match="names no store"):
        bide.App("nosuch://x")


def test_a_password_is_hidden() -> None:
    assert "bide.db" in bide.App("sqlite:///bide.db").url


def test_a_delivery_in_a_handler_is_settled_by_returning(scene: Scene) -> None:
    said: list[str] = []

    def handle(delivery: bide.Delivery) -> None:
        for settle in (delivery.ack, delivery.retry, delivery.bury, delivery.release):
            with pytest.raises(bide.Unsupported, match=r"return for an ack, or raise bide.Retry"):
                settle()
            said.append(delivery.id)
        with pytest.raises(bide.Unsupported, match="extends the leases"):
            delivery.extend()

    async def story() -> None:
        scene.app.handler("q")(handle)
        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
        assert said == ["q-0"] * 4
        assert len(scene.sent(Ack)) == 1

    scene.play(story())


def test_a_decorator_without_the_name_of_a_queue_is_refused() -> None:
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match=r'not function: @app.handler\("orders"'):
        app.handler(plain_body)  # type: ignore[arg-type]
    with pytest.raises(bide.InvalidArgument, match=r'not type: @app.job\("orders"'):
        app.job(Order)  # type: ignore[arg-type]
    with pytest.raises(bide.InvalidArgument, match=r"name of one queue, not list: @app\.h"):
        app.handler(["orders", "mail"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind",
    [Optional[bide.Delivery], bide.Handling | None, Annotated[bide.Delivery, "mine"]],  # noqa: UP045
    ids=["optional", "union", "annotated"],
)
def test_a_delivery_that_may_be_left_out_is_given(kind: Any) -> None:
    def handle(order: Order, delivery: Any = None) -> Any:
        return delivery

    handle.__annotations__["delivery"] = kind
    one = claimed({"id": 1})
    assert make_handler(handle).call(one) is one


FACTORIES = [None]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)

user: ContextVar[str] = ContextVar("user", default="nobody")


class Stage:
    """Deliveries without a consumer, and what their handlers raised."""

    def __init__(self, function: Callable[[Handling], Any], concurrency: int = 1) -> None:
        is_async = iscoroutinefunction(function)
        self.handler = Handler("handle", function, is_async)
        self.ended: dict[int, BaseException | None] = {}
        self.run = HandlerRunner((), concurrency, self._end, self._end)
        self._changed = asyncio.Event()
        self._count = 0

    def start(self, count: int) -> list[Handling]:
        ones = []
        for number in range(self._count, self._count + count):
            message = Message(str(number), "q", b"1", True, 0, 0, 1, 10, "leased")
            ones.append(Handling(message, number, 0, self.handler, SimpleNamespace()))
            self.run.start(ones[-1])
        self._count += count
        return ones

    async def until(self, count: int) -> list[BaseException | None]:
        async with asyncio.timeout(10):
            while len(self.ended) < count:
                await self._changed.wait()
                self._changed.clear()
        return [self.ended[number] for number in sorted(self.ended)]

    def _end(self, one: Handling, error: BaseException | None) -> None:
        self.ended[one.token] = error
        self._changed.set()


@pytest.fixture(params=FACTORIES)
def play(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Play a story, on loops that begin tasks late, and early where Python knows that."""

    async def prepared(story: Awaitable[None]) -> None:
        asyncio.get_running_loop().set_task_factory(request.param)
        await story

    return lambda story: asyncio.run(prepared(story))


Play = Callable[[Awaitable[None]], None]


@pytest.mark.parametrize("waits", [0, 1, 3])
def test_what_one_handler_keeps_in_its_context_no_other_sees(play: Play, waits: int) -> None:
    seen: list[tuple[str, str]] = []

    async def handle(one: Handling) -> None:
        before = user.get()
        user.set(one.id)
        for _ in range(waits):
            await asyncio.sleep(0)
        seen.append((before, user.get()))

    async def story() -> None:
        stage = Stage(handle)
        stage.start(10)
        await stage.until(10)
        stage.start(10)
        await stage.until(20)

    play(story())
    assert sorted(seen) == sorted([("nobody", str(n)) for n in range(20)])


def test_a_handler_sees_what_was_set_around_the_worker(play: Play) -> None:
    seen: list[str] = []

    async def handle(_: Handling) -> None:
        seen.append(user.get())

    async def story() -> None:
        user.set("worker")
        stage = Stage(handle)
        user.set("later")
        stage.start(1)
        await stage.until(1)

    play(story())
    assert seen == ["worker"]


def test_a_plain_handler_keeps_its_context_to_itself_too() -> None:
    seen: list[str] = []

    def handle(one: Handling) -> None:
        seen.append(user.get())
        user.set(one.id)

    async def story() -> None:
        user.set("worker")
        stage = Stage(handle)
        stage.start(10)
        assert await stage.until(10) == [None] * 10
        stage.run.threads.close()

    asyncio.run(story())
    assert seen == ["worker"] * 10


def test_plain_handlers_that_block_all_get_a_thread() -> None:
    """Also those that were started while the first ones already waited for another thread."""
    together = threading.Barrier(8)

    def handle(_: Handling) -> None:
        together.wait(BOUND)

    async def story() -> None:
        stage = Stage(handle, concurrency=8)
        stage.start(3)
        await until(lambda: together.n_waiting == 3)
        stage.start(5)
        assert await stage.until(8) == [None] * 8
        stage.run.threads.close()

    asyncio.run(story())


def test_one_that_waits_holds_up_nobody(play: Play) -> None:
    async def story() -> None:
        gate = asyncio.Event()
        order: list[str] = []

        async def handle(one: Handling) -> None:
            order.append(one.id)
            if one.token % 2 == 0:
                await gate.wait()

        stage = Stage(handle)
        stage.start(100)
        await stage.until(50)
        assert sorted(stage.ended) == list(range(1, 100, 2))
        assert order == [str(number) for number in range(100)]
        gate.set()
        assert await stage.until(100) == [None] * 100

    play(story())


def test_handlers_that_wait_are_interrupted_one_by_one(play: Play) -> None:
    async def story() -> None:
        async def handle(one: Handling) -> None:
            if one.token > 0:
                await asyncio.Event().wait()

        stage = Stage(handle)
        ones = stage.start(4)
        await stage.until(1)
        await until(lambda: all(entered(one) for one in ones))
        ones[2].cancel()
        assert isinstance((await stage.until(2))[1], asyncio.CancelledError)
        assert sorted(stage.ended) == [0, 2]
        ones[1].cancel()
        ones[3].cancel()
        assert len(await stage.until(4)) == 4

    play(story())


def test_one_that_is_interrupted_before_it_begins_never_begins() -> None:
    begun: list[str] = []

    async def handle(one: Handling) -> None:
        begun.append(one.id)

    async def story() -> None:
        stage = Stage(handle)
        ones = stage.start(3)
        ones[1].cancel()
        errors = await stage.until(3)
        assert [type(error) for error in errors] == [type(None), asyncio.CancelledError, type(None)]

    asyncio.run(story())
    assert begun == ["0", "2"]


def test_a_handler_that_cancels_its_own_task_strikes_no_other(play: Play) -> None:
    async def handle(one: Handling) -> None:
        if one.token == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)

    async def story() -> None:
        stage = Stage(handle)
        stage.start(5)
        first, *others = await stage.until(5)
        assert isinstance(first, asyncio.CancelledError)
        assert others == [None] * 4

    play(story())


def test_what_a_handler_uses_of_its_task_works(play: Play) -> None:
    found: list[object] = []

    async def handle(one: Handling) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task is one.task
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            found.append(task.cancelling())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
                group.create_task(_fail())
        except* OSError:
            found.append("failed")
        assert user.get() == "nobody"
        await asyncio.gather(_set_user(), asyncio.to_thread(int))
        assert asyncio.current_task() is task

    async def _fail() -> None:
        raise OSError

    async def _set_user() -> None:
        user.set("child")

    async def story() -> None:
        stage = Stage(handle)
        stage.start(3)
        assert await stage.until(3) == [None] * 3

    play(story())
    assert sorted(found, key=str) == [0] * 3 + ["failed"] * 3


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), StopAsyncIteration()])
def test_what_one_raises_is_its_own(play: Play, error: BaseException) -> None:
    async def handle(one: Handling) -> None:
        if one.token == 1:
            raise error
        if one.token == 2:
            await asyncio.sleep(0)
            raise error

    async def story() -> None:
        stage = Stage(handle)
        stage.start(5)
        assert await stage.until(5) == [None, error, error, None, None]

    play(story())


def test_a_loop_that_is_closed_ends_what_waits() -> None:
    ended: list[str] = []

    async def handle(one: Handling) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(one.id)

    async def story() -> None:
        stage = Stage(handle)
        ones = stage.start(3)
        await until(lambda: all(entered(one) for one in ones))

    asyncio.run(story())
    assert sorted(ended) == ["0", "1", "2"]


tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")


@both
def test_middleware_surrounds_every_delivery(scene: Scene, is_async: bool) -> None:
    seen: list[str] = []

    async def story() -> None:
        @scene.app.middleware
        async def outer(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            seen.append(f"outer {delivery.id}")
            tenant.set("ann")
            await go_on()
            seen.append("outer ends")

        @scene.app.middleware
        async def inner(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            seen.append("inner")
            try:
                await go_on()
            except ValueError as error:
                raise bide.Discard("seen in the middleware") from error

        def handle(body: str) -> None:
            seen.append(f"{body} for {tenant.get()}")
            if body == "bad":
                raise ValueError

        register(scene, is_async, handle)
        await scene.put("good", id="one")
        async with scene.at_work():
            await scene.acked(1)
            assert seen == ["outer one", "inner", "good for ann", "outer ends"]
            await scene.put("bad", id="two")
            await scene.acked(2)
        assert seen[-1] == "bad for ann"

    scene.play(story())


def test_middleware_that_does_not_go_on_has_handled_the_message(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.middleware
        async def skip(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            return

        scene.app.handler("q")(lambda body: pytest.fail("it must not be called"))
        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)

    scene.play(story())


@pytest.mark.parametrize("error", [StopIteration("x"), ValueError("x"), SystemExit(1)])
def test_what_a_plain_handler_raises_comes_through_middleware(
    scene: Scene, error: BaseException
) -> None:
    async def story() -> None:
        @scene.app.middleware
        async def around(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            await go_on()

        def handle(_: Any) -> None:
            raise error

        scene.app.handler("q", retry=bide.Backoff(attempts=1))(handle)
        await scene.put(1)
        async with scene.at_work():
            await scene.dead(1)
        assert "x" in str(error) or "SystemExit" in ((await scene.find("q-0")).error or "")

    scene.play(story())


@pytest.mark.parametrize("raises", [True, False])
def test_what_middleware_leaves_running_ends_before_its_delivery(
    scene: Scene, raises: bool
) -> None:
    async def story() -> None:
        steps: list[str] = []
        begun = asyncio.Event()

        @scene.app.middleware
        async def hasty(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            inside = asyncio.ensure_future(go_on())
            await begun.wait()
            assert not inside.done()
            if raises:
                raise bide.Bury("it takes too long")

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append("cleaned up")

        await scene.put(1)
        async with scene.at_work():
            await scene.dead(1)
            steps.append("dead")
        assert steps == ["cleaned up", "dead"]

    scene.play(story())


def test_middleware_that_tries_again_waits_for_the_first_call(scene: Scene) -> None:
    async def story() -> None:
        limits: list[asyncio.Timeout] = []
        steps: list[str] = []
        over = threading.Event()

        @scene.app.middleware
        async def twice(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            try:
                async with asyncio.timeout(None) as limit:
                    limits.append(limit)
                    await go_on()
            except TimeoutError:
                first_call = delivery.in_thread
                again = asyncio.ensure_future(go_on())
                for _ in range(10):
                    await asyncio.sleep(0)
                assert delivery.in_thread is first_call is not None
                over.set()
                await again

        def handle(_: Any) -> None:
            steps.append("begun")
            over.wait(BOUND)
            steps.append("ended")

        scene.app.handler("q")(handle)
        await scene.put(1)
        async with scene.at_work():
            await until(lambda: steps)
            limits[0].reschedule(0)
            await scene.acked(1)
        assert steps == ["begun", "ended"] * 2

    scene.play(story())


def test_middleware_must_be_async() -> None:
    wrong: Any = lambda delivery, go_on: None  # noqa: E731
    with pytest.raises(bide.InvalidArgument, match="must be an async function"):
        bide.App("memory://").middleware(wrong)


@both
def test_a_lifespan_surrounds_the_work(scene: Scene, is_async: bool) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        app.state.pool = "pool"
        seen.append("open")
        yield
        seen.append("close")

    @contextmanager
    def plain_lifespan(app: bide.App) -> Iterator[None]:
        app.state.pool = "pool"
        seen.append("open")
        yield
        seen.append("close")

    async def story() -> None:
        scene.app.lifespan = lifespan if is_async else plain_lifespan

        @scene.app.handler("q")
        async def handle(delivery: bide.Handling) -> None:
            seen.append(delivery.state.pool)

        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
        assert seen == ["open", "pool", "close"]

    scene.play(story())
