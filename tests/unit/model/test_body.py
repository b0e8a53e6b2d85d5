import json
import math
import threading
import tracemalloc
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.model import body as module
from bide.model.body import check_depth, decode, encode, encode_all, parse
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_BODY, MAX_DEPTH
from tests.counting import count_calls

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@dataclass
class Order:
    number: int
    notes: Any = None


@dataclass(slots=True)
class Leg:
    metres: float
    stop: Any = None


@dataclass(slots=True)
class Detour(Leg):
    number: int = 0


class Parcel(msgspec.Struct):
    weight: float
    owner: Any = None


class Colour(Enum):
    RED = "red"


@given(values)
def test_json_comes_back_as_it_was(value: Any) -> None:
    data, is_json = encode(value)
    assert is_json
    assert decode(data, is_json) == value


@given(st.binary())
def test_bytes_come_back_as_they_were(value: bytes) -> None:
    for form in (value, bytearray(value), memoryview(value)):
        assert encode(form) == (value, False)
    assert decode(value, False) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Order(42), b'{"number":42,"notes":null}'),
        (Parcel(1.5), b'{"weight":1.5,"owner":null}'),
        (datetime(2030, 1, 1, tzinfo=UTC), b'"2030-01-01T00:00:00Z"'),
        (UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (Colour.RED, b'"red"'),
        ([msgspec.Raw(b"[null]")], b"[[null]]"),
        ((1, 2), b"[1,2]"),
        ({3}, b"[3]"),
        ({1: "a"}, b'{"1":"a"}'),
    ],
)
def test_what_has_a_json_form_is_written_in_it(value: Any, text: bytes) -> None:
    assert encode(value) == (text, True)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (object(), r"body is .*\bobject\b"),
        (1j, r"body is .*\bcomplex"),
        ({"a": object()}, r"body\['a'\] is .*\bobject\b"),
        ({"a": [1, {"b": (2, lambda: 0)}]}, r"body\['a'\]\[1\]\['b'\]\[1\] is .*\bfunction"),
        (Order(1, notes=[object()]), r"body is .*\bOrder\b.*\bobject\b"),
        ([Parcel(1, owner=object())], r"body\[0\] is .*\bParcel\b.*\bobject\b"),
        ([threading.Lock()], r"body\[0\] is .*\block"),
        (Leg(1, stop=1j), r"body is .*\bLeg\b.*\bcomplex"),
        (Parcel, r"body is .*\bStructMeta"),
        ({"kind": Order}, r"body\['kind'\] is .*\btype"),
    ],
)
def test_the_part_that_is_no_json_is_named(body: Any, place: str) -> None:
    with pytest.raises(InvalidArgument, match=place + ".*convert it .*, or encode the whole body"):
        encode(body)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({(1, 2): 3}, "body is .* tuple"),
        ({"a": [{None: 1}]}, r"body\['a'\]\[0\] is .* NoneType"),
        ({"a": {"\ud800": 1}}, r"body\['a'\] is .*'.ud800'.* surrogates not allowed"),
    ],
)
def test_the_dictionary_whose_key_is_no_text_is_named(body: Any, place: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{place}.*convert it \(keys to str\)"):
        encode(body)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "place"),
    [
        (lambda bad: bad, "body"),
        (lambda bad: {"a": [None, bad]}, r"body\['a'\]\[1\]"),
        (lambda bad: Order(1, notes={"x": bad}), r"body\['notes'\]\['x'\]"),
        (lambda bad: Parcel(bad), r"body\['weight'\]"),
        (lambda bad: [Leg(bad)], r"body\[0\]\['metres'\]"),
        (lambda bad: Detour(1, stop=[bad]), r"body\['stop'\]\[0\]"),
        (lambda bad: ({"t": (bad,)},), r"body\[0\]\['t'\]\[0\]"),
    ],
)
def test_a_nan_is_refused_where_it_stands_and_not_lost(bad: float, wrap: Any, place: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{place} is (nan|inf|-inf), which JSON cannot"):
        encode(wrap(bad))


def test_none_and_the_word_null_are_no_nan() -> None:
    for value in (None, [None], {"a": None}, "null", ["null", {"null": "nullnull"}]):
        assert decode(*encode(value)) == value


def test_a_lone_surrogate_is_refused_where_it_stands() -> None:
    with pytest.raises(InvalidArgument, match=r"body\['a'\] is .*str, which JSON cannot represent"):
        encode({"a": "\ud800"})


def test_a_body_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(InvalidArgument, match="nested too deeply, or contains itself"):
        encode(ring)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"":', "}"), ('[{"[":', "}]")])
def test_a_body_may_be_nested_500_levels_deep(opening: str, closing: str) -> None:
    levels = MAX_DEPTH // sum(map(closing.count, "]}"))
    deep = json.loads(opening * levels + "0" + closing * levels)
    data, is_json = encode(deep)
    assert decode(data, is_json) == deep
    with pytest.raises(InvalidArgument, match="nested too deeply: 501 levels, the limit is 500"):
        encode([deep])


def test_brackets_within_text_are_no_levels_of_a_body() -> None:
    body = {"text": '\\"[[{{' * 1_000, "list": [[]] * 1_000}
    assert decode(*encode(body)) == body


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        encode(deep)


def test_the_limit_is_on_the_encoded_bytes() -> None:
    assert len(encode("x" * (MAX_BODY - 2))[0]) == MAX_BODY
    with pytest.raises(InvalidArgument, match=r"takes 1,048,577 bytes, the limit is 1,048,576"):
        encode("x" * (MAX_BODY - 1))
    with pytest.raises(InvalidArgument, match=r"store it elsewhere and put a reference, or raise"):
        encode(b"x" * (MAX_BODY + 1))
    with pytest.raises(InvalidArgument, match="takes 4 bytes, the limit is 3"):
        encode("ü", limit=3)
    assert encode(b"abc", limit=3) == (b"abc", False)


def test_a_large_integer_is_json_too() -> None:
    for number in (2**64 - 1, 2**64, -(2**63) - 1, 10**400):
        assert decode(*encode(number)) == number
    with pytest.raises(InvalidArgument, match=r"body is .*int"):
        encode(10**5_000)


def one_by_one(bodies: list[Any], limit: int = MAX_BODY) -> object:
    try:
        return [encode(body, limit) for body in bodies]
    except InvalidArgument as error:
        return str(error)


def at_once(bodies: list[Any], limit: int = MAX_BODY) -> object:
    try:
        return list(zip(*encode_all(bodies, limit), strict=True))
    except InvalidArgument as error:
        return str(error)


raw: st.SearchStrategy[Any] = st.binary().flatmap(
    lambda data: st.sampled_from([data, bytearray(data), memoryview(data)])
)


@given(st.lists(values | raw | st.floats() | st.characters(categories=["Cs"])))
def test_many_bodies_are_encoded_as_one_is(bodies: list[Any]) -> None:
    assert at_once(bodies) == one_by_one(bodies)


@given(st.lists(values | raw), st.integers(0, 30))
def test_a_limit_is_the_same_for_many(bodies: list[Any], limit: int) -> None:
    assert at_once(bodies, limit) == one_by_one(bodies, limit)


NESTED = json.loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (math.nan, "body is nan"),
        ({"a": [None, math.inf]}, r"body\['a'\]\[1\] is inf"),
        (Order(1, notes={"x": math.nan}), r"body\['notes'\]\['x'\] is nan"),
        (object(), "body is of type object"),
        ({"a": [object()]}, r"body\['a'\]\[0\] is of type object"),
        ({(1, 2): 3}, "body is of type dict"),
        ({"a": "\ud800"}, r"body\['a'\] is of type str"),
        (10**5_000, "body is of type int"),
        (NESTED, "nested too deeply: 501 levels"),
        ("x" * MAX_BODY, "takes 1,048,578 bytes"),
        (b"x" * (MAX_BODY + 1), "takes 1,048,577 bytes"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) and len(value) < 50 else "",
)
@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([1, None, "null"], [2]), ([b"bytes"], [{"b": bytearray(b"more")}])],
    ids=["alone", "among JSON", "among bytes"],
)
def test_what_is_wrong_with_one_of_many_is_told_as_of_one(
    body: Any, cause: str, before: list[Any], after: list[Any]
) -> None:
    with pytest.raises(InvalidArgument, match=cause) as found:
        encode_all([*before, body, *after])
    assert str(found.value) == one_by_one([*before, body, *after])


