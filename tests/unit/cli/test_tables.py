"""Tables on terminals of any width."""

import io

from rich.console import Console

from bide.cli.output import Column, table_of

COLUMNS = (
    Column("id", least=6),
    Column("state"),
    Column("prio", right=True, extra=True),
    Column("group"),
    Column("body", least=4, extra=True),
)
ROW = ("identity-1", "delayed", "7", "", "a long text")


def drawn(width: int) -> tuple[str, str]:
    """Return the line below the heading, and the one below the table."""
    table = table_of(COLUMNS, [ROW], width)
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(table)
    lines = [line.strip() for line in console.export_text().splitlines()]
    _, row, *below = [line for line in lines if line and "─" not in line]
    return row, " ".join(below)


def test_what_fits_is_whole_and_a_column_without_content_is_not_shown() -> None:
    for width in (200, 40):
        assert drawn(width) == ("identity-1  delayed     7  a long text", "")


def test_the_last_is_cut_first_then_the_first() -> None:
    assert drawn(36) == ("identity-1  delayed     7  a long…", "")
    assert drawn(33) == ("identity-1  delayed     7  a l…", "")
    assert drawn(31) == ("identit…  delayed     7  a l…", "")


def test_extra_columns_are_left_out_from_the_right() -> None:
    assert drawn(28) == ("identity-1  delayed     7", "no room for body; --json shows all")
    assert drawn(22) == ("identity-1  delayed", "no room for prio, body; --json shows all")
    assert drawn(18) == ("identi…  delayed", "no room for prio, body; --json shows all")


def test_the_other_columns_stay_however_narrow_it_is() -> None:
    assert drawn(5)[0] == "ident…  delayed"
