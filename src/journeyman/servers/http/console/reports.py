"""HTML reports about the logs, made by a child process and kept in the cache:

    begin() --> journeyman pipeline report LOGS... -o CACHE/.unfinished.html --> report-MOMENT.html

A lake that reads these logs has left its name beside them; a report can be made from it instead.
One at a time, on one core, for at most TIMEOUT_S; the newest MOST_KEPT are kept. The server itself
never imports Spark. A report is served under the policy that it carries (the digests of its own
style and script), in a sandbox: its script reaches neither the console nor the session.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from journeyman.disk import disk_of
from journeyman.logs.holders import names_of_holders
from journeyman.servers.http.problems import ApiError

TIMEOUT_S: Final = 900.0
MOST_KEPT: Final = 10
KEPT_ERROR_BYTES: Final = 2000
COMMAND: Final = (
    *(sys.executable, "-m", "journeyman", "pipeline", "report", "--quiet"),
    *("--master", "local[1]", "--force"),
)
_LAKE: Final = "lake "  # begins the name of a lake in the list of logs
_UNFINISHED: Final = ".unfinished.html"
_NAME: Final = re.compile(r"report-\d{8}T\d{6}Z\.html")
_POLICY: Final = re.compile(
    r"<meta http-equiv=\"Content-Security-Policy\" content=\"([-\w ;:'+/=]+)\">"
)
_NO_SCRIPT: Final = "default-src 'none'"
_SANDBOX: Final = "; frame-ancestors 'none'; sandbox allow-scripts"


class KeptReport(NamedTuple):
    name: str
    made_ns: int
    size: int


def lakes_of(places: Mapping[str, str]) -> list[str]:
    """Lakes that read these logs, in directories of this machine or at URIs. Blocks."""
    found = set()
    for place in places.values():
        disk = disk_of(place)
        with suppress(OSError):
            directory = place if disk.is_dir(place) else os.path.dirname(place)
            found |= set(names_of_holders(disk, directory))
    lakes = {who.removeprefix(_LAKE) for who in found if who.startswith(_LAKE)}
    return sorted(lake for lake in lakes if "://" in lake or os.path.isdir(lake))


class ReportRuns:
    def __init__(self, directory: str, command: tuple[str, ...] = COMMAND) -> None:
        self.directory = directory
        self._command = command
        self._task: asyncio.Task[None] | None = None
        self.error = ""  # why the last one was not made

    @property
    def can_make(self) -> bool:
        return importlib.util.find_spec("pyspark") is not None

    @property
    def is_making(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, places: Mapping[str, str], moment: str, lake: str = "") -> str:
        """The name that it will have. ``moment``: RFC 3339. ApiError: one is being made."""
        if lake and lake not in lakes_of(places):
            raise ApiError(404, "no lake of this name reads these logs")
        if self.is_making:
            raise ApiError(409, "a report is being made; wait for it", "busy")
        if not self.can_make:
            raise ApiError(409, "Spark is not installed: pip install 'journeyman[spark]'")
        name = f"report-{re.sub('[-:]', '', moment[:19])}Z.html"
        logs = [place for place in places.values() if disk_of(place).exists(place)]
        source = ["--lake", lake] if lake else logs
        self._task = asyncio.get_running_loop().create_task(self._make(source, name))
        return name

    async def _make(self, source: list[str], name: str) -> None:
        self.error = ""
        unfinished = os.path.join(self.directory, _UNFINISHED)
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            self.error = await self._run([*source, "--output", unfinished])
            if not self.error:
                os.replace(unfinished, os.path.join(self.directory, name))
                for old in self.kept()[MOST_KEPT:]:
                    os.remove(os.path.join(self.directory, old.name))
        except TimeoutError:
            self.error = f"not finished within {TIMEOUT_S:.0f} s"
        except OSError as error:
            self.error = f"{self.directory}: {error.strerror or error}"

    async def _run(self, arguments: list[str]) -> str:
        """Empty: it went well."""
        process = await asyncio.create_subprocess_exec(
            *self._command, *arguments, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        said = b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while chunk := await process.stderr.read(4096):
                    said = (said + chunk)[-KEPT_ERROR_BYTES:]
                status = await process.wait()
        finally:  # Spark's own process as well
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        words = said.decode(errors="replace").strip()
        return "" if status == 0 else words or f"ended with status {status}"

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # -- what there is --

    def kept(self) -> list[KeptReport]:
        """Newest first. Blocks."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for each in entries:
                if _NAME.fullmatch(each.name):
                    facts = each.stat()
                    found.append(KeptReport(each.name, facts.st_mtime_ns, facts.st_size))
        return sorted(found, reverse=True)

    def read(self, name: str) -> tuple[str, str]:
        """Its text, and the policy to serve it under. Blocks."""
        if not _NAME.fullmatch(name):
            raise ApiError(404, "there is no such report")
        try:
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            raise ApiError(404, "there is no such report") from None
        policy = _POLICY.search(text, 0, 4096)
        return text, (_NO_SCRIPT if policy is None else policy[1]) + _SANDBOX
