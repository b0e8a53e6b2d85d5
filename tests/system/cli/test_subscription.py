"""`bide subscription`, and how `bide push` begins."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.targets.http.subscription import new_secret
from tests.system.server.conftest import running

Bide = Callable[..., Result]

URL = "https://shop.example/hook?key=abc"


@pytest.fixture
def shop(run: Bide) -> str:
    result = run("subscription", "put", "shop", "orders", URL)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def listed(run: Bide, *options: str) -> list[dict[str, object]]:
    result = run("subscription", "list", "--json", *options)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_secret_is_shown_once(run: Bide, shop: str) -> None:
    assert shop.startswith("whsec_")
    assert run("subscription", "put", "shop", "orders", URL).stdout == ""
    for output in (run("subscription", "list"), run("subscription", "list", "--json")):
        assert shop not in output.output


def test_everything_that_can_be_said_is_kept(run: Bide) -> None:
    result = run(
        "subscription",
        "put",
        "shop",
        "orders",
        URL,
        "--namespace",
        "team",
        "--header",
        "Authorization: Bearer hush",
        "--concurrency",
        "3",
        "--rate",
        "2.5",
        "--timeout",
        "5s",
        "--attempts",
        "4",
        "--first",
        "1s",
        "--ceiling",
        "1m",
        "--failures",
        "7",
        "--probe",
        "10s",
        "--json",
    )
    assert json.loads(result.stdout)["secret"].startswith("whsec_")
    (told,) = listed(run, "--namespace", "team")
    assert "hush" not in str(told)
    assert told["headers"] == ["Authorization"]
    names = ("concurrency", "rate", "timeout", "attempts", "first", "ceiling", "failures", "probe")
    assert [told[name] for name in names] == [3, 2.5, 5_000, 4, 1_000, 60_000, 7, 10_000]
    assert listed(run) == []
    assert listed(run, "--all") == [told]


@pytest.mark.parametrize(("rate", "told"), [("3", 3.0), ("7/s", 7.0), ("30/m", 0.5)])
def test_a_rate_is_written_as_that_of_a_queue(run: Bide, rate: str, told: float) -> None:
    run("subscription", "put", "shop", "orders", URL, "--rate", rate)
    assert listed(run)[0]["rate"] == pytest.approx(told, rel=1e-5)


def test_one_of_a_namespace_may_be_named_as_the_list_does(run: Bide) -> None:
    made = run("subscription", "put", "team/shop", "team/orders", URL)
    assert made.exit_code == 0, made.output
    (told,) = listed(run, "--namespace", "team")
    assert (told["namespace"], told["name"], told["queue"]) == ("team", "shop", "orders")
    for words in (("pause", "team/shop"), ("resume", "team/shop", "--namespace", "team")):
        assert run("subscription", *words).exit_code == 0
    assert run("subscription", "rotate", "team/shop").stdout.startswith("whsec_")
    wrong = run("subscription", "pause", "team/shop", "--namespace", "mail")
    assert wrong.exit_code == 2
    assert "is not in the namespace 'mail'" in wrong.output
    assert run("subscription", "pause", "mail/shop").exit_code == 1
    assert run("subscription", "delete", "team/shop").exit_code == 0
    assert listed(run, "--all") == []


def test_a_name_that_lacks_its_namespace_is_refused(run: Bide) -> None:
    run("subscription", "put", "hook", "orders", URL)
    assert "name='/hook' is not" in run("subscription", "put", "/hook", "orders", URL).stderr
    for words in (("/hook",), ("/hook", "--namespace", "team")):
        assert run("subscription", "delete", *words).exit_code != 0
    assert len(listed(run, "--all")) == 1


def test_an_empty_list_says_where_others_may_be(
    terminal: Callable[..., tuple[str, int]], run: Bide
) -> None:
    run("subscription", "put", "shop", "orders", URL, "--namespace", "team")
    assert "--all shows those of all namespaces" in terminal("subscription", "list")[0]
    assert "team/shop" in terminal("subscription", "list", "--all")[0]


def test_pause_and_resume(run: Bide, shop: str) -> None:
    assert run("subscription", "pause", "shop", "--reason", "release").exit_code == 0
    line = run("subscription", "list").stdout
    assert line == "-\tshop\torders\thttps://shop.example/***\tpaused\trelease\n"
    assert listed(run)[0]["url"] == URL
    run("subscription", "put", "shop", "orders", "https://shop.example/new")
    assert listed(run)[0]["state"] == "paused"
    assert run("subscription", "resume", "shop").exit_code == 0
    assert listed(run)[0]["state"] == "active"


def test_rotate_prints_another_secret_unless_it_was_brought(
    run: Bide, shop: str, tmp_path: Path
) -> None:
    text = run("subscription", "rotate", "shop").stdout.strip()
    assert text.startswith("whsec_")
    assert text != shop
    assert len(listed(run)[0]["secrets"]) == 2  # type: ignore[arg-type]
    mine = tmp_path / "secret"
    mine.write_text(new_secret() + "\n")
    result = run("subscription", "rotate", "shop", "--overlap", "0", "--secret-file", str(mine))
    assert (result.exit_code, result.stdout) == (0, "")
    assert len(listed(run)[0]["secrets"]) == 1  # type: ignore[arg-type]
    result = run("subscription", "rotate", "shop", "--secret-file", "-", stdin="whsec_short")
    assert result.exit_code == 2
    assert "whsec_short" not in result.output


def test_a_file_of_bytes_is_no_secret(run: Bide, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    file = str(tmp_path / "secret")
    result = run("subscription", "put", "shop", "orders", URL, "--secret-file", file)
    assert result.exit_code == 2
    assert "does not hold text" in result.output


def test_add_takes_a_queue_of_one_namespace(run: Bide) -> None:
    result = run("subscription", "add", "shop/orders", "--to", URL, "--namespace", "other")
    assert result.exit_code == 2
    assert "name it once" in result.output
    assert run("subscription", "add", "shop/orders", "--to", URL).exit_code == 0
    assert [one["namespace"] for one in listed(run, "--all")] == ["shop"]


def test_ping_tells_why_nothing_was_heard(run: Bide) -> None:
    run("subscription", "put", "shop", "orders", "http://127.0.0.1:9/")
    result = run("subscription", "ping", "shop")
    assert result.exit_code == 1
    assert "not public; this command sends it, whatever a server may do" in result.stdout
    assert "--allow-network, or have a server send it with --url http://..." in result.stdout
    assert run("subscription", "ping", "shop", "--allow-network", "127.0.0.1").exit_code == 1


def test_delete(run: Bide, shop: str) -> None:
    assert run("subscription", "delete", "shop").exit_code == 0
    assert listed(run) == []


@pytest.mark.parametrize("verb", ["pause", "resume", "rotate", "ping", "delete"])
def test_a_name_that_is_not_known(run: Bide, shop: str, verb: str) -> None:
    result = run("subscription", verb, "shoop")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "there is no subscription 'shoop'" in result.stderr


@pytest.mark.parametrize("verb", ["pause", "resume", "rotate", "ping", "delete"])
def test_looking_makes_no_store(run: Bide, tmp_path: Path, verb: str) -> None:
    assert run("subscription", verb, "shop").exit_code == 3
    assert run("subscription", "list").exit_code == 3
    assert list(tmp_path.glob("*.db")) == []


def test_what_cannot_be_is_said_in_options(run: Bide) -> None:
    result = run("subscription", "put", "shop", "orders", URL, "--concurrency", "5000")
    assert result.exit_code == 2
    assert "--concurrency 5000 must be between 1 and 1,000" in result.output
    result = run("subscription", "put", "shop", "orders", URL, "--rate", "-1")
    assert "--rate -1.0 must be between" in result.output
    result = run("subscription", "put", "shop", "orders", URL, "--rate", "fast")
    assert "'fast' is not a valid rate; write '5/s', '100/m'" in result.output
    result = run("subscription", "put", "shop", "orders", URL, "--header", "nothing")
    assert result.exit_code == 2
    for again in ("X-Shop", "x-shop"):
        twice = ("--header", "X-Shop: one", "--header", f"{again}: two")
        result = run("subscription", "put", "shop", "orders", URL, *twice)
        assert (result.exit_code, f"'{again}' is given twice" in result.output) == (2, True)


def test_a_table_for_people(terminal: Callable[..., tuple[str, int]], run: Bide) -> None:
    run("subscription", "put", "shop", "orders", URL)
    run("subscription", "pause", "shop", "--reason", "release")
    text, code = terminal("subscription", "list")
    assert code == 0
    for word in ("shop", "orders", "paused", "release", "receiver"):
        assert word in text


def test_a_network_that_is_none(run: Bide) -> None:
    result = run("push", "--allow-network", "10.0.0.1/8")
    assert result.exit_code == 2
    assert "write 10.1.0.0/16" in result.output


def test_without_the_extra_it_is_said_what_to_install(
    run: Bide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in (("push",), ("subscription", "list")):
        result = run(*command)
        assert result.exit_code == 2
        assert "pip install 'bide[server]'" in result.output


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Provide the URL of a server that may ping this machine."""
    settings = Settings(store=f"sqlite:///{tmp_path}/served.db", push=False)
    with running(ServerApp(settings)) as port:
        yield f"http://127.0.0.1:{port}"


