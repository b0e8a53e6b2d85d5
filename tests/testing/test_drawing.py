from collections import defaultdict
from random import Random
from typing import get_args

import msgspec
import pytest

from bide.model import commands as cmd
from bide.model.options import OPTIONS, Option
from bide.testing.conformance.drawing import limited_scripts, struct

ALWAYS_THE_SAME = {"cursor", "stored"}
"""`dumped` follows the cursors that an engine gives; engines may count a few bytes more."""


def test_scripts_give_every_field_of_every_command_several_values() -> None:
    seen: defaultdict[tuple[type, str], set[str]] = defaultdict(set)
    for seed in range(100):
        for _, ops in limited_scripts(Random(seed)):
            for op in ops:
                for name in op.__struct_fields__:
                    seen[type(op), name].add(repr(getattr(op, name)))
    fields = [(kind, name) for kind in get_args(cmd.Command) for name in kind.__struct_fields__]
    dull = {(kind.__name__, name) for kind, name in fields if len(seen[kind, name]) < 2}
    assert {(kind, name) for kind, name in dull if name not in ALWAYS_THE_SAME} == set()


def test_a_field_without_values_is_named() -> None:
    class New(msgspec.Struct):
        choice: bool
        surprise: str

    with pytest.raises(AssertionError, match="no values for the field surprise"):
        struct(New)


def test_an_option_of_a_message_has_the_values_of_its_declaration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class New(msgspec.Struct):
        cost: int

    monkeypatch.setitem(OPTIONS, "cost", Option("cost", 2, "A new option.", 0, 9))
    draw = struct(New)
    assert {draw(Random(seed)).cost for seed in range(30)} == {0, 2, 9}
