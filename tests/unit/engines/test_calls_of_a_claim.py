"""What a claim does for each message is called without a dict: see the fields of `Message`."""

import dis
from collections.abc import Callable
from typing import Any

import pytest

from bide.engines.postgres import reading
from bide.engines.redis import layout
from bide.engines.rules.record import Record
from bide.engines.sqlite import tables


@pytest.mark.parametrize(
    "function",
    [Record.claimed, tables._decoded, layout.claimed_message, reading._of_row],
)
def test_no_call_has_so_many_names_that_python_builds_a_dict(function: Callable[..., Any]) -> None:
    called = {instruction.opname for instruction in dis.get_instructions(function)}
    assert "CALL_FUNCTION_EX" not in called