def test_bytes_among_many_stay_bytes() -> None:
    for form in (b"[1]", bytearray(b"[1]"), memoryview(b"[1]")):
        assert encode_all([1, form, "2"]) == ([b"1", b"[1]", b'"2"'], [True, False, True])


def test_long_bodies_may_stand_beside_short_ones() -> None:
    long = {"text": "x" * 5_000, "none": None}
    assert at_once([1, long, [2]]) == one_by_one([1, long, [2]])


def test_a_place_is_put_together_for_faults_only() -> None:
    with pytest.raises(InvalidArgument, match=r"^body\['items'\]\[2\]\['weight'\] is nan, which"):
        encode({"items": [1, None, Parcel(math.nan)]})
    tracemalloc.start()
    try:
        encode({"k" * 5_000: [*range(50_000), None]})
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_the_place_of_a_fault_is_short() -> None:
    body: Any = math.inf
    for _ in range(100):
        body = {"k" * 1_000: body}
    with pytest.raises(InvalidArgument, match=r"^body\.\.\.k+'\]") as caught:
        encode([body, None])
    assert len(str(caught.value)) < 4_000


def test_depth_is_found_in_flat_memory() -> None:
    text = b"[" * 501 + b'"' + rb"\n" * 500_000 + b'"' + b"]" * 501
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="501 levels"):
            check_depth(text)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return int(isinstance(value, (dict, list))) + max(map(depth_of, inner), default=0)