def test_all_of_it_works_by_way_of_a_server(run: Bide, server: str) -> None:
    def at(*words: str, code: int = 0, **more: str) -> str:
        result = run("subscription", *words, "--url", server, **more)
        assert result.exit_code == code, result.output
        return result.stdout

    assert at("list") == ""
    put = ("put", "shop", "orders", URL, "--rate", "2", "--timeout", "5s")
    secret = at(*put).strip()
    assert secret.startswith("whsec_")
    assert at(*put) == ""
    assert at("list") == "-\tshop\torders\thttps://shop.example/***\tactive\t\n"
    at("pause", "shop", "--reason", "release")
    assert at("list") == "-\tshop\torders\thttps://shop.example/***\tpaused\trelease\n"
    at("resume", "shop")
    assert at("rotate", "shop", "--overlap", "1h").strip() not in ("", secret)
    assert at("rotate", "shop", "--secret-file", "-", stdin=new_secret()) == ""
    (told,) = map(json.loads, at("list", "--json").splitlines())
    assert (told["rate"], told["timeout"], len(told["secrets"])) == (2, 5_000, 3)
    assert secret not in str(told)
    at("put", "mine", "orders", "https://shop.example/", "--namespace", "team")
    assert at("list") == "-\tshop\torders\thttps://shop.example/***\tactive\t\n"
    assert at("list", "--namespace", "team").startswith("team\tmine\torders\t")
    assert len(at("list", "--all").splitlines()) == 2
    at("delete", "mine", "--namespace", "team")
    assert (
        "not public"
        in run("subscription", "put", "x", "q", "http://10.0.0.1/", "--url", server).output
    )
    at("delete", "shop")
    for verb in ("pause", "resume", "rotate", "ping", "delete"):
        result = run("subscription", verb, "shop", "--url", server)
        assert result.exit_code == 1
        assert "there is no subscription 'shop'" in result.output
    assert "its store here" in run("push", "--url", server).output


