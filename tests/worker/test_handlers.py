"""What a handler may be, and what it is given."""

import dataclasses
import functools
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Optional, Self, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

import bide
from bide.consuming.handler import Unfit, decoder, make_handler
from bide.consuming.handling import Handler, Handling
from bide.model.commands import Ack
from bide.model.message import Message
from tests.worker.worker_app import Scene


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
    with pytest.raises(Unfit, match="no Model: 1 validation error"):
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
    with pytest.raises(Unfit, match="no Checked: 1 validation error"):
        decoder(Checked, "f")(claimed({"id": -1}).message)

    class Special(Checked):
        pass

    assert isinstance(decoder(Special, "f")(claimed({"id": 4}).message), Special)


@pytest.mark.parametrize(
    "mark", [pydantic.Field(gt=5), msgspec.Meta(gt=5)], ids=["pydantic", "msgspec"]
)
def test_constraints_of_an_annotation_hold(mark: Any) -> None:
    def handle(body: Annotated[int, mark]) -> Any:
        return body

    made = make_handler(handle)
    assert made.call(claimed(6)) == 6
    with pytest.raises(Unfit, match="the body is no "):
        made.call(claimed(5))
    several = decoder(dict[str, list[Annotated[int, mark]]], "f")
    assert several(claimed({"a": [6]}).message) == {"a": [6]}
    with pytest.raises(Unfit):
        several(claimed({"a": [6, 5]}).message)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (Order, {"id": "x"}, r"the body is no Order: Expected `int`, got `str` - at `\$.id`"),
        (Order, {"id": -1}, "the body is no Order: ids begin at 0"),
        (Order, {}, "missing required field `id`"),
        (Line, 3, "the body is no Line"),
        (list[int], ["a"], "Expected `int`"),
        (Order, b"\x00", "the body is bytes, and the handler takes a Order"),
        (bytes, {"id": 1}, "the body is JSON, and the handler takes bytes"),
    ],
)
def test_a_body_that_does_not_fit_says_why(kind: Any, body: Any, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        decoder(kind, "f")(claimed(body).message)


def test_a_type_that_no_body_can_be_is_refused_at_once() -> None:
    app = bide.App("memory://")

    def handle(module: ModuleType) -> None: ...

    with pytest.raises(bide.InvalidArgument, match="takes a module, which no body can be"):
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
        (3, "a handler must be a function, not a int"),
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
    with pytest.raises(bide.InvalidArgument, match="begins with none of"):
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
    with pytest.raises(bide.InvalidArgument, match=r'not a function: @app.handler\("orders"'):
        app.handler(plain_body)  # type: ignore[arg-type]
    with pytest.raises(bide.InvalidArgument, match=r'not a type: @app.job\("orders"'):
        app.job(Order)  # type: ignore[arg-type]
    with pytest.raises(bide.InvalidArgument, match=r"name of one queue, not a list: @app\.h"):
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
