"""The programs in examples/ do what they say."""

from __future__ import annotations

import http.server
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import pytest

import journeyman as jm
from journeyman.testing import InMemory
from tests.support.servers.task_worker import WorkerProcess
from tests.support.servers.workq_process import WorkqProcess

PATIENCE_S = 60.0
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_shop_loses_nothing_when_worker_and_server_are_killed(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shop" / "run.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok    ") == 4
    assert (tmp_path / "outbox" / "ann@example.com").read_text() == "Welcome!"


def test_the_shop_is_left_running_and_says_where(tmp_path):
    words = [sys.executable, EXAMPLES / "shop" / "run.py", "--serve", tmp_path]
    said = ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as shop:
        assert shop.stdout is not None
        for line in shop.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        console = re.search(r"http://127\.0\.0\.1:\d+", said.partition("The console:")[2])
        try:
            assert console is not None, said
            with urlopen(f"{console[0]}/v1/ready") as answer:
                assert answer.status == 200
        finally:
            shop.send_signal(signal.SIGINT)
            code = shop.wait(60)
    assert code == 0


# The agent of the example, with a tool that a test can hold in its middle.
HELD_AGENT = """
import os, time, agent
from agent import app

def refund(order: int, cents: int) -> str:
    agent.note("refund begins")
    while not os.path.exists("go"):
        time.sleep(0.02)
    return agent.refund(order, cents)

agent.TOOLS["refund"] = refund
"""


def test_an_agent_makes_no_recorded_call_again_when_its_worker_is_killed(tmp_path):
    shutil.copy(EXAMPLES / "agent" / "agent.py", tmp_path)
    (tmp_path / "held.py").write_text(HELD_AGENT)
    calls = tmp_path / "calls.txt"
    with WorkqProcess(tmp_path, settings={"data.directory": tmp_path / "data"}) as server:
        url = f"journeyman://127.0.0.1:{server.workq_port}"
        app = jm.App(url, lease=1)
        run_agent = app.task(name="agent.run_agent", retries=5)(lambda goal: goal)
        job = run_agent.send("refund order 42")
        with WorkerProcess(tmp_path, "held:app", url=url):
            app.emit(wait_for_question(job), "yes")
            until(lambda: "refund begins" in calls.read_text())
            before = calls.read_text().splitlines()
        (tmp_path / "go").touch()  # the worker was killed in the middle of the refund
        with WorkerProcess(tmp_path, "held:app", url=url):
            assert job.result(timeout=PATIENCE_S) == "order 42: refunded 9900"
        app.close()
    assert before == ["model", "find_order 42", "model", "model", "refund begins"]
    assert calls.read_text().splitlines()[5:] == ["refund begins", "refund 42 9900", "model"]


def wait_for_question(job: jm.Job[Any]) -> str:
    """The event that the agent waits for, as its log names it."""
    until(lambda: job.state() == "waiting" and bool(job.progress().log))
    found = re.search(r"journeyman emit (\S+)", job.progress().log[-1].text)
    assert found is not None
    return found[1]


def until(is_over: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_over():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def agent(tmp_path, monkeypatch) -> ModuleType:
    """The module of the example; it writes into the directory of the test."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("agent", EXAMPLES / "agent" / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_agent_that_nobody_answers_refunds_nothing(agent, tmp_path):
    with InMemory(agent.app) as queue:
        job = agent.run_agent.send("refund order 7")
        queue.run_all()
        queue.advance(days=7)
        assert job.result(timeout=1) == "order 7 is not refunded"
    assert (tmp_path / "calls.txt").read_text().splitlines() == [
        "model",
        "find_order 7",
        "model",
        "model",
    ]


@pytest.fixture
def chat_server(monkeypatch) -> Iterator[list[Any]]:
    """What a server of chat completions received; it uses tools wrongly at first."""
    received: list[Any] = []

    class Chat(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            wanted = [
                ("no_tool", "{}"),
                ("find_order", '{"no": 1}'),
                ("find_order", '{"order": 3}'),
            ]
            turn = len(received) - 1
            message: dict[str, Any] = {"role": "assistant", "content": "done"}
            if turn < len(wanted):
                name, arguments = wanted[turn]
                function = {"name": name, "arguments": arguments}
                message["tool_calls"] = [{"id": f"c{turn}", "function": function}]
            data = json.dumps({"choices": [{"message": message}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AGENT_URL", f"http://127.0.0.1:{server.server_port}/")
        yield received
        server.shutdown()
        thread.join()


def test_an_agent_asks_a_model_by_http_and_shows_it_its_mistakes(agent, chat_server):
    with InMemory(agent.app) as queue:
        job = agent.run_agent.send("look at order 3", model="http")
        queue.run_all()
        assert job.result(timeout=1) == "done"
    shown = [each["content"] for each in chat_server[-1]["messages"] if each["role"] == "tool"]
    assert shown == ["not a valid call: KeyError('no_tool')", shown[1], "9900"]
    assert "missing a required argument: 'order'" in shown[1]
    names = [tool["function"]["name"] for tool in chat_server[0]["tools"]]
    assert names == ["find_order", "refund", "ask_person"]
