"""Tables on terminals of any width."""

import io

from rich.console import Console

from bide.cli.output import Column, table_of

COLUMNS = (
    Column("id", least=6), Column("state"), Column("prio", falls=2, right=True),
    Column("body", least=4, falls=1),
)  # fmt: skip
ROW = ("identity-1", "delayed", "7", "a long text")


def drawn(width: int, *columns: Column, row: tuple[str, ...] = ROW) -> tuple[list[str], str]:
    table, gone = table_of(columns or COLUMNS, [list(row)], width)
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(table)
    lines = [line.strip() for line in console.export_text().splitlines()]
    return [line for line in lines if line and "─" not in line][1:], ",".join(gone)


def test_what_fits_is_whole() -> None:
    for width in (200, 40):
        assert drawn(width) == (["identity-1  delayed     7  a long text"], "")


def test_the_last_is_cut_first_then_the_first() -> None:
    assert drawn(36) == (["identity-1  delayed     7  a long…"], "")
    assert drawn(33) == (["identity-1  delayed     7  a l…"], "")
    assert drawn(31) == (["identit…  delayed     7  a l…"], "")


def test_columns_fall_out_one_after_the_other() -> None:
    assert drawn(28) == (["identity-1  delayed     7"], "body")
    assert drawn(22) == (["identity-1  delayed"], "prio,body")
    assert drawn(18) == (["identi…  delayed"], "prio,body")


def test_what_a_line_is_about_stays_however_narrow_it_is() -> None:
    assert drawn(5) == (["ident…  delayed"], "prio,body")


def test_a_text_may_go_on_below() -> None:
    columns = (Column("schedule"), Column("", least=6, wraps=True))
    lines, gone = drawn(19, *columns, row=("a\nb\nc", "nobody has run"))
    assert (lines, gone) == (["a         nobody", "b         has run", "c"], "")


def test_names_are_cut_and_times_broken_where_nothing_else_helps() -> None:
    columns = (
        Column("queue", least=9, squeezed=6), Column("next", wraps=True, squeezed=10),
        Column("away", falls=1), Column("dead", right=True),
    )  # fmt: skip
    row = ("daily-report", "2026-12-07 09:00", "in 3d", "1,234")
    assert drawn(36, *columns, row=row) == (["daily-re…  2026-12-07 09:00  1,234"], "away")
    broken = ["daily-re…  2026-12-07  1,234", "09:00"]
    assert drawn(30, *columns, row=row) == (broken, "away")
    assert drawn(27, *columns, row=row) == (["daily…  2026-12-07  1,234", "09:00"], "away")
