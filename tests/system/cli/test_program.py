"""`bide` itself: help, version, exit codes, completion, and what is imported when."""

import doctest
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import bide
from bide.cli import main
from bide.cli.program import FILES
from tests.servers import RedisServer

Bide = Callable[..., Result]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]

REPOSITORY = Path(__file__).parents[3]


def every_command(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


EVERY = dict(every_command(main, "bide"))


def test_version(run: Bide) -> None:
    assert run("--version").output == f"bide {version('bide')}\n"


def test_help_lists_every_command_and_the_exit_codes(run: Bide) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        result = run(*arguments)
        assert result.exit_code == 0
        for name in FILES:
            assert f"  {name} " in result.output
        assert "Exit codes:" in result.output


def test_every_help_has_an_example_and_fits_a_terminal(run: Bide) -> None:
    for path in EVERY:
        result = run(*path.split()[1:], "--help")
        assert result.exit_code == 0
        _, _, examples = result.output.partition("Example:\n")
        assert re.search(rf"\b{path}\b", examples), path
        assert [line for line in result.output.splitlines() if len(line) > 80] == []


def test_the_documentation_tells_every_command() -> None:
    told = (REPOSITORY / "docs" / "cli.md").read_text()
    assert [path for path in EVERY if not re.search(rf"\b{path}\b", told)] == []


def test_the_documentation_tells_every_long_option() -> None:
    told = (REPOSITORY / "docs" / "cli.md").read_text()
    missing = {
        f"{path} {option}"
        for path, command in EVERY.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option not in told
    }
    assert missing == set()


@pytest.mark.parametrize("name", ["output", "times"])
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(import_module(f"bide.cli.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_a_slip_of_the_pen_is_met_with_a_hint(run: Bide) -> None:
    result = run("cancle", "orders", "a")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == (
        "error: there is no command 'cancle'; did you mean 'cancel'?"
    )


@pytest.mark.parametrize(
    ("url", "code", "word"),
    [
        ("mysql://x:secret@y/z", 2, "names no store"),
        ("sqlite:///{tmp}/none/x.db", 3, "there is no directory"),
        ("sqlite:///{tmp}/text.db", 3, "not a SQLite database"),
    ],
)
def test_what_is_wrong_with_a_store(
    run: Bide, tmp_path: Path, url: str, code: int, word: str
) -> None:
    (tmp_path / "text.db").write_text("just text, and quite a lot of it\n" * 40)
    result = run("put", "orders", "1", "--url", url.format(tmp=tmp_path))
    assert result.exit_code == code
    assert word in result.stderr
    assert "secret" not in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_defaults_are_shown_as_one_would_write_them(run: Bide) -> None:
    for command in ("worker", "claim", "top", "push"):
        assert re.search(r"\[default: (30|1)s\]", run(command, "--help").stdout)


def test_debug_shows_the_traceback(run: Bide) -> None:
    quiet = run("put", "orders", "1", "--url", "mysql://x")
    loud = run("put", "orders", "1", "--url", "mysql://x", "--debug")
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert loud.exit_code == quiet.exit_code == 2


@pytest.mark.parametrize("arguments", [["--help"], ["put", "orders", "1"], ["counts", "orders"]])
def test_nothing_is_imported_that_is_not_called(url: str, arguments: list[str]) -> None:
    with bide.Queue("orders", url) as orders:
        orders.put(1)
    code = (
        "import sys\nfrom bide.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"BIDE_URL": url},
    )
    loaded = set(done.stderr.split())
    if arguments != ["--help"]:  # the help shows the first sentence of each
        assert loaded & {f"bide.cli.{file}" for file in FILES.values()} == {
            f"bide.cli.{FILES[arguments[0]]}"
        }
    assert "rich" not in loaded


def complete(words: str, url: str) -> list[str]:
    env = {
        "_BIDE_COMPLETE": "bash_complete",
        "COMP_WORDS": f"bide {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        "BIDE_URL": url,
    }
    result = CliRunner().invoke(main, [], env=env, prog_name="bide")
    return [line.partition(",")[2] for line in result.output.splitlines() if line]


def test_a_store_warns_nobody_who_completes_a_word(shell: Shell, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        put = shell("bide put orders 1", BIDE_URL=server.url)
        assert "a restart loses all messages" in put.stderr
        words = "_BIDE_COMPLETE=bash_complete COMP_WORDS='bide counts o' COMP_CWORD=2"
        done = shell(f"{words} bide", BIDE_URL=server.url)
        assert (done.stdout, done.stderr) == ("plain,orders\n", "")
    finally:
        server.stop()


def test_completion_of_commands_queues_and_options(url: str) -> None:
    assert complete("re", url) == [
        "reopen-group",
        "reschedule",
        "result",
        "recover",
        "resume",
        "retry",
        "release",
        "revive",
    ]
    assert complete("dead re", url) == ["revive"]
    assert complete("token rm ", url) == ["create", "list", "revoke", "rotate"]
    assert complete("counts ", url) == []
    for name in ("orders", "mail"):
        with bide.Queue(name, url) as queue:
            queue.put(1)
    assert complete("counts ", url) == ["mail", "orders"]
    assert complete("claim o", url) == ["orders"]
    assert "--priority" in complete("put orders --pri", url)
    assert complete("scan orders --state de", url) == ["delayed", "dead"]


@pytest.mark.parametrize("family", ["dead", "subscription", "token"])
def test_the_help_of_a_family_cuts_nothing(run: Bide, family: str) -> None:
    listed = run(family, "--help").output.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed
