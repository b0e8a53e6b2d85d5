"""`bide mcp`: an agent looks and changes, with the client of the official package."""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import Implementation, Tool

import bide
from bide.cli import main
from bide.cli.service.mcp_tools import MOST_BODY, AgentTools
from bide.cli.store import CommandStore
from bide.model.identity import actor_of
from bide.queue.arguments import user_name
from bide.server.logs import ActionLog
from tests.system.server.conftest import Serve

CHANGES = {"cancel", "reschedule", "undo"}
READS = {"look", "explain", "preview"}


class Agent:
    """Calls tools of `bide mcp`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tools(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in (await self._client.list_tools()).tools}

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self._client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        answer: dict[str, Any] = result.structured_content or {}
        return answer

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self._client.call_tool(tool, arguments)
        assert result.is_error
        return str(result.content[0].text)  # type: ignore[union-attr]


Story = Callable[[Agent], Coroutine[Any, Any, None]]


def let_agent(story: Story, *options: str, **environment: str) -> None:
    """Start `bide mcp`, and let an agent use it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BIDE_")}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-W", "error::DeprecationWarning:bide", "-m", "bide", "mcp", *options],
        env={**kept, **environment},
    )

    async def play() -> None:
        info = Implementation(name="copilot", version="1")
        async with Client(stdio_client(server), client_info=info) as client:
            await story(Agent(client))

    asyncio.run(asyncio.wait_for(play(), 60))


