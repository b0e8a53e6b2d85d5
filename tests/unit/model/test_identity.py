import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.model import identity
from bide.model.errors import InvalidArgument
from bide.model.identity import actor_of, check_actor, check_name, check_queue, new_id, new_ids
from bide.model.limits import MAX_ACTOR


@pytest.mark.parametrize(
    "name", ["a", "0", "orders", "a.b-c_d:e", "A" * 128, "shop/orders", "n" * 128 + "/" + "q" * 128]
)
def test_names_of_queues(name: str) -> None:
    assert check_queue(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        ".a",
        "-a",
        "_a",
        ":a",
        "/a",
        "a/",
        "a/b/c",
        "a//b",
        "ü",
        "a" * 129,
        "a\n",
        "a\0",
        "a%",
        "a*",
        "a/" + "b" * 129,
        "٣",
    ],
)
def test_what_is_no_name_of_a_queue(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a valid name of a queue: 1 to 128 of A-Z"):
        check_queue(name)


@pytest.mark.parametrize("name", [None, 1, b"a", ["a"]])
def test_a_name_of_a_queue_is_text(name: object) -> None:
    with pytest.raises(InvalidArgument, match="is not a valid name of a queue"):
        check_queue(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["a", " ", "x" * 512, "ü" * 256, "雪" * 170, "🦉" * 128, "%_'\"\\", "\u2028", "\u200b"]
)
def test_ids(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "size"),
    [("x" * 513, 513), ("ü" * 257, 514), ("雪" * 171, 513), ("🦉" * 129, 516)],
)
def test_an_id_of_more_than_512_bytes(name: str, size: int) -> None:
    with pytest.raises(InvalidArgument, match=f"id is {size} bytes.*1 to 512, so use a hash of it"):
        check_name(name)


def test_an_empty_id() -> None:
    with pytest.raises(InvalidArgument, match=r"id is 0 bytes long; it may have 1 to 512$"):
        check_name("")


@pytest.mark.parametrize("code", [0, 1, 9, 10, 13, 27, 31, 127, 128, 133, 159])
def test_control_characters_are_shown_and_refused(code: int) -> None:
    with pytest.raises(InvalidArgument, match=r"id='a(\\[xtnr]).* has control characters.*remove"):
        check_name(f"a{chr(code)}b")


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"])
def test_a_lone_surrogate_is_no_text(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not valid Unicode text"):
        check_name(name)


@pytest.mark.parametrize("name", [None, 1, b"a", ["a"]])
def test_an_id_is_text(name: object) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"must be a str, not {type(name).__name__}; convert it with str"
    ):
        check_name(name)  # type: ignore[arg-type]


def test_the_error_names_the_argument() -> None:
    for bad in ("", "\n", "x" * 600):
        with pytest.raises(InvalidArgument, match=r"^group"):
            check_name(bad, "group")


@given(st.text())
def test_any_text_is_an_id_or_refused(name: str) -> None:
    try:
        assert check_name(name) == name
    except InvalidArgument:
        too_long = not 0 < len(name.encode(errors="surrogatepass")) <= 512
        odd = any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in name)
        assert too_long or odd


def test_new_ids_are_unique_sorted_and_26_characters() -> None:
    ids = [id for count in (1, 5, 1000, 1, 20_000) for id in new_ids(count)]
    assert len(set(ids)) == len(ids) == 21_007
    assert ids == sorted(ids)
    assert {len(id) for id in ids} == {26}
    assert all(check_name(id) == id and id.isalnum() and id.islower() for id in ids[:100])
    assert new_ids(0) == []


def test_ids_made_singly_and_together_stay_sorted() -> None:
    ids = [id for _ in range(300) for id in (*[new_id() for _ in range(20)], *new_ids(3))]
    assert len(set(ids)) == len(ids) == 6_900
    assert ids == sorted(ids)
    ids = [new_id() for _ in range(5_000)]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    assert {len(id) for id in ids} == {26}


@pytest.mark.parametrize("one", [new_id, lambda: new_ids(1)[0]])
def test_new_ids_begin_with_the_moment_of_their_making(one: Callable[[], str]) -> None:
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

    def moment() -> int:
        number = 0
        for character in one()[:10]:
            number = number * 32 + alphabet.index(character)
        return number

    for _ in range(1_000):
        before = time.time_ns() // 1_000_000
        made = moment()
        assert before <= made <= time.time_ns() // 1_000_000


def test_ids_that_are_asked_for_in_one_go_stay_sorted_beyond_a_million() -> None:
    ids = new_ids(1_100_000)
    assert len(set(ids)) == len(ids)
    assert all(a < b for a, b in zip(ids[:-1:1000], ids[1000::1000], strict=False))
    assert ids[-1] > ids[0]


def test_new_ids_are_unique_over_threads() -> None:
    found: list[list[str]] = []

    def make() -> None:
        found.append([id for _ in range(200) for id in (new_id(), *new_ids(1), new_id())])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [id for part in found for id in part]
    assert len(set(ids)) == len(ids) == 8 * 600
    assert all(part == sorted(part) for part in found)


def test_an_actor_takes_64_bytes() -> None:
    assert MAX_ACTOR == 64
    assert check_actor("é" * 32) == "é" * 32
    with pytest.raises(InvalidArgument, match=r"longer than 64 bytes"):
        check_actor("é" * 33)
    with pytest.raises(InvalidArgument, match=r"actor is 0 bytes"):
        check_actor("")


@pytest.mark.parametrize("through", ["", "shop-api", "t" * 200])
@pytest.mark.parametrize("name", ["ann", "é" * 100, "a\nb", "\ud800", ""])
def test_a_name_of_any_length_becomes_an_actor(name: str, through: str) -> None:
    actor = actor_of(name, through)
    assert actor == "" or check_actor(actor) == actor
    assert (" via " + through[:32] in actor) == bool(through)


def test_a_signal_handler_that_interrupts_the_making_of_ids_gets_others() -> None:
    made: list[str] = []

    def interrupted() -> None:
        identity._draw()
        with identity._lock:
            made.extend([new_id(), *new_ids(2)])

    before = new_id()
    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(60)
    assert len({before, *made, new_id()}) == 5
    assert {len(id) for id in made} == {26}
    assert all(id[:4] == before[:4] for id in made)
