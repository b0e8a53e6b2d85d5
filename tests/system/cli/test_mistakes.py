"""What was written by a slip of the pen, or in the wrong folder, is told, and does nothing."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import bide
from bide.cli import main
from bide.cli.program import ALIASES, FILES, NAMED_ELSEWHERE
from tests.system.cli.conftest import Shell

Bide = Callable[..., Result]


@pytest.fixture
def filled(url: str) -> None:
    for name in ("orders", "mail"):
        with bide.Queue(name, url) as queue:
            queue.put(1, id="a", delay=60)


ON_A_QUEUE = [
    ["counts", "ordrs"],
    ["peek", "ordrs"],
    ["scan", "ordrs"],
    ["get", "ordrs", "a"],
    ["forecast", "ordrs"],
    ["past", "ordrs"],
    ["ended", "ordrs"],
    ["audit", "orders", "ordrs"],
    ["export", "ordrs"],
    ["resume", "ordrs"],
    ["purge", "ordrs", "--state", "dead", "--yes"],
    ["dead", "ordrs"],
    ["dead", "list", "ordrs"],
    ["dead", "show", "ordrs", "a"],
    ["dead", "purge", "ordrs", "--all", "--yes"],
    ["revive", "ordrs", "--all"],
    ["cancel", "ordrs", "a"],
    ["cancel", "ordrs", "a", "b", "--if-due", "4000000000"],
    ["cancel", "ordrs", "--group", "g"],
    ["cancel", "ordrs", "--group", "g", "--dry-run"],
    ["undo", "ordrs", "01kb2n8m7dzz4r6y0t5v9x3h1q"],
    ["reschedule", "ordrs", "a", "--delay", "1h"],
    ["ack", "ordrs", "a", "7"],
    ["retry", "ordrs", "a", "7"],
    ["bury", "ordrs", "a", "7"],
    ["extend", "ordrs", "a", "7"],
    ["claim", "ordrs"],
    ["claim", "ordrs", "--exec", "true"],
]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("arguments", ON_A_QUEUE, ids=" ".join)
def test_a_queue_that_is_not_there(run: Bide, url: str, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr == f"error: there is no queue 'ordrs' in {url}; there are: orders, mail\n"
    assert "there are: mail, orders" in run("counts", "xyz").stderr


def test_of_many_queues_a_few_are_named(run: Bide, url: str) -> None:
    for number in range(20):
        with bide.Queue(f"shard-{number:02}", url) as queue:
            queue.put(1)
    assert run("counts", "xyz").stderr.endswith("shard-06, shard-07, ...\n")


@pytest.mark.usefixtures("filled")
def test_a_prefix_of_no_queue_and_a_store_for_a_prefix(run: Bide, url: str) -> None:
    assert run("queues", "o").stdout.startswith("orders\t")
    for line in ("queues x", "search x --id a"):
        result = run(*line.split())
        assert (result.stdout, result.exit_code) == ("", 1)
        assert "no queue begins with 'x' in" in result.stderr
        assert "there are: mail, orders" in result.stderr
    for arguments in (["queues", url], ["top", url], ["counts", "http://me:secret@h:1"]):
        result = run(*arguments)
        assert (result.stdout, result.exit_code) == ("", 2)
        assert "is a store; write --url before it" in result.stderr
        assert "secret" not in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "audit URL",
        "dead URL",
        "past URL",
        "recover URL",
        "scan URL",
        "import orders URL",
        "move sqlite:///a.db sqlite:///b.db URL",
        "subscription add URL --to https://shop.example/",
        "subscription put shop URL https://shop.example/",
        "worker URL",
        "call URL",
        "check-deploy URL",
        "schedules URL",
        "tasks URL",
    ],
)
@pytest.mark.usefixtures("filled")
def test_a_url_in_place_of_a_name_shows_no_password(run: Bide, line: str) -> None:
    result = run(*line.replace("URL", "redis://me:secret@cache/0").split())
    assert (result.stdout, result.exit_code) == ("", 2)
    assert "redis://me:***@cache/0 is " in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.usefixtures("filled")
def test_a_queue_to_be_moved_is_not_there(run: Bide, url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/new.db"
    for more in ([], ["--dry-run"], ["--follow"]):
        result = run("move", url, target, "orders", "ordrs", *more)
        assert (result.stdout, result.exit_code) == ("", 1)
        assert "there is no queue 'ordrs' in" in result.stderr
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    "line",
    [
        "cancel orders a",
        "cancel orders --group g",
        "reschedule orders a --delay 1h",
        "ack orders a 7",
        "retry orders a 7",
        "bury orders a 7",
        "extend orders a 7",
        "claim orders",
        "claim orders --exec true",
        "resume orders",
        "purge orders --state dead --yes",
        "revive orders --all",
        "dead list",
        "dead purge orders --all --yes",
        "queues",
        "counts orders",
        "audit",
        "audit orders",
        "export orders",
        "top --once",
        "sources",
        "schedules",
        "token list",
        "token revoke 4be0643f1d98",
        "subscription list",
        "subscription delete shop",
    ],
)
def test_in_a_wrong_folder_no_store_is_made(run: Bide, tmp_path: Path, line: str) -> None:
    result = run(*line.split())
    assert (result.stdout, result.exit_code) == ("", 3)
    assert f"there is no store at {tmp_path}/test.db yet" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["queues", "get orders a", "cancel orders a", "claim orders"])
def test_a_database_of_an_application_is_left_alone(run: Bide, tmp_path: Path, line: str) -> None:
    with closing(sqlite3.connect(tmp_path / "test.db")) as connection:
        connection.execute("CREATE TABLE customer (id)")
        connection.commit()
    before = (tmp_path / "test.db").read_bytes()
    result = run(*line.split())
    assert (result.stdout, result.exit_code) == ("", 3)
    assert f"{tmp_path}/test.db yet (the file has no tables of bide); " in result.stderr
    assert (tmp_path / "test.db").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
    assert run("put", "orders", "1").exit_code == 0
    assert run("queues").stdout.startswith("orders\t")


@pytest.mark.parametrize(
    "line", ["put orders 1", "pause orders", "set orders --keep 1d", "claim orders --wait 1ms"]
)
def test_who_may_come_first_makes_the_store(run: Bide, tmp_path: Path, line: str) -> None:
    run(*line.split())
    assert (tmp_path / "test.db").exists()


@pytest.mark.process
def test_the_default_store_is_looked_for_in_this_folder(shell: Shell, tmp_path: Path) -> None:
    done = shell("bide cancel orders order-42", BIDE_URL="")
    assert (done.stdout, done.returncode) == ("", 3)
    assert f"there is no store at {tmp_path}/bide.db yet" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("polly", "there is no command 'polly'\n       see 'bide --help'"),
        ("token lst", "there is no command 'lst'; did you mean 'list'?"),
        ("token remove", "there is no command 'remove'; did you mean 'revoke'?"),
        ("token", "Missing command.\n       see 'bide token --help'"),
        (
            "get order-42",
            "Missing argument 'ID...'.\n"
            "       usage: bide get [OPTIONS] QUEUE ID...; see 'bide get --help'",
        ),
        (
            "delete orders order-42",
            "Got unexpected extra argument (order-42)\n"
            "       usage: bide delete [OPTIONS] QUEUE; see 'bide delete --help'",
        ),
        ("cancel order-42", "after the queue, cancel takes ids"),
        ("put orders 1 --in 30m", "; did you mean '--delay'?"),
        ("queues --db bide.db", "; did you mean '--url'?"),
        (
            "put orders 1 --delay=-5",
            "'-5' is negative; for now give 0, for a time in the past use --at",
        ),
        ("ack orders a abc", "'abc' is not a token; the token is the second column"),
        ("ack orders a 0", "'0' is not a token; the token is the second column"),
    ],
)
def test_what_others_write_is_met_with_the_mend(run: Bide, line: str, told: str) -> None:
    result = run(*line.split())
    assert (result.stdout, result.exit_code) == ("", 2)
    assert told in result.stderr


@pytest.mark.usefixtures("filled")
def test_options_of_the_list_of_dead_letters_need_no_command(run: Bide, url: str) -> None:
    with bide.Queue("orders", url) as orders:
        orders.put(2, id="b")
        orders.claim()[0].bury("no")
    assert run("dead", "--json").stdout == run("dead", "list", "--json").stdout != ""
    assert "List, show, revive or purge" in run("dead", "--help").stdout


def test_schedules_may_be_those_of_an_app(run: Bide) -> None:
    assert "or name the app: bide schedules shop:app" in run("schedules").stderr


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("bide.db", "sqlite:///x.db", "'bide.db' names no store"),
        ("sqlite:///x.db", "bide.db", "'bide.db' names no store"),
        ("sqlite:///x.db", "redis:///tmp/r.sock", "for a socket write unix:///tmp/r.sock"),
        ("sqlite:////none.db", "sqlite:///x.db", "SOURCE must be the URL of a store that exists"),
    ],
)
def test_what_is_no_store_to_move(run: Bide, source: str, target: str, told: str) -> None:
    result = run("move", source, target)
    assert told in result.stderr
    assert "--url" not in result.stderr
    assert result.exit_code == (3 if "none.db" in source else 2)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:SECRET/x@127.0.0.1:1",
        "redis://me:SEC#RET@127.0.0.1:1/0",
        "redis://me:1/SECRET@127.0.0.1:1/0",
        "rediss://me:SEC?RET@h",
        "http://SECRET@/",
    ],
)
def test_no_password_is_printed_even_of_a_url_that_cannot_be_parsed(run: Bide, url: str) -> None:
    for arguments in (["queues"], ["token", "list"], ["put", "orders", "1"]):
        result = run(*arguments, "--url", url)
        assert result.exit_code != 0
        assert "SEC" not in result.output
        assert "RET" not in result.output


def test_a_file_with_an_at_sign_is_shown_whole(run: Bide, tmp_path: Path) -> None:
    result = run("queues", "--url", f"sqlite:///{tmp_path}/a@b.db")
    assert f"{tmp_path}/a@b.db" in result.output


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("more", [[], ["--yes"], ["--undo"], ["--dry-run"]], ids=" ".join)
def test_a_purge_without_a_state(run: Bide, url: str, more: list[str]) -> None:
    result = run("purge", "orders", *more)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert "Missing option '--state'" in result.stderr
    with bide.Queue("orders", url) as orders:
        assert orders.counts().sizes.delayed == 1


@pytest.mark.parametrize("line", ["put q 1", "queues", "subscription list", "doctor"])
def test_what_is_no_url(run: Bide, line: str) -> None:
    for wrong, cause in (
        ("http://[::1", "is not a valid URL"),
        ("sqlite:///x%00.db", "name of a file"),
        ("redis://u:hu[sh@cache", "%5B"),
        (" sqlite:///bide.db", "begins or ends with a blank"),
    ):
        result = run(*line.split(), "--url", wrong)
        assert (result.stdout, result.exit_code) == ("", 2)
        assert cause in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "forward postgresql://u:hu[sh@db/shop --once",
        "top --once --url http://:hu[sh@host",
        "worker x:y --outbox postgresql://u:hu[sh@db/shop",
        "rabbitmq amqp://u:hu[sh@mq/?exchange=s",
        "subscription add o --to amqp://u:hu[sh@mq/?exchange=s",
        "import o redis://u:hu[sh@cache --from celery",
        "move redis://u:hu[sh@cache redis://b",
    ],
)
def test_a_password_that_must_be_encoded(run: Bide, line: str) -> None:
    result = run(*line.split())
    assert (result.stdout, result.exit_code) == ("", 2)
    assert "%5B %5D" in " ".join(result.stderr.split())
    assert "hu" not in result.stderr


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("redis:/cache/0", "redis://cache/0"),
        ("postgresql:u:secret@db/x", "postgresql://u:***@db/x"),
        ("sqlite:/var/bide.db", "sqlite:////var/bide.db"),
        ("sqlite:bide.db", "sqlite:///bide.db"),
        ("memory:", "memory://"),
        ("http:/host:8642", "http://host:8642"),
    ],
)
def test_a_url_without_its_slashes(run: Bide, wrong: str, meant: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=f"; write {re.escape(meant)}$"):
        bide.Queue("orders", wrong)
    result = run("dashboard", wrong)
    assert result.exit_code == 2
    assert "secret" not in result.stderr


@pytest.mark.usefixtures("filled")
def test_a_lease_that_is_too_long_is_told_as_a_duration(run: Bide) -> None:
    result = run("claim", "orders", "--lease", "48h")
    assert result.exit_code == 2
    assert "--lease 2d must be between 1 ms and 24 hours" in result.stderr


@pytest.mark.usefixtures("filled")
def test_a_worker_that_is_not_there_cannot_be_stopped(run: Bide) -> None:
    result = run("workers", "stop", "nope")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.stderr.startswith("error: no running worker is named 'nope'; `bide work")


@pytest.mark.usefixtures("root_log")
@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["counts", "orders", "--url", "nonsense"], {}, "error: 'nonsense' names no store"),
        (
            ["counts", "orders"],
            {"BIDE_URL": "nonsense"},
            "error: BIDE_URL 'nonsense' names no store",
        ),
        (["dashboard", "nonsense"], {"BIDE_URL": "memory://"}, "error: 'nonsense' names no store"),
        (["rabbitmq", "amqp://mq"], {"BIDE_URL": "memory://"}, "error: 'amqp://mq' names no"),
        (["serve", "--store", ""], {}, "error: '' names no store"),
        (["doctor", ""], {}, "error: '' names no store"),
        (["doctor", "--url", ""], {}, "error: '' names no store"),
        (["prove", ""], {}, "error: '' names no store"),
        (["prove", "--url", ""], {}, "error: '' names no store"),
        (["push", "--url", ""], {}, "error: '' names no store"),
        (["mcp", ""], {}, "error: '' names no store"),
        (
            ["import", "orders", "memory://", "--from", "rq", "--url", "sqlite:///no.db"],
            {},
            "error: 'memory://' is no Redis",
        ),
    ],
)
def test_an_error_of_a_url_names_the_url(
    arguments: list[str], environment: dict[str, str], told: str
) -> None:
    done = CliRunner().invoke(main, arguments, env={"BIDE_URL": None, **environment})
    assert told in done.stderr
    assert done.exit_code == 2


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("word", ["ls", "list", "status", "stats"])
def test_words_of_other_programs_list_the_queues(run: Bide, word: str) -> None:
    assert run(word).stdout == run("queues").stdout
    assert run(word, "--json").stdout == run("queues", "--json").stdout


@pytest.mark.usefixtures("filled")
def test_words_of_other_programs_put_and_show_messages(run: Bide) -> None:
    assert run("add", "orders", "1", "--id", "new").exit_code == 0
    assert run("enqueue", "orders", "1", "--id", "newer").exit_code == 0
    assert run("show", "orders", "newer").stdout == run("get", "orders", "newer").stdout
    assert "Usage: bide worker" in run("run", "--help").stdout


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("rm", "cancel"),
        ("remove", "cancel"),
        ("clear", "purge"),
        ("flush", "purge"),
        ("requeue", "revive"),
        ("revoke", "cancel"),
        ("pop", "claim"),
    ],
)
def test_words_with_more_than_one_meaning_do_nothing_and_name_the_commands(
    run: Bide, word: str, named: str
) -> None:
    result = run(word, "orders", "a")
    assert (result.stdout, result.exit_code) == ("", 2)
    assert result.stderr.startswith(f"error: there is no command {word!r}; {named} ")
    assert run("get", "orders", "a").exit_code == 0


def test_words_of_other_programs_name_commands_that_exist() -> None:
    assert NAMED_ELSEWHERE.keys() & {*FILES, *ALIASES} == set()
    named = {part.split()[0] for text in NAMED_ELSEWHERE.values() for part in text.split(", ")}
    assert named - FILES.keys() == set()


def test_help_and_version_may_be_written_as_commands(run: Bide) -> None:
    assert run("help").stdout == run("--help").stdout
    assert run("help", "token", "create").stdout == run("token", "create", "--help").stdout
    assert run("--json", "help", "put").stdout == run("put", "--help").stdout
    assert run("version").stdout == run("--version").stdout


@pytest.mark.usefixtures("filled")
def test_options_may_stand_before_the_command(url: str) -> None:
    def shell(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    queues = shell("queues", "--url", url, "--json")
    assert queues.exit_code == 0
    assert shell("--url", url, "--json", "queues").stdout == queues.stdout
    assert shell(f"--url={url}", "ls", "--json").stdout == queues.stdout
    dead = shell("dead", "list", "orders", "--json", "--url", url)
    assert dead.exit_code == 0
    assert shell("--json", "--url", url, "dead", "list", "orders").stdout == dead.stdout
    assert shell("--json", "--url", url, "dead", "orders").stdout == dead.stdout


@pytest.mark.parametrize("arguments", [["--nonsense", "queues"], ["--yes", "counts", "orders"]])
def test_an_option_before_a_command_that_has_none_such_is_refused(
    run: Bide, arguments: list[str]
) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert f"No such option {arguments[0]!r}" in result.stderr
    assert f"{arguments[1]} --help'" in result.stderr


def test_options_without_a_command_are_an_error() -> None:
    result = CliRunner().invoke(main, ["--json"])
    assert (result.stdout, result.exit_code) == ("", 2)
    assert "No such option '--json'" in result.stderr
