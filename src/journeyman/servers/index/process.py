"""The process that follows the log into the store, and the server's end of the pipe to it.

    server                                     journeyman storage follow --pipe
    start   --spawned, settings as variables-->  opens the store
            <--{"open": "rocksdb at ..."}------  or {"failed": why}, and it ends
    logs recovered  --{"do": "follow"}-------->  follows
    a request  --{"id":7,"ask":"list",...}---->  answers from the store, in a thread of its own
            <--{"id":7,"answer":...}-----------  or {"id":7,"error":why}
            <--{"say": text}-------------------  for the server's messages
    stop    --end of the pipe----------------->  ends after its commit

A process of its own, because the work of it would take half of the throughput of the queue. It is
also the only one that opens the store, so every engine can be asked over HTTP. If it ends by
itself, it is started again, a little later each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final
from uuid import UUID

from journeyman.clock import Clock
from journeyman.config import Settings, all_settings
from journeyman.errors import InvalidData, JourneymanError, StorageError, UsageError
from journeyman.folds.keyspace import Defaults, is_archived, workq_of_record
from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.core.ledger import is_used
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.index.follower import Follower
from journeyman.storage import Page, Storage

POLL_S: Final = 0.1  # between two looks at the log, if nothing is new
ASK_S: Final = 20.0
RESTARTS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # until it is started again
LINE_BYTES: Final = 64 * 1024 * 1024
_PASSED: Final = ("storage.", "workq.cmdlog_path", "ledger.path", "ledger.enabled")


class IndexProcess:
    """The server's end. All methods are called on the event loop."""

    def __init__(self, settings: Settings, messages: ServerLog) -> None:
        self._settings = settings
        self._messages = messages
        self._child: asyncio.subprocess.Process | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._watching: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def open(self) -> None:
        """Until the store is open. UsageError: it cannot be."""
        await self._start()

    def follow(self) -> None:
        """The log is recovered: it may be read."""
        self._send({"do": "follow"})
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def ask(self, what: str, **arguments: Any) -> Any:
        """UsageError for what cannot be asked; StorageError if there is no answer."""
        self._last_id += 1
        number = self._last_id
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send({"id": number, "ask": what, **arguments})
        try:
            return await asyncio.wait_for(answer, ASK_S)
        except TimeoutError:
            raise StorageError("storage", "it does not answer in time") from None
        finally:
            del self._asked[number]

    async def stop(self) -> None:
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()
        child = self._child
        if child is not None and child.returncode is None:
            assert child.stdin is not None
            child.stdin.close()
            try:
                await asyncio.wait_for(child.wait(), ASK_S)
            except TimeoutError:
                child.kill()
                await child.wait()

    # -- the process --

    async def _start(self) -> None:
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "journeyman", "storage", "follow", "--pipe"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(self._settings),
            limit=LINE_BYTES,
        )
        first = await self._line(child)
        if "open" not in first:
            await child.wait()
            raise UsageError(f"storage: {first.get('failed', 'its process has ended')}")
        self._messages.info(f"the store is open: {first['open']}")

    async def _watch(self) -> None:
        """Read what it says; start it again when it has ended."""
        tries = 0
        while True:
            assert self._child is not None
            while line := await self._line(self._child):
                self._take(line)
                tries = 0
            code = await self._child.wait()
            self._fail_asked()
            wait_s = RESTARTS_S[min(tries, len(RESTARTS_S) - 1)]
            reason = f"the process that keeps the store has ended ({code})"
            self._messages.warn(f"{reason}; it is started again in {wait_s:g} s")
            tries += 1
            await asyncio.sleep(wait_s)
            try:
                await self._start()
            except UsageError as error:
                self._messages.warn("the store cannot be opened", reason=error)
            else:
                self._send({"do": "follow"})

    async def _line(self, child: asyncio.subprocess.Process) -> dict[str, Any]:
        """The next message; empty: it has ended."""
        assert child.stdout is not None
        raw = await child.stdout.readline()
        if not raw.endswith(b"\n"):
            return {}
        found: dict[str, Any] = json.loads(raw)
        return found

    def _take(self, line: dict[str, Any]) -> None:
        if "say" in line:
            self._messages.info(line["say"])
        answer = self._asked.get(line.get("id", 0))
        if answer is None or answer.done():
            return
        if "error" in line:
            kind = UsageError if line.get("is_usage") else _storage_error
            answer.set_exception(kind(line["error"]))
        else:
            answer.set_result(line["answer"])

    def _fail_asked(self) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_storage_error("its process has ended"))

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError, RuntimeError):  # it has ended: ``_watch`` sees to that
                self._child.stdin.write(json.dumps(message).encode() + b"\n")