def test_a_token_says_whose_subscriptions_they_are(run: Bide, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/served.db"
    made = run("token", "create", "--namespace", "team", "--scope", "admin", "--url", store)
    token = made.stdout.strip()
    with running(ServerApp(Settings(store=store, push=False))) as port:
        url = f"http://:{token}@127.0.0.1:{port}"
        result = run("subscription", "put", "shop", "orders", URL, "--url", url)
        assert result.exit_code == 0, result.output
        mine = run("subscription", "list", "--namespace", "team", "--url", url).stdout
        assert mine.startswith("team\tshop\torders\t")
        assert run("subscription", "list", "--url", url).stdout == mine
        result = run("subscription", "pause", "shop", "--namespace", "other", "--url", url)
        assert result.exit_code == 2
        assert "not that of the token" in result.output
        assert token not in result.output
        wrong = run("subscription", "list", "--url", f"http://127.0.0.1:{port}")
        assert (wrong.exit_code, "token" in wrong.output) == (3, True)


def test_keys_are_made_and_rotated(
    run: Bide, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (run("subscription", "new-key").stdout.strip() for _ in range(2))
    assert len({old, new}) == 2
    monkeypatch.setenv("BIDE_SECRETS_KEY", old)
    assert run("subscription", "put", "shop", "orders", URL).exit_code == 0
    monkeypatch.setenv("BIDE_SECRETS_KEY", f"{new} {old}")
    rotated = run("subscription", "rotate-key", "--json")
    assert json.loads(rotated.stdout) == {"encrypted": 1, "lost": 0}
    monkeypatch.setenv("BIDE_SECRETS_KEY", old)
    result = run("subscription", "rotate-key")
    assert (result.exit_code, result.stdout) == (1, "encrypted\t0\nlost\t1\n")
    (told,) = listed(run)
    assert (told["state"], told["url"]) == ("paused", "https://shop.example/***")
    assert "BIDE_SECRETS_KEY" in str(told["reason"])
    monkeypatch.delenv("BIDE_SECRETS_KEY")
    refused = run("subscription", "rotate-key")
    assert refused.exit_code == 2
    assert "there is no key to encrypt with" in refused.stderr
