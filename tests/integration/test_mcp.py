"""An agent asks a real server through ``journeyman mcp``, with the client of the protocol's SDK."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from journeyman.cli.agent_tools import Api, make_server
from journeyman.client import WorkQueue
from tests.support.ports import free_port
from tests.support.servers.whole_process import WholeProcess

READING = {
    *("status", "search_jobs", "explain_failure", "state_at", "what_changed"),
    *("timetables", "runs"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeProcess]:
    settings = {"http.listen": "127.0.0.1:0"}
    with WholeProcess(tmp_path_factory.mktemp("server"), settings=settings) as running:
        yield running


@pytest.fixture
def dead(server: WholeProcess) -> str:
    """A job of queue mail that failed for good."""
    with WorkQueue("127.0.0.1", server.ports["work"]) as queue:
        job_id = queue.add("mail", b'{"to": "you"}', max_fails=1)
        leased = queue.lease("mail", wait_ms=10_000)
        assert leased is not None
        queue.fail(leased.job_id, b'{"error": "ValueError", "message": "no such user"}')
    return str(job_id)


def url_of(server: WholeProcess) -> str:
    return f"http://127.0.0.1:{server.ports['http']}"


def ask(place: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Call these tools, one after the other, and return their answers."""

    async def talk() -> list[Any]:
        async with Client(place) as client:
            answers = []
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                text = "".join(part.text for part in result.content if part.type == "text")
                if result.is_error:
                    answers.append(text)
                else:
                    structured = result.structured_content or json.loads(text)
                    answers.append(structured.get("result", structured))
            return answers

    return asyncio.run(talk())


def tools_of(place: Any) -> set[str]:
    async def talk() -> set[str]:
        async with Client(place) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    return asyncio.run(talk())


def test_tools_read_unless_actions_are_allowed(server: WholeProcess):
    api = Api(url_of(server))
    assert tools_of(make_server(api)) == READING
    assert tools_of(make_server(api, allows_actions=True)) == READING | {
        "change_jobs",
        "pause_queue",
    }


def test_an_agent_finds_out_why_a_job_failed(server: WholeProcess, dead: str):
    tools = make_server(Api(url_of(server)))
    now = datetime.now(UTC).isoformat()
    status, found, why, past, changes, plans, runs = ask(
        tools,
        ("status", {}),
        ("search_jobs", {"queue": "mail", "state": "dead"}),
        ("explain_failure", {"job": dead}),
        ("state_at", {"at": now}),
        ("what_changed", {"since": "2020-01-01T00:00:00Z", "until": now}),
        ("timetables", {}),
        ("runs", {"only_failed": True}),
    )
    assert "mail" in [queue["name"] for queue in status["queues"]]
    assert dead in [job["id"] for job in found["jobs"]]
    assert why["failure"] == {"error": "ValueError", "message": "no such user"}
    assert len(why["history"]) >= 3
    assert [queue["dead"] > 0 for queue in past["queues"] if queue["queue"] == "mail"] == [True]
    assert changes["changed"] >= 1
    assert (plans, runs) == ([], [])


def test_an_action_is_shown_before_it_is_done(server: WholeProcess, dead: str):
    tools = make_server(Api(url_of(server)), allows_actions=True)

    async def talk() -> None:
        async with Client(tools) as client:

            async def change(**arguments: Any) -> Any:
                result = await client.call_tool("change_jobs", arguments)
                return result.structured_content if not result.is_error else result.content

            preview = await change(action="requeue", ids=[dead])
            assert [job["id"] for job in preview["jobs"]] == [dead]
            assert "no preview" in str(await change(action="requeue", confirm="000000000000"))
            assert "no preview" in str(await change(action="delete", confirm=preview["confirm"]))
            done = await change(action="requeue", confirm=preview["confirm"])
            assert done["done"] == 1
            assert "no preview" in str(await change(action="requeue", confirm=preview["confirm"]))
            both = await change(action="cancel", queue="mail")
            assert dead in [job["id"] for job in both["jobs"]]
            assert (await change(action="cancel", confirm=both["confirm"]))["done"] >= 1
            assert "name `ids`" in str(await change(action="cancel"))

            paused = {"queue": "mail", "paused": True}
            shown = (await client.call_tool("pause_queue", paused)).structured_content
            assert shown is not None
            assert shown["queue"]["paused"] is False
            await client.call_tool("pause_queue", paused | {"confirm": shown["confirm"]})

    asyncio.run(talk())
    with WorkQueue("127.0.0.1", server.ports["work"]) as queue:
        assert [each.name for each in queue.inspect_paused_queues()] == ["mail"]
        queue.resume("mail")


def test_refusals_are_one_sentence(server: WholeProcess):
    unknown = "00000000-0000-4000-8000-000000000000"
    (answer,) = ask(make_server(Api(url_of(server))), ("explain_failure", {"job": unknown}))
    assert "not_found" in answer
    (answer,) = ask(make_server(Api(url_of(server))), ("state_at", {"at": "once upon"}))
    assert "invalid_time" in answer
    (answer,) = ask(make_server(Api(f"http://127.0.0.1:{free_port()}")), ("timetables", {}))
    assert "no server answers" in answer


def test_over_stdio(server: WholeProcess, dead: str, tmp_path: Path):
    arguments = ["-m", "journeyman", "mcp", "--url", url_of(server)]
    place = StdioServerParameters(command=sys.executable, args=arguments, cwd=tmp_path)
    (found,) = ask(place, ("search_jobs", {"queue": "mail"}))
    assert dead in [job["id"] for job in found["jobs"]]


def test_over_http(server: WholeProcess, dead: str):
    port = free_port()
    words = [sys.executable, "-m", "journeyman", "mcp", "--http", str(port)]
    environment = os.environ | {"JOURNEYMAN_HTTP_URL": url_of(server)}
    with subprocess.Popen(words, env=environment) as process:
        try:
            deadline = asyncio.run(_wait_for(port))
            assert deadline
            (found,) = ask(f"http://127.0.0.1:{port}/mcp", ("search_jobs", {"queue": "mail"}))
        finally:
            process.terminate()
    assert dead in [job["id"] for job in found["jobs"]]


async def _wait_for(port: int) -> bool:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return True
    return False