def _storage_error(reason: str) -> StorageError:
    return StorageError("storage", reason)


def _environment(settings: Settings) -> dict[str, str]:
    """Settings as variables: unlike arguments, other users do not see them."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("JOURNEYMAN_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for setting in all_settings():
        value = setting.value_in(settings)
        if setting.name.startswith(_PASSED) and value is not None:
            environ[setting.variable] = str(value).lower() if value in (True, False) else str(value)
    environ["JOURNEYMAN_LEDGER_ENABLED"] = str(is_used(settings)).lower()
    return environ


# ----------------------------------------
# The other end.


class PipeEnd:
    """Follows, and answers what comes through the pipe, until it ends."""

    def __init__(self, storage: Storage, commands: BinaryIO, answers: BinaryIO) -> None:
        self._storage = storage
        self._commands = commands
        self._answers = answers
        self._sending = threading.Lock()
        self._may_follow = threading.Event()
        self._has_ended = threading.Event()

    def say(self, text: str) -> None:
        self._send({"say": text})

    def run(self, follower: Follower, clock: Clock) -> None:
        reading = threading.Thread(target=self._read, name="journeyman-pipe", daemon=True)
        reading.start()
        self._send({"open": f"{self._storage.engine} at {self._storage.path}"})
        self._may_follow.wait()
        while not self._has_ended.is_set():
            if not follower.step():
                clock.sleep(POLL_S)

    def _read(self) -> None:
        for raw in self._commands:
            message = json.loads(raw)
            if message.get("do") == "follow":
                self._may_follow.set()
            else:
                self._send({"id": message["id"], **self._answer(message)})
        self._has_ended.set()
        self._may_follow.set()

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"answer": _ANSWERS[message["ask"]](self._storage, message)}
        except UsageError as error:
            return {"error": str(error), "is_usage": True}
        except (JourneymanError, OSError) as error:
            return {"error": str(error)}

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._sending, suppress(OSError):  # the server has ended, and so does this
            self._answers.write(json.dumps(message).encode() + b"\n")
            self._answers.flush()


def _list(storage: Storage, asked: dict[str, Any]) -> dict[str, Any]:
    queue, status, size, after = (asked[name] for name in ("queue", "status", "limit", "cursor"))
    if queue is not None:
        page = storage.list_jobs(queue, status, size=size, after=after, page=asked["page"])
    elif asked["page"] is not None:
        raise UsageError("a page by number needs a queue; use cursor without one")
    else:
        page = storage.list_jobs_by_status(status, size=size, after=after)
    return _page(page)


def _page(page: Page) -> dict[str, Any]:
    unreadable = [
        {"key": each.key.decode("utf-8", "backslashreplace"), "reason": each.reason}
        for each in page.unreadable
    ]
    position = None if page.position is None else str(page.position)
    jobs = [shown_row(record) for record in page.jobs]
    return {
        "jobs": jobs,
        "next": page.next_cursor,
        "unreadable": unreadable,
        "position": position,
    }


def _job(storage: Storage, asked: dict[str, Any]) -> dict[str, Any] | None:
    record = storage.get_job(UUID(asked["job"]))
    return None if record is None else shown_row(record)


def _counts(storage: Storage, asked: dict[str, Any]) -> dict[str, Any]:
    counts = storage.queue_status_counts(asked["queue"])
    position = storage.position()
    return {
        "counts": [{"queue": n.queue, "status": n.status, "count": n.count} for n in counts],
        "position": None if position is None else str(position),
    }


_ANSWERS: Final[dict[str, Callable[[Storage, dict[str, Any]], Any]]] = {
    "list": _list,
    "job": _job,
    "counts": _counts,
}


def shown_row(record: JobRecord) -> dict[str, Any]:
    """A row for people; that of another program with what the work queue would make of it."""
    from journeyman.servers.http.wire import text_or_base64

    row: dict[str, Any] = {
        "id": str(record.job_uuid),
        "queue": record.queue,
        "status": record.status,
        "is_archived": is_archived(record),
        "created_ns": record.created_at_ns,
        "execution_start_ns": record.execution_start_ns,
        "attempts": record.attempts_so_far,
    }
    try:
        job = workq_of_record(record, Defaults())
    except InvalidData as error:
        return row | {"unreadable": error.reason}
    added = job.added
    row |= {
        "max_attempts": added.max_attempts,
        "fails": job.fails,
        "priority": added.priority,
        "ttr_ms": added.ttr_ms,
        "ttl_ms": added.ttl_ms,
        "started_ns": None if job.started is None else job.started.unix_ns,
        "finished_ns": None if job.finished is None else job.finished.unix_ns,
    }
    row |= text_or_base64("payload", added.payload)
    return row if job.result is None else row | text_or_base64("result", job.result)
