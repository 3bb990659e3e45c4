"""Unix sockets, the token of a user, and what other users of the machine are kept from."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import journeyman as jm
from journeyman.client import (
    AsyncKestrelClient,
    AsyncSchedule,
    AsyncWorkQueue,
    KestrelClient,
    Schedule,
    WorkQueue,
    errors,
)
from tests.support.cli_commands import run
from tests.support.ports import free_port
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.task_worker import WorkerProcess

SOCKETS = ("schedule", "work_queue", "fan_out", "http")
NO_TOKENS = "no tokens: every user of this machine"
APP = """
import journeyman as jm
app = jm.App()

@app.task(name="double")
def double(number):
    return 2 * number
"""


class Serve(ScheduleProcess):
    """``journeyman serve`` with these words, all services, ready when HTTP listens."""

    def __init__(self, directory: Path, *words: str) -> None:
        super().__init__(directory)
        self._words = words

    def start(self, *, wait: bool = True) -> Serve:
        self._process = self._start(["serve", "--data", "data", *self._words])
        self._listener = threading.Thread(target=self._listen_to_stderr, daemon=True)
        self._listener.start()
        if wait:
            self.wait_for_line("HTTP listens on")
        return self


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A short path: that of a socket may have 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="jm-"))
    yield directory / "s"
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("JOURNEYMAN_URL", raising=False)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def ask_each(url: str) -> None:
    """Something of each service, with both kinds of client."""
    with Schedule.from_url(url) as schedule, WorkQueue.from_url(url) as queue:
        schedule.stat()
        queue.add("q", b"x")
    with KestrelClient.from_url(url) as queues:
        queues.put("items", b"x")
    asyncio.run(ask_each_with_asyncio(url))


async def ask_each_with_asyncio(url: str) -> None:
    async with AsyncSchedule.from_url(url) as schedule, AsyncWorkQueue.from_url(url) as queue:
        await schedule.stat()
        await queue.add("q", b"x")
    async with AsyncKestrelClient.from_url(url) as queues:
        await queues.put("items", b"x")


def test_every_service_listens_on_a_socket_of_its_user(tmp_path, sockets):
    url = f"journeyman+unix://{sockets}"
    with Serve(tmp_path, "--socket", str(sockets)) as server:
        assert mode_of(sockets) == 0o700
        assert [mode_of(sockets / f"{name}.sock") for name in SOCKETS] == [0o600] * 4
        ask_each(url)
        assert run("status", "--server", url).exit_code == 0
        shown = run("jobs", "ls", "q", "--server", url, "--json")
        assert len(shown.stdout.splitlines()) == 2, shown.output
        assert not any(NO_TOKENS in line for line in server.lines)
        assert server.stop() == 0
    assert list(sockets.iterdir()) == []
    with pytest.raises(errors.CannotConnect, match="is journeyman serve running there"):
        ask_each(url)


def test_a_worker_comes_over_a_socket(tmp_path, sockets):
    (tmp_path / "shop.py").write_text(APP)
    url = f"journeyman+unix://{sockets}"
    app = jm.App(url)
    double = app.task(name="double")(lambda number: 2 * number)
    with (
        Serve(tmp_path, "--socket", str(sockets)),
        closing(app),
        WorkerProcess(tmp_path, "shop:app", url=url) as worker,
    ):
        assert double.send(21).result(timeout=60) == 42
        assert worker.stop() == 0


def test_the_group_may_connect_if_that_is_asked_for(tmp_path, sockets):
    words = ("--socket", str(sockets), "--set", "access.socket_mode=0660")
    with Serve(tmp_path, *words):
        assert mode_of(sockets) == 0o750
        assert [mode_of(sockets / f"{name}.sock") for name in SOCKETS] == [0o660] * 4


def test_wrong_secrets_are_delayed_for_each_user_of_a_socket(tmp_path, sockets):
    with Serve(tmp_path, "--socket", str(sockets), "--token-file", "auto") as server:
        with (
            Schedule(f"unix:{sockets}/schedule.sock", token="wrong") as schedule,
            pytest.raises(errors.AccessDenied),
        ):
            schedule.stat()
        server.wait_for_line(f"authentication failed .*uid {os.geteuid()}")


def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path, sockets):
    url = f"journeyman+unix://{sockets}"
    with Serve(tmp_path, "--socket", str(sockets)) as server:
        server.stop(by=signal.SIGKILL)
    assert (sockets / "schedule.sock").is_socket()
    with Serve(tmp_path, "--socket", str(sockets)):
        ask_each(url)


def test_a_socket_in_use_and_a_file_are_left_alone(tmp_path, sockets):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with Serve(tmp_path / "one", "--socket", str(sockets)):
        second = Serve(tmp_path / "two", "--socket", str(sockets)).start(wait=False)
        assert second.wait() == 1
        assert "another process has this address" in second.lines[-1]
        ask_each(f"journeyman+unix://{sockets}")
    (sockets / "schedule.sock").unlink()
    (sockets / "schedule.sock").write_text("mine")
    third = Serve(tmp_path / "two", "--socket", str(sockets)).start(wait=False)
    assert third.wait() == 1
    assert "a file that is not a socket" in third.lines[-1]
    assert (sockets / "schedule.sock").read_text() == "mine"


def auto_words() -> tuple[str, str]:
    """The words of a server on ports of its own with the user's token, and its URL."""
    ports = [free_port() for _ in range(4)]
    names = ("--listen", "--workq-listen", "--kestrel-listen", "--http-listen")
    words = " ".join(f"{name} 127.0.0.1:{port}" for name, port in zip(names, ports, strict=True))
    url = (
        f"journeyman://127.0.0.1:{ports[1]}?schedule={ports[0]}&fan_out={ports[2]}&http={ports[3]}"
    )
    return f"{words} --token-file auto", url


