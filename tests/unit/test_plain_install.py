"""What a plain `pip install journeyman` can do: all but serve, without the server's libraries."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from journeyman.cli.serve import SERVER_LIBRARIES

ROOT = Path(__file__).parents[2]
EXTRAS = ("numba", "numpy", "opentelemetry", "psycopg", "pyarrow", "pyspark", "rocksdict", "uvloop")
BLOCK = f"""
import sys
for name in {(*SERVER_LIBRARIES, *EXTRAS)!r}:
    sys.modules[name] = None
"""
COMMAND = BLOCK + "from journeyman.cli import main; sys.exit(main())"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["serve", "workq-server"])
def test_server_without_its_libraries_says_what_to_install(command: str, tmp_path: Path):
    done = run(COMMAND, command, "--data", str(tmp_path / "data"))
    said = "journeyman: error: the server needs: pip install 'journeyman[server]'\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not (tmp_path / "data").exists()


def test_clients_need_no_library_of_the_server():
    code = (
        BLOCK
        + """
from journeyman.client import AsyncWorkQueue, CannotConnect, KestrelClient, Schedule, WorkQueue
for client in (Schedule, WorkQueue, KestrelClient):
    asks = [name for name in ("stat", "inspect_server", "stats") if hasattr(client, name)]
    try:
        getattr(client(port=1), asks[0])()
    except CannotConnect:
        print("cannot connect")
"""
    )
    done = run(code)
    assert (done.stdout, done.stderr) == ("cannot connect\n" * 3, "")


def test_log_tools_need_no_extra(tmp_path: Path):
    log = tmp_path / "log"
    made = run(COMMAND, "generate", "ztick", str(log), "--records", "5")
    assert (made.returncode, made.stderr) == (0, "")
    checked = run(COMMAND, "verify", str(log))
    assert (checked.returncode, checked.stderr) == (0, "")


def test_extra_and_check_name_the_same_libraries():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[<>=\[]", each)[0] for each in project["dependencies"]}
    extra = {re.split(r"[<>=\[]", each)[0] for each in project["optional-dependencies"]["server"]}
    assert {name.replace("-", "_") for name in extra} == set(SERVER_LIBRARIES)
    assert core == {"click", "cronsim", "google-crc32c", "msgspec", "rich", "tzdata"}
