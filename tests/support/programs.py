"""Programs of other projects that tests start; tests are not run where one is missing.

    find_program("redis-server")     its path, or MissingProgram
    subprocess.run(["memcping"])     FileNotFoundError, if it is one of PACKAGES

A test that ends with one of these, and every test that is skipped for whatever reason, counts as
not run: the end of the run lists them by what they need, and the exit code is 1. With
$JOURNEYMAN_NOT_RUN the list is also appended to that file: `make test`, which runs pytest several
times, shows one list of all.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Each with the package of Debian that has it; `make services` installs them. Helm is in PyPI.
PACKAGES = {
    "redis-server": "redis-server",
    "rabbitmq-server": "rabbitmq-server",
    "epmd": "rabbitmq-server",
    "initdb": "postgresql",
    "postgres": "postgresql",
    "pg_isready": "postgresql",
    "chromium": "chromium",
    "memcping": "libmemcached-tools",
    "memcstat": "libmemcached-tools",
    "memcflush": "libmemcached-tools",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "strace": "strace",
    "node": "nodejs",
    "npm": "npm",
    "helm": "helm",
}
# Not every PATH has the directories of servers. Debian's /usr/sbin/rabbitmq-server changes the
# user and the environment; the program that it calls does not.
PLACES = [
    str(Path(sys.executable).parent),
    "/usr/lib/rabbitmq/bin",
    *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True),
    *os.get_exec_path(),
    "/usr/sbin",
    "/usr/local/sbin",
]
LIST_VARIABLE = "JOURNEYMAN_NOT_RUN"


class MissingProgram(Exception):
    """A test needs a program that this machine does not have."""


def find_program(*names: str) -> str:
    """The path of the first of these that is here."""
    for name in names:
        if (path := shutil.which(name, path=os.pathsep.join(PLACES))) is not None:
            return path
    raise MissingProgram(f"needs {PACKAGES[names[0]]}")


def _reason(error: BaseException) -> str | None:
    """What a test needs that failed so; None: it failed in earnest."""
    if isinstance(error, MissingProgram):
        return str(error)
    if isinstance(error, FileNotFoundError) and error.filename in PACKAGES:
        return f"needs {PACKAGES[error.filename]}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    reason = None if call.excinfo is None else _reason(call.excinfo.value)
    if reason is not None:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, reason)
    return report


def _not_run(config: pytest.Config) -> list[str]:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    skipped = [] if reporter is None else reporter.stats.get("skipped", [])
    return sorted({f"{_text(report)}: {report.nodeid}" for report in skipped})


def _text(report: Any) -> str:
    longrepr = report.longrepr
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = _not_run(config)
    if lines:
        terminalreporter.section(f"{len(lines)} tests were not run")
        for line in lines:
            terminalreporter.line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    lines = [] if hasattr(session.config, "workerinput") else _not_run(session.config)
    if not lines:
        return
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if path := os.environ.get(LIST_VARIABLE):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