def test_clients_of_the_same_user_find_its_token(tmp_path):
    words, url = auto_words()
    path = tmp_path / "config" / "journeyman" / "token"
    with Serve(tmp_path, *words.split()) as server:
        assert mode_of(path) == 0o600
        assert mode_of(path.parent) == 0o700
        ask_each(url)
        assert run("status", "--server", url).exit_code == 0
        listed = run("jobs", "ls", "q", "--server", url, "--json")
        assert len(listed.stdout.splitlines()) == 2, listed.output
        assert not any(NO_TOKENS in line for line in server.lines)
        made = path.read_text()
        assert server.stop() == 0
    secret = made.split('"')[1]
    assert secret.startswith("sk_auto_")
    assert not any(secret in line for line in server.lines)
    with Serve(tmp_path, *words.split()):
        ask_each(url)
    assert path.read_text() == made


def test_a_worker_and_an_app_find_it(tmp_path):
    words, url = auto_words()
    (tmp_path / "shop.py").write_text(APP)
    app = jm.App(url)
    double = app.task(name="double")(lambda number: 2 * number)
    with (
        Serve(tmp_path, *words.split()),
        closing(app),
        WorkerProcess(tmp_path, "shop:app", url=url) as worker,
    ):
        assert double.send(21).result(timeout=60) == 42
        assert worker.stop() == 0


def test_another_user_is_asked_for_a_token(tmp_path, monkeypatch):
    words, url = auto_words()
    with Serve(tmp_path, *words.split()):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
        assert_asked(url)
        assert run("jobs", "ls", "q", "--server", url).exit_code == 1


def loosen(path: Path) -> None:
    path.chmod(0o644)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("spoil", [loosen, link])
def test_a_file_that_others_may_know_is_not_shown(tmp_path, spoil: Callable[[Path], None]):
    words, url = auto_words()
    with Serve(tmp_path, *words.split()) as server:
        spoil(tmp_path / "config" / "journeyman" / "token")
        assert_asked(url)
        assert server.stop() == 0
    refused = Serve(tmp_path, *words.split()).start(wait=False)
    assert refused.wait() == 2
    assert "the token file" in refused.lines[-1]


def assert_asked(url: str) -> None:
    with Schedule.from_url(url) as schedule, pytest.raises(errors.AccessDenied):
        schedule.stat()
    with WorkQueue.from_url(url) as queue, pytest.raises(errors.AccessDenied):
        queue.inspect_server()
    with KestrelClient.from_url(url) as queues, pytest.raises(errors.AccessDenied):
        queues.version()


def test_it_is_not_shown_to_a_server_that_asks_for_none(tmp_path):
    """The fan-out queues would keep it as an item."""
    words, url = auto_words()
    with Serve(tmp_path, *words.split()):
        pass
    with Serve(tmp_path, *words.removesuffix("--token-file auto").split()):
        ask_each(url)
        with KestrelClient.from_url(url) as queues:
            assert queues.get("auth") is None
            assert queues.get("items") == b"x"


def test_it_is_not_shown_to_another_machine_nor_to_a_port_of_another_user(tmp_path, monkeypatch):
    words, url = auto_words()
    with Serve(tmp_path, *words.split()):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert_asked(url)


def test_a_server_without_tokens_says_what_that_means(tmp_path):
    words, _ = auto_words()
    with Serve(tmp_path, *words.removesuffix("--token-file auto").split()) as server:
        said = [line for line in server.lines if NO_TOKENS in line]
    assert len(said) == 1
    assert "WARN" in said[0]
    assert "--token-file auto" in said[0]
    assert "--socket DIR" in said[0]


@pytest.mark.parametrize(("mode", "is_said"), [(0o777, True), (0o775, True), (0o755, False)])
def test_a_data_directory_that_others_can_change_is_named(tmp_path, sockets, mode, is_said):
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    with Serve(tmp_path, "--socket", str(sockets)) as server:
        said = [line for line in server.lines if "other users can change the data" in line]
    assert len(said) == is_said
    assert all("WARN" in line and "chmod go-w data" in line for line in said)


def test_config_makes_no_token(tmp_path):
    result = run("config", "--set", "controller.auth_file=auto")
    assert (result.exit_code, result.output) == (0, "")
    assert not (tmp_path / "config").exists()


def test_two_addresses_of_one_socket_are_refused(sockets):
    address = f"unix:{sockets}/x.sock"
    result = run(
        "config", "--set", f"controller.listen={address}", "--set", f"http.listen={address}"
    )
    assert result.exit_code == 2
    assert "has the same address" in result.output


def test_a_browser_page_is_refused_over_a_socket_too(tmp_path, sockets):
    """`curl --unix-socket` names localhost; any other name is a page's."""
    with Serve(tmp_path, "--socket", str(sockets)):
        assert http_status(sockets, "localhost") == 200
        assert http_status(sockets, "evil.example") == 421


def http_status(sockets: Path, host: str) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(sockets / "http.sock"))
        client.sendall(
            f"GET /v1/work/queues HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        with client.makefile("rb") as answer:
            return int(answer.read().split()[1])
