"""The logs over HTTP, version 1: files, records, live tail, verify, compact and clean."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web
from msgspec import structs

from journeyman.config import Persistence, WorkqPersistence
from journeyman.disk import Disk, FileStatus, absolute
from journeyman.engines.kestrel.messages import AddReader, Append, EraseQueue, RemoveReader
from journeyman.formats import kestrel, workq, ztick
from journeyman.logs.ledger import times_of
from journeyman.logs.segments import kestrel_queues, workq_files, ztick_files
from journeyman.protocols.workq.replies import id_text
from journeyman.protocols.ztick.grammar import runner_words
from journeyman.servers.http import records, wire
from journeyman.servers.http.fields import cursor_of, moment_of_query, read_cursor
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.records import PlacedRecord
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.sending import (
    FLUSH_S,
    Channel,
    RecordSample,
    event_bytes,
    stream_events,
)
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.past import PastRoutes
from journeyman.servers.http.v1.work import NAMES, parse_id
from journeyman.servers.http.wire import shown_name, time_text
from journeyman.units import NS_PER_MS

SCHEDULE, WORK, FAN_OUT = "schedule", "work", "fan-out"
_SERVICES = (SCHEDULE, WORK, FAN_OUT)
SHOWN_BYTES = 200
VERIFY_TIMEOUT_S = 600.0
_route = partial(Route, tag="log", for_all=True)


class LogRoutes:
    def __init__(self, backend: HttpBackend, past: PastRoutes) -> None:
        self._backend = backend
        self._past = past
        self._watch = RecordWatch(backend)
        self.tail = Channel(self._next_records, FLUSH_S, self._watch.switch)
        self._verifying = asyncio.Lock()
        self._verified: dict[str, Mapping[str, int]] = {}  # fields of a LogFile, by path

    def routes(self) -> list[Route]:
        return [
            _route("GET", "/v1/log/files", self.files, "The files of the logs", values.LogFiles,
                   query=values.NamesQuery),
            _route("GET", "/v1/log/records", self.records, "The last records of a log",
                   values.LogRecords, query=values.RecordsQuery, errors=(404, 422)),
            _route("GET", "/v1/log/tail", self.stream, "Records as they become durable",
                   str, media_type="text/event-stream"),
            _route("POST", "/v1/log/verify", self.verify, "Read all logs and look for damage",
                   values.VerifyAnswer, errors=(409, 422)),
            _route("POST", "/v1/log/compact", self.compact,
                   "Compact the schedule's log, or clean the work queue's", values.UpkeepAnswer,
                   body=values.ServiceBody, errors=(422,)),
            Route("GET", "/v1/work/jobs/{job}/records", self.work_history,
                  "Records of a job, oldest first", values.LogRecords, tag="work queue",
                  names=NAMES),
            Route("GET", "/v1/schedule/records", self.schedule_history,
                  "Records of a job, oldest first", values.LogRecords, tag="schedule",
                  query=values.KeyQuery),
        ]  # fmt: skip

    # -- places --

    @property
    def schedule_log(self) -> str | None:
        database = self._backend.settings.database
        return database.logfile_path if database.persistence is Persistence.LOGFILE else None

    @property
    def work_log(self) -> str | None:
        settings = self._backend.settings.workq
        has_log = settings.enabled and settings.persistence is WorkqPersistence.LOG
        return settings.cmdlog_path if has_log else None

    @property
    def fan_out_log(self) -> str | None:
        kestrel_settings = self._backend.settings.kestrel
        return kestrel_settings.queue_path if kestrel_settings.enabled else None

    # -- looking --

    async def files(self, call: RouteCall) -> values.LogFiles:
        query: values.NamesQuery = call.query
        after = (read_cursor(query.cursor) or b"").decode(errors="surrogateescape")
        return await asyncio.to_thread(self._files, query.prefix, after, query.limit)

    def _files(self, prefix: str, after: str, limit: int) -> values.LogFiles:
        """``after``: number of the service and path. Files may go between two pages."""
        disk, places = self._backend.disk, [self.schedule_log, self.work_log, self.fan_out_log]
        found = []
        for number, (place, files_of) in enumerate(zip(places, _FILES_OF, strict=True)):
            if place is not None:
                paths = [path for path in files_of(disk, place) if _is_named(path, prefix)]
                found += [(f"{number}{path}", path) for path in paths]
        found = sorted(each for each in found if each[0] > after)
        shown = []
        for place, path in found[:limit]:
            with suppress(FileNotFoundError):
                shown.append(self._file_seen(_SERVICES[int(place[0])], path, disk.stat(path)))
        last = found[limit - 1][0].encode(errors="surrogateescape") if found[limit:] else None
        return values.LogFiles(shown, cursor_of(last))

    def _file_seen(self, service: str, path: str, facts: FileStatus) -> values.LogFile:
        return values.LogFile(
            service, os.path.basename(path), path, facts.size,
            facts.modified_ns,
            **self._verified.get(absolute(path), {}),
        )  # fmt: skip

    async def records(self, call: RouteCall) -> values.LogRecords:
        query: values.RecordsQuery = call.query
        if (at_ns := moment_of_query(query.at)) is not None:
            found = await self._past.last_records(call, query.service, at_ns, query.limit)
        else:
            async with self._backend.histories.turn(call):
                found = await asyncio.to_thread(self._last, query.service, query.limit)
        return values.LogRecords([record_seen(query.service, each) for each in found])

    def _last(self, service: str, limit: int) -> list[PlacedRecord]:
        disk = self._backend.disk
        if service == SCHEDULE and self.schedule_log is not None:
            files = ztick_files(disk, self.schedule_log)
            return _newest(disk, ztick.CODEC, files, limit)
        if service == WORK and self.work_log is not None:
            return _newest(disk, workq.CODEC, workq_files(disk, self.work_log), limit)
        if service == FAN_OUT and self.fan_out_log is not None:
            return self._last_items(self.fan_out_log, limit)
        return []

    def _last_items(self, directory: str, limit: int) -> list[PlacedRecord]:
        """Return the last items of those queue files that were written to last."""
        disk = self._backend.disk
        segments = [
            path for path in _journals(disk, directory) if path.rpartition(".")[2].isdigit()
        ]
        segments.sort(key=partial(_modified_ns, disk), reverse=True)
        found: list[PlacedRecord] = []
        for path in segments[:8]:
            found += records.last_records(disk, kestrel.WRITER, path, limit)
        items = [each for each in found if isinstance(each.entry.record, kestrel.ItemPut)]
        items.sort(key=lambda each: each.entry.record.add_time_ms, reverse=True)
        return items[:limit]

    async def work_history(self, call: RouteCall) -> values.LogRecords:
        job_id = parse_id(call.path["job"])
        if self.work_log is None:
            return values.LogRecords([])
        async with self._backend.histories.turn(call):
            found = await asyncio.to_thread(
                records.of_work_job, self._backend.disk, self.work_log, job_id
            )
        seen = [record_seen(WORK, each) for each in found]
        names = {each.queue for each in seen if each.queue is not None}
        is_own = bool(names) and all(name.startswith(call.prefix) for name in names)
        # A job without records answers as a job of others: the log says of neither that it exists.
        # So does one whose add, with the name of its queue, was cleaned away.
        if call.prefix and not is_own:
            raise ApiError(404, "there is no such job", "not_found")
        await self._name_workers(call, seen)
        return values.LogRecords(seen)

    async def _name_workers(self, call: RouteCall, rows: list[values.LogRecord]) -> None:
        """Attempts are counted from the last record that added the job."""
        attempts: list[values.LogRecord] = []
        for record in rows:
            if record.kind in ("add", "schedule"):
                attempts = []
            elif record.kind == "start-attempt":
                attempts.append(record)
        if not attempts or self._backend.ledger is None:
            return
        async with self._backend.histories.turn(call):
            workers = await asyncio.to_thread(
                records.workers_of_job,
                self._backend.disk,
                self._backend.settings.ledger.path,
                attempts[0].key,
            )
        for number, record in enumerate(attempts, start=1):
            record.worker = workers.get(number)

    async def schedule_history(self, call: RouteCall) -> values.LogRecords:
        identifier = call.query.id
        if not identifier.startswith(call.prefix):
            raise ApiError(403, "outside the namespace of the token", "outside_namespace")
        if self.schedule_log is None:
            return values.LogRecords([])
        async with self._backend.histories.turn(call):
            found = await asyncio.to_thread(self._of_scheduled_job, self.schedule_log, identifier)
        return values.LogRecords(found)

    def _of_scheduled_job(self, log: str, identifier: str) -> list[values.LogRecord]:
        """Return the records of a job of the schedule, with the times that the ledger
        has for them."""
        disk, settings = self._backend.disk, self._backend.settings
        found = records.of_scheduled_job(disk, log, identifier)
        has_ledger = self._backend.ledger is not None
        files = ztick_files(disk, log)
        times = times_of(disk, settings.ledger.path, files) if has_ledger else {}
        seen = []
        for each in found:
            record = record_seen(SCHEDULE, each)
            known = times.get(each.file)
            time_ns = None if known is None else known.time_ns(each.entry.offset)
            seen.append(record if time_ns is None else structs.replace(record, time_ns=time_ns))
        return seen

    def places(self) -> dict[str, str]:
        """Where the logs are, by service."""
        found = {SCHEDULE: self.schedule_log, WORK: self.work_log, FAN_OUT: self.fan_out_log}
        return {name: place for name, place in found.items() if place is not None}

    # -- live --

    async def stream(self, call: RouteCall) -> web.StreamResponse:
        return await stream_events(call.request, [self.tail])

    async def _next_records(self) -> bytes | None:
        shown, more = self._watch.take()
        if not shown:
            return None
        return event_bytes("records", wire.encode_json({"records": shown, "more": more}))

    # -- upkeep --

    async def verify(self, call: RouteCall) -> values.VerifyAnswer:  # noqa: ARG002 - as every handler
        """`journeyman verify`, in a process of its own: it may read for minutes."""
        if self._verifying.locked():
            raise ApiError(409, "a verification is running", "busy")
        disk, fan_out = self._backend.disk, self.fan_out_log
        if fan_out is not None and not kestrel_queues(names_of(disk, fan_out)):
            fan_out = None  # no queue yet
        places = [each for each in (self.schedule_log, self.work_log, fan_out) if each]
        found = [place for place in places if disk.exists(place)]
        disk.flush()
        async with self._verifying:
            lines: list[Any] = []
            is_clean, now_ns = True, self._backend.clock.now_ns()
            for place in found:
                code, text = await _run_verify(place)
                is_clean = is_clean and code == 0
                lines += [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        self._verified = {
            absolute(file["file"]): {
                **{name: file[name] for name in ("live_bytes", "dead_bytes", "damaged_bytes")},
                "verified_ns": now_ns,
            }
            for line in lines
            for log in line.get("logs", [])
            for file in log["files"]
        }
        return values.VerifyAnswer(is_clean, lines)

    async def compact(self, call: RouteCall) -> values.UpkeepAnswer:
        service = call.body.service
        if service == SCHEDULE:
            detail = await self._backend.schedule.compact_now()
        else:
            detail = None if self._backend.work is None else await self._backend.work.clean_now()
        if detail is None:
            raise ApiError(404, "this service has no log on the disk", "service_off")
        return values.UpkeepAnswer(service, detail)


class RecordWatch:
    """A sample of what becomes durable in all services, for one channel."""

    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend
        self._sample = RecordSample()
        self._watches: list[tuple[list[Any], Any]] = []

    def switch(self, is_on: bool) -> None:
        """Begin or end to watch: the writers are asked nothing without subscribers."""
        for watchers, watch in self._watches:
            watchers.remove(watch)
        self._watches = []
        backend = self._backend
        services = {SCHEDULE: backend.schedule, WORK: backend.work, FAN_OUT: backend.fan_out}
        for name, service in services.items():
            if is_on and service is not None:
                watch = _noting(self._sample, name)
                service.writer.watchers.append(watch)
                self._watches.append((service.writer.watchers, watch))

    def take(self) -> tuple[list[values.LiveRecord], int]:
        """The sample since the last call, newest first, and how many more there were."""
        sample, more = self._sample.take()
        now_ns = self._backend.clock.now_ns()
        return [live_seen(service, record, now_ns) for service, record in reversed(sample)], more


def _noting(sample: RecordSample, service: str) -> Any:
    return lambda told: sample.note(service, told)


async def _run_verify(place: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "journeyman", "verify", "--json", "--quiet", place,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(VERIFY_TIMEOUT_S):
            text, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    return process.returncode or 0, text.decode(errors="replace")


def names_of(disk: Disk, directory: str) -> list[str]:
    try:
        found = disk.scan(directory)
    except FileNotFoundError:
        return []
    return [name for name, facts in found.items() if not facts.is_dir and "." in name[1:]]


def _is_named(path: str, prefix: str) -> bool:
    return os.path.basename(path).startswith(prefix)


def _journals(disk: Disk, directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in names_of(disk, directory)]


_FILES_OF = (ztick_files, workq_files, _journals)


def _modified_ns(disk: Disk, path: str) -> int:
    try:
        return disk.stat(path).modified_ns
    except FileNotFoundError:
        return 0


def _newest(disk: Any, codec: Any, files: list[str], limit: int) -> list[PlacedRecord]:
    found: list[PlacedRecord] = []
    for path in reversed(files):
        found += records.last_records(disk, codec, path, limit - len(found))
        if len(found) >= limit:
            break
    return found


# -- records as people see them --


def record_seen(service: str, placed: PlacedRecord) -> values.LogRecord:
    kind, key, text, time_ns, queue = words_of(placed.entry.record)
    if service == FAN_OUT:
        queue = os.path.basename(placed.file).rpartition(".")[0]
    return values.LogRecord(
        service, os.path.basename(placed.file), placed.entry.offset, placed.entry.length,
        kind, key, text, placed.data.hex(), time_ns, queue,
    )  # fmt: skip


def live_seen(service: str, record: Any, now_ns: int) -> values.LiveRecord:
    kind, key, text, time_ns, queue = words_of(record)
    time_ns = now_ns if time_ns is None else time_ns
    return values.LiveRecord(service, kind, key, text, time_ns, queue)


class RecordWords(NamedTuple):
    """A record in words; its time and its queue if it says so."""

    kind: str
    key: str
    text: str
    time_ns: int | None = None
    queue: str | None = None


def words_of(record: Any) -> RecordWords:
    if isinstance(record, ztick.JobSet):
        when = time_text(record.execution_ns)
        return RecordWords(record.status.word, record.identifier, when)
    if isinstance(record, ztick.RuleSet):
        words = " ".join((record.pattern, *runner_words(record.runner)))
        return RecordWords("rule set", record.identifier, words)
    if isinstance(record, ztick.JobRemoved | ztick.RuleRemoved):
        kind = "removed" if isinstance(record, ztick.JobRemoved) else "rule removed"
        return RecordWords(kind, record.identifier, "")
    if isinstance(record, Append):
        return words_of(record.item)._replace(queue=record.queue)
    if isinstance(record, AddReader | RemoveReader):
        kind = "reader added" if isinstance(record, AddReader) else "reader removed"
        return RecordWords(kind, record.reader, "", None, record.queue)
    if isinstance(record, EraseQueue):
        return RecordWords("queue erased", record.queue, "", None, record.queue)
    if isinstance(record, kestrel.ItemPut):
        added_ns = record.add_time_ms * NS_PER_MS
        return RecordWords("put", str(record.item_id), _snippet(record.data), added_ns)
    if not hasattr(record, "job_id"):
        return RecordWords(type(record).__name__, "", "")
    key, logged_ns = id_text(record.job_id), record.logged.unix_ns
    if isinstance(record, workq.JobAdded):
        name = shown_name(record.name)
        return RecordWords(record.command.word, key, _snippet(record.payload), logged_ns, name)
    text = _snippet(record.result) if isinstance(record, workq.JobFinished) else ""
    return RecordWords(record.command.word, key, text, logged_ns)


def _snippet(data: bytes) -> str:
    text = data[:SHOWN_BYTES].decode(errors="backslashreplace")
    return text if len(data) <= SHOWN_BYTES else f"{text}… ({len(data)} bytes)"