BRACKETS = st.text(r'"\[]{}:,a')


@given(
    st.recursive(
        BRACKETS, lambda inner: st.lists(inner, max_size=40) | st.dictionaries(BRACKETS, inner)
    )
)
def test_depth_is_that_of_brackets_outside_strings(value: Any) -> None:
    depth, text = depth_of(value), json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_DEPTH", depth)
        check_depth(text)
        patch.setattr(module, "MAX_DEPTH", depth - 1)
        if depth:
            with pytest.raises(InvalidArgument, match=f" {depth} levels"):
                check_depth(text)


class Letter(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    to: str = pydantic.Field(alias="address")
    at: datetime
    weight: float = 1.5
    more: Any = 0

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def heavy(self) -> bool:
        return self.weight > 1


def test_a_pydantic_model_validates_to_itself_again() -> None:
    letter = Letter(address="Ann", at=datetime(2030, 1, 1, tzinfo=UTC))
    data, is_json = encode({"letters": [letter]})
    assert is_json
    (again,) = map(Letter.model_validate, decode(data, True)["letters"])
    assert again == letter
    for name in ("weight", "more"):
        with pytest.raises(InvalidArgument, match=rf"body\['{name}'\] is nan"):
            encode(letter.model_copy(update={name: math.nan}))


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr
    pins: list[pydantic.SecretBytes] = []


class OpenLogin(Login):
    @pydantic.field_serializer("password", when_used="json")
    def written(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


def test_a_secret_that_pydantic_would_mask_is_refused() -> None:
    login = Login(user="ann", password=pydantic.SecretStr("hunter2"))
    empty = Login(user="ann", password=pydantic.SecretStr(""), pins=[pydantic.SecretBytes(b"1")])
    for body, kind in ((login, "SecretStr"), ([{"login": empty}], "SecretBytes")):
        with pytest.raises(
            InvalidArgument, match=f"body has a {kind}, .* would be lost"
        ) as refusal:
            encode(body)
        assert "hunter2" not in str(refusal.value)
        with pytest.raises(InvalidArgument, match=kind):
            encode_all([1, body])


def test_a_secret_that_its_model_writes_and_a_text_like_the_mask_are_put() -> None:
    for login in (
        OpenLogin(user="**********", password=pydantic.SecretStr("hunter2")),
        Login(user="**********", password=pydantic.SecretStr("")),
    ):
        for data in (encode(login)[0], *encode_all([login, login])[0]):
            assert type(login).model_validate_json(data) == login
    assert encode(["**********"]) == (b'["**********"]', True)


@pytest.mark.parametrize("number", ["1e300", "1.7976931348623157e308", "5e-324", "-1E+5", "1e23"])
def test_many_numbers_with_exponents_are_the_same_numbers(number: str) -> None:
    text = f"[{number}, 1.5, {', '.join([number] * 9_000)}]".encode()
    assert parse(text) == json.loads(text)


def test_a_number_out_of_range_among_many_with_exponents() -> None:
    with pytest.raises(msgspec.DecodeError, match="out of range"):
        parse(b"[" + b"1e300," * 9_000 + b"1e400]")


def test_msgspec_alone_never_reads_many_numbers_with_exponents() -> None:
    text = b"[" + b"1e300," * 20_000 + b"1]"
    calls = count_calls(lambda: parse(text))  # each may take msgspec 10 µs, and the hook 0.3 µs
    assert calls["_finite"] == 20_000


def test_to_look_for_exponents_takes_no_call_for_each_number() -> None:
    def calls(numbers: int) -> int:
        text = msgspec.json.encode([1.5] * numbers)
        return count_calls(lambda: parse(text)).total()

    assert calls(20_000) == calls(200_000) < 10