def acts_in(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bide.db'}"


@pytest.fixture
def mails(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("mails", url, history="1d") as queue:
        for number in range(4):
            queue.put({"to": number}, id=f"mail-{number}", delay="1h", group="order:42")
        yield queue


@pytest.mark.process
def test_an_agent_looks_changes_and_takes_back(mails: bide.Queue, url: str, tmp_path: Path) -> None:
    log = tmp_path / "actions.log"

    async def story(agent: Agent) -> None:
        tools = await agent.tools()
        assert tools.keys() == READS | CHANGES
        assert all(tool.description for tool in tools.values())
        hints = {name: tool.annotations for name, tool in tools.items()}
        assert {n for n, hint in hints.items() if hint and hint.read_only_hint} == READS

        (queue,) = (await agent.call("look"))["queues"]
        assert (queue["queue"], queue["delayed"]) == ("mails", 4)
        listed = await agent.call("look", queue="mails", limit=3)
        assert [message["id"] for message in listed["messages"]] == ["mail-0", "mail-1", "mail-2"]
        assert listed["has_more"]
        message = (await agent.call("look", queue="mails", id="mail-1"))["message"]
        assert (message["body"], message["state"]) == ({"to": 1}, "delayed")
        assert message["due"].endswith("Z")
        assert (await agent.call("look", queue="mails", id="nosuch")) == {"message": None}
        explained = await agent.call("explain", queue="mails", id="mail-1")
        assert explained["sentence"].startswith("mail-1 is due at ")

        preview = await agent.call("preview", queue="mails", change="cancel", group="order:42")
        assert (preview["would_change"], len(preview["first_messages"])) == (4, 4)
        cancelled = await agent.call("cancel", queue="mails", group="order:42")
        assert cancelled["changed"] == 4
        undone = await agent.call("undo", queue="mails", token=cancelled["undo"])
        assert undone["restored"] == 4
        moved = await agent.call("reschedule", queue="mails", group="order:42", delay="2h")
        assert moved["changed"] == 4
        assert (await agent.call("undo", queue="mails", token=moved["undo"]))["restored"] == 4
        final = await agent.call("cancel", queue="mails", ids=["mail-0", "nosuch"])
        assert final == {
            "changed": 1,
            "outcomes": [
                "mail-0 is cancelled",
                "nosuch was not cancelled: it is not in the queue",
            ],
        }
        at = "2099-01-01T00:00Z"
        assert (await agent.call("reschedule", queue="mails", ids=["mail-1"], at=at))["changed"]
        assert "NothingToUndo" in await agent.refused("undo", queue="mails", token="nosuch")

    let_agent(story, "--url", url, "--action-log", str(log))
    me = actor_of("copilot", through=user_name())
    assert mails.history("mail-0")[0].by == me
    moved = mails.get("mail-1")
    assert moved is not None
    assert moved.due_at.year == 2099
    acts = acts_in(log)
    assert {act["who"] for act in acts} == {me}
    assert [(act["act"], act["result"]) for act in acts if act["act"] in CHANGES] == [
        ("cancel", "done"),
        ("undo", "done"),
        ("reschedule", "done"),
        ("undo", "done"),
        ("cancel", "done"),
        ("reschedule", "done"),
        ("undo", "NothingToUndo"),
    ]
    assert [act.get("messages") for act in acts if act["act"] == "cancel"] == [4, 1]
    assert "body" not in log.read_text()


@pytest.mark.process
def test_a_token_decides_what_an_agent_may_do(
    serve: Serve, make_token: Callable[..., str], tmp_path: Path
) -> None:
    log = tmp_path / "actions.log"
    server = serve(action_log=str(log))
    url = f"http://127.0.0.1:{server.port}"
    owner = make_token("shop", "admin", name="owner")
    reader = make_token("shop", rights=["read"], name="reader")
    changer = make_token("shop", rights=["change"], queues=["mails"], name="changer")
    with bide.Queue("mails", url.replace("//", f"//:{owner}@")) as queue:
        queue.put({"to": 1}, id="mail-1", delay="1h", group="order:42", headers={"secret": "yes"})

        async def read(agent: Agent) -> None:
            (message,) = (await agent.call("look", queue="mails"))["messages"]
            assert message["id"] == "mail-1"
            assert not message.keys() & {"body", "headers"}
            refusal = await agent.refused("cancel", queue="mails", ids=["mail-1"])
            assert "AccessDenied" in refusal
            assert "'change'" in refusal
            rule = {"queue": "mails", "group": "order:42"}
            assert "AccessDenied" in await agent.refused("cancel", **rule)
            preview = await agent.call("preview", change="cancel", **rule)
            assert (preview["would_change"], len(preview["first_messages"])) == (1, 1)

        async def change(agent: Agent) -> None:
            assert "AccessDenied" in await agent.refused("look", queue="mails")
            cancelled = await agent.call("cancel", queue="mails", group="order:42")
            token = cancelled["undo"]
            assert (await agent.call("undo", queue="mails", token=token))["restored"] == 1
            changed = await agent.call("cancel", queue="mails", ids=["mail-1"])
            assert changed["outcomes"] == ["mail-1 is cancelled"]
            assert "AccessDenied" in await agent.refused("cancel", queue="others", ids=["a"])

        queue.configure(history="1d")
        let_agent(read, url, BIDE_TOKEN=reader)
        assert queue.get("mail-1") is not None
        let_agent(change, url, BIDE_TOKEN=changer)
        end, *_ = queue.history("mail-1")
        assert end.by is not None
        assert end.by.startswith("copilot via ")
        assert end.by.endswith("via changer")
    acts = acts_in(log)
    assert ("changer", "done") in {(act["who"], act["result"]) for act in acts}
    assert ("reader", "forbidden") in {(act["who"], act["result"]) for act in acts}


@pytest.mark.full
@pytest.mark.process
def test_an_agent_that_only_reads_sees_no_tools_that_change_and_no_bodies(
    mails: bide.Queue, url: str
) -> None:
    async def story(agent: Agent) -> None:
        assert (await agent.tools()).keys() == READS
        (message, *_) = (await agent.call("look", queue="mails"))["messages"]
        assert not message.keys() & {"body", "headers", "version"}

    let_agent(story, "--read-only", "--no-bodies", url)


# The tools themselves, without a process.


@pytest.fixture
def tools(mails: bide.Queue, url: str) -> Iterator[AgentTools]:
    with CommandStore(url) as store:
        yield AgentTools(store, ActionLog(None))


def test_answers_are_bounded(mails: bide.Queue, tools: AgentTools) -> None:
    mails.put("x" * 5_000, id="large")
    message = tools.look("mails", id="large")["message"]
    assert len(message["body"]) == MOST_BODY
    assert message["body_bytes_left_out"] == 5_002 - MOST_BODY
    mails.put(1, id="headed", headers={"a": "x", "b": "y" * 5_000, "c": "z"}, delay="1h")
    message = tools.look("mails", id="headed")["message"]
    assert (message["headers"], message["headers_left_out"]) == ({"a": "x", "c": "z"}, 1)
    with mails.take(wait=0) as delivery:
        delivery.bury("boom " * 1_000)
    dead = tools.look("mails", state="dead")["messages"][0]
    assert len(dead["last_error"]) == 500
    assert "failures" not in dead
    for number in range(120):
        mails.put(number, delay="1d")
    assert len(tools.look("mails", limit=100)["messages"]) == 100


def test_a_preview_counts_what_the_change_will_change(mails: bide.Queue, tools: AgentTools) -> None:
    mails.put(1, id="daily", group="g", repeat=bide.Every("1d"))
    mails.hold("daily")
    mails.put(1, id="once", group="g", delay="1h")
    for change, changed in (("reschedule", ["once"]), ("cancel", ["daily", "once"])):
        preview = tools.preview("mails", change, group="g")  # type: ignore[arg-type]
        assert preview["would_change"] == len(changed)
        assert sorted(message["id"] for message in preview["first_messages"]) == changed
    assert tools.reschedule("mails", group="g", delay="2h")["changed"] == 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda tools: tools.look("nosuch"), "there is no queue 'nosuch' in .*there are: mails"),
        (lambda tools: tools.look("mails", limit=101), "limit=101 must be between 1 and 100"),
        (lambda tools: tools.look("mails", after="soon"), "'soon' is not a valid time; write ISO"),
        (lambda tools: tools.preview("mails", "cancel"), "name the messages: by a group, or due"),
        (lambda tools: tools.preview("mails", "reschedule", before="0"), "needs a group"),
        (lambda tools: tools.cancel("mails"), "name the messages: by a group, or due"),
        (lambda tools: tools.cancel("mails", ["a"], group="g"), "give ids, or a group"),
        (lambda tools: tools.cancel("mails", ["a"] * 101), "101 ids are too many; give 100"),
        (lambda tools: tools.cancel("nosuch", group="g"), "there is no queue 'nosuch'"),
        (lambda tools: tools.reschedule("mails", ["a"]), "needs one new due time: delay or at"),
        (lambda tools: tools.reschedule("mails", before="0", delay="1h"), "needs a group"),
        (lambda tools: tools.reschedule("mails", ["a"], delay="1 year"), "'1 year' is not a valid"),
    ],
)
def test_mistakes_of_an_agent_are_explained(
    tools: AgentTools, mails: bide.Queue, call: Callable[[AgentTools], object], error: str
) -> None:
    with pytest.raises(bide.BideError, match=error):
        call(tools)
    assert mails.counts().sizes.delayed == 4


def test_the_actor_changes_with_the_program(tools: AgentTools, mails: bide.Queue) -> None:
    for program, id in (("one", "mail-0"), ("two", "mail-1"), ("", "mail-2")):
        tools.act_for(program)
        tools.cancel("mails", [id])
    actors = [mails.history(f"mail-{number}")[0].by for number in range(3)]
    assert actors == [actor_of(name, through=user_name()) for name in ("one", "two", "mcp")]


def test_it_needs_its_package_and_a_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = CliRunner().invoke
    missing = run(main, ["mcp", f"sqlite:///{tmp_path}/nosuch.db"])
    assert (missing.exit_code, "there is no store at" in missing.stderr) == (3, True)
    in_memory = run(main, ["mcp", "memory://"])
    assert (in_memory.exit_code, "exists only while this" in in_memory.stderr) == (2, True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run(main, ["mcp", url])
    assert (result.exit_code, "pip install 'bide[mcp]'" in result.stderr) == (2, True)
