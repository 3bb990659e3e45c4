"""A log read for people: its files mapped at one moment, its entries, and each as a line of output.

A log may be in use. A mapped file stays readable when it is renamed, rewritten or removed, so the
only moment that matters is the one in which the files are mapped: then none of them may change
its name.

    workq     read.lock is held, shared, as readers of the original hold it; cleaning waits
    ztick     compaction takes no lock that a reader could hold: when a name changed its file
    kestrel   meanwhile, or was missing, everything is mapped again

Nothing is written: a lock that is not there is not made, and one that may not be opened is done
without. Entries are read by the one rule for damaged logs (journeyman.logs.damage), or more:

    all       the records that a server would load
    salvage   also what stands alone between damages, or in a torn tail, and looks like a record
    seals     the seals of the log too, as the records that they are for other programs

They are made one at a time, so the size of a log does not matter. Every stretch that was passed
over is a warning on stderr; of a ztick log in the words of ``ztick dump`` where that says the same.

    ztick     the text and the JSON that ``ztick dump`` prints, byte for byte; nothing is quoted
              SET <id> <ns> <status>                      {"type":"set","identifier",...}
              RULE SET <id> <pattern> <runner> <args>     {"type":"rule_set",...,"runner":{...}}
    workq     000000001.log:8 2026-11-15T19:00:51.050695748Z add 0000000a-... ttr=1000 ... "ping"
              {"segment":"000000001.log","offset":8,"length":88,"logged_ns":...,"cmd":"add",...}
    kestrel   jobs.9:4 PUT 100 @ 2011-11-16T00:05:03.734Z "100"
              {"file":"jobs.9","offset":4,"length":28,"command":"PUT",...,"data_b64":"MTAw"}
    ledger    000000001.ledger:8 2026-11-17T05:00:00Z queue-paused {"queue":"mail"}
              {"segment":"000000001.ledger","offset":8,...,"payload":{"v":1,...}}

JSON holds everything that a record holds: bytes as hex or base64, times as numbers. Text shortens
long data.
"""

from __future__ import annotations

import dataclasses
import json as json_module
import posixpath
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from journeyman.cli.errors import warn
from journeyman.cli.output import Advance, json_line
from journeyman.disk import Disk, OpenFile
from journeyman.errors import LogError
from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.framing import Buffer, Entry
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick.codec import runner_word
from journeyman.logs import catalog
from journeyman.logs.damage import Damage
from journeyman.logs.detection import relist
from journeyman.logs.ledger import FileTimes
from journeyman.logs.sealing import is_in_flight, read_file
from journeyman.logs.segments import READ_LOCK
from journeyman.protocols.workq.replies import id_text
from journeyman.units import NS_PER_MS, NS_PER_S

dialect_option = click.option(
    "--dialect",
    type=click.Choice(catalog.SERVER_DIALECTS),
    help="Dialect of the log, instead of detecting it.",
)

_TRIES = 20
_LOCK_TIMEOUT_S = 5.0

SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class MappedLog:
    """A log, and its files as they were at one moment."""

    log: catalog.Log
    views: dict[str, memoryview]  # by path

    @property
    def size(self) -> int:
        return sum(map(len, self.views.values()))


def map_log(disk: Disk, log: catalog.Log, *, compacted: bool = False) -> MappedLog:
    """Map the files of a log; ``compacted`` adds those that ztick's compaction put beside it."""
    with _no_cleaning(disk, log):
        for _ in range(_TRIES):
            current = relist(disk, log, compacted=compacted)
            views = _views(disk, current)
            if views is not None and relist(disk, log, compacted=compacted) == current:
                return MappedLog(current, views)
    raise LogError(log.where, "its files keep changing; try again")


def _views(disk: Disk, log: catalog.Log) -> dict[str, memoryview] | None:
    """None when a name changed its file while they were mapped."""
    views: dict[str, memoryview] = {}
    handles: list[tuple[str, OpenFile]] = []
    try:
        for file in log.files:
            handles.append((file.path, disk.open_read(file.path)))
            views[file.path] = disk.view(file.path)
        still = all(handle.still_at(path) for path, handle in handles)
    except FileNotFoundError:
        if not log.whole:
            raise
        still = False
    finally:
        for _, handle in handles:
            handle.close()
    return views if still else None


@contextmanager
def _no_cleaning(disk: Disk, log: catalog.Log) -> Iterator[None]:
    path = posixpath.join(log.where, READ_LOCK)
    if log.dialect != catalog.WORKQ or not disk.exists(path):
        yield
        return
    try:
        lock = disk.lock(path, shared=True, timeout_s=_LOCK_TIMEOUT_S)
    except OSError:  # no permission to open it, or a file system that cannot be written
        yield
        return
    try:
        yield
    finally:
        lock.release()


_ADVANCE_EVERY = 4096  # entries
_LENGTH_PREFIX_BYTES = 4


class LogReading:
    """Reads the files of one log, up to the moment asked for, and knows what was damaged."""

    def __init__(
        self,
        mapped: MappedLog,
        *,
        as_of_ns: int | None,
        salvage: bool,
        advance: Advance,
        seals: bool = False,
        times: Mapping[str, FileTimes] | None = None,
    ) -> None:
        """``times``: when records of a ztick log were written, by path, for ``as_of_ns``."""
        self._times = times or {}
        self._views = mapped.views
        self._as_of_ns = as_of_ns
        self._salvage = salvage
        self._seals = seals
        self._advance = advance
        self._done = 0
        self._told: set[tuple[str, int]] = set()
        self.damaged: set[str] = set()  # paths

    def read(
        self, files: Iterable[catalog.LogFile]
    ) -> Iterator[tuple[catalog.LogFile, Entry[Any]]]:
        """The entries of these files, one file after the other."""
        for file in files:
            data = self._views[file.path]
            for number, entry in enumerate(self._entries(file, data)):
                if number % _ADVANCE_EVERY == 0:
                    self._advance(self._done + entry.offset)
                if self._as_of_ns is None or self._is_before(file, entry, self._as_of_ns):
                    yield file, entry
            self._done += len(data)

    def _is_before(self, file: catalog.LogFile, entry: Entry[Any], as_of_ns: int) -> bool:
        if file.dialect != catalog.ZTICK:
            return _recorded_ns(file, entry.record) <= as_of_ns
        times = self._times.get(file.path)
        time_ns = None if times is None else times.time_ns(entry.offset)
        return time_ns is not None and time_ns <= as_of_ns

    def _entries(self, file: catalog.LogFile, data: Buffer) -> Iterator[Entry[Any]]:
        found_all = read_file(
            file.codec, data, file=file.path, salvage=self._salvage, seals=self._seals
        )
        for frames, found in enumerate(found_all):
            if not isinstance(found, Damage):
                yield found
            elif not is_end(file, data, found):
                self.damaged.add(file.path)
                if (file.path, found.offset) in self._told:
                    continue  # the file is read once more
                self._told.add((file.path, found.offset))
                warn(_warning(file, data, found, frames))


def _warning(file: catalog.LogFile, data: Buffer, damage: Damage, frames: int) -> str:
    """Return what was left out; ``frames`` stand before it in its file."""
    if file.dialect == catalog.ZTICK and damage.kind == "torn" and damage.end == len(data):
        return f"partial trailing frame ({damage.length} bytes) ignored"
    prefix = bytes(data[damage.offset : damage.offset + _LENGTH_PREFIX_BYTES])
    length = int.from_bytes(prefix, "big") + _LENGTH_PREFIX_BYTES
    if file.dialect == catalog.ZTICK and damage.kind == "corrupt" and damage.length == length:
        return f"failed to decode frame {frames}: error.InvalidData"
    return (
        f"{file.path}: {damage.length} bytes at offset {damage.offset} left out: "
        f"{damage.kind}, {damage.reason}"
    )


def is_end(file: catalog.LogFile, data: Buffer, damage: Damage) -> bool:
    """True if this is not damage but the end of a file: its end mark, or a batch in flight.

    A checkpoint is written whole, so nothing is ever on its way there.
    """
    is_on_its_way = is_in_flight(damage) and file.reader is None
    return is_on_its_way or is_end_mark(file, data, damage)


def is_end_mark(file: catalog.LogFile, data: Buffer, damage: Damage) -> bool:
    """Return whether this is how a kestrel file ends: a zero byte, and then no data that counts.

    After the zero byte of a segment there may be a PUT whose first byte was to be written last.
    A checkpoint is replaced as a whole, so nothing but zeros may follow its last record.
    """
    if file.dialect != catalog.KESTREL or damage.end != len(data) or damage.offset == 0:
        return False
    begins_zero = data[damage.offset] == 0
    return damage.kind == "padding" or (file.reader is None and begins_zero)


def _recorded_ns(file: catalog.LogFile, record: Any) -> int:
    """When the record came into being. A checkpoint bears no time and counts as always there."""
    if file.dialect == catalog.KESTREL:
        return int(record.add_time_ms) * NS_PER_MS if hasattr(record, "add_time_ms") else 0
    return int(record.logged.unix_ns)


def snippet(data: bytes) -> str:
    """``"ping"``, or the beginning and the size of something long. JSON holds bytes whole."""
    shown = repr(data[:SHOWN_BYTES])[2:-1].replace('"', '\\"')
    rest = len(data) - SHOWN_BYTES
    return f'"{shown}"' if rest <= 0 else f'"{shown}"... ({len(data)} bytes)'


_NAMES_OF_KINDS: dict[type, str] = {
    ztick.JobSet: "set",
    ztick.RuleSet: "rule_set",
    ztick.JobRemoved: "remove",
    ztick.RuleRemoved: "remove_rule",
    kestrel.ItemPut: "PUT",
    kestrel.ReadHead: "READ_HEAD",
    kestrel.ReadDone: "READ_DONE",
    kestrel.UnknownCommand: "UNKNOWN",
    workq.UnknownCommand: "unknown",
    ledger.NewerRecord: "unknown",
}
_COMMANDS = {int(command): command.word for command in workq.Command}


def kind_of(record: Any) -> str:
    word = _NAMES_OF_KINDS.get(type(record))
    if word is not None:
        return word
    return _COMMANDS[record.command] if hasattr(record, "command") else ledger.kind_of(record).name


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(unix_ns: int) -> str:
    """ISO 8601 in UTC, with 0, 3, 6 or 9 digits as the moment needs; beyond 9999 the number."""
    seconds, rest_ns = divmod(unix_ns, NS_PER_S)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return f"{unix_ns}ns"
    fraction = f"{rest_ns:09d}"
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{text.rjust(19, '0')}{'.' if fraction else ''}{fraction}Z"


def line_maker(file: catalog.LogFile, *, json: bool) -> Callable[[Entry[Any]], str]:
    """Return what turns the entries of this file into lines."""
    name = file.name
    if file.dialect == catalog.ZTICK:
        ztick_line = ztick_json if json else ztick_text
        return lambda entry: ztick_line(entry.record)
    if file.dialect == catalog.WORKQ:
        if json:
            return lambda entry: json_line(workq_fields(name, entry))
        return lambda entry: workq_text(name, entry)
    if file.dialect == catalog.LEDGER:
        if json:
            return lambda entry: json_line(
                {"segment": name, "offset": entry.offset, "length": entry.length}
                | ledger_fields(entry.record)
            )
        return lambda entry: f"{name}:{entry.offset} {ledger_text(entry.record)}"
    if json:
        return lambda entry: json_line(_place(name, entry) | kestrel_fields(entry.record))
    return lambda entry: f"{name}:{entry.offset} {kestrel_text(entry.record)}"


def _place(name: str, entry: Entry[Any]) -> dict[str, Any]:
    return {"file": name, "offset": entry.offset, "length": entry.length}


_MUST_ESCAPE = re.compile(r'[\x00-\x1f"\\]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def ztick_text(record: ztick.Record) -> str:
    """The line of ``dump --format ztick_text``."""
    if isinstance(record, ztick.JobSet):
        return f"SET {record.identifier} {record.execution_ns} {record.status.word}"
    if isinstance(record, ztick.JobRemoved):
        return f"REMOVE {record.identifier}"
    if isinstance(record, ztick.RuleRemoved):
        return f"REMOVERULE {record.identifier}"
    from journeyman.protocols.ztick.grammar import runner_words  # three parsers, for rules alone

    words = " ".join(runner_words(record.runner))
    return f"RULE SET {record.identifier} {record.pattern} {words}"


def ztick_json(record: ztick.Record) -> str:
    """The line of ``dump --format json``."""
    identifier = _quoted(record.identifier)
    if isinstance(record, ztick.JobSet):
        return (
            f'{{"type":"set","identifier":{identifier},'
            f'"execution":{record.execution_ns},"status":"{record.status.word}"}}'
        )
    if isinstance(record, ztick.JobRemoved):
        return f'{{"type":"remove","identifier":{identifier}}}'
    if isinstance(record, ztick.RuleRemoved):
        return f'{{"type":"remove_rule","identifier":{identifier}}}'
    assert isinstance(record, ztick.RuleSet)
    pattern = _quoted(record.pattern)
    runner = _object(record.runner)
    return f'{{"type":"rule_set","identifier":{identifier},"pattern":{pattern},"runner":{runner}}}'


def _object(runner: ztick.Runner) -> str:
    named: list[tuple[str, str | tuple[str, ...]]] = [("type", runner_word(runner))]
    named += [(each.name, getattr(runner, each.name)) for each in dataclasses.fields(runner)]
    pairs = (
        f'"{name}":{_quoted(value) if isinstance(value, str) else _array(value)}'
        for name, value in named
    )
    return "{" + ",".join(pairs) + "}"


def _array(values: tuple[str, ...]) -> str:
    return "[" + ",".join(map(_quoted, values)) + "]"


def _quoted(value: str) -> str:
    return '"' + _MUST_ESCAPE.sub(_escaped, value) + '"'


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_ESCAPES.get(char) or f"\\u{ord(char):04x}"


def workq_fields(segment: str, entry: Entry[workq.Record]) -> dict[str, Any]:
    """The JSON object of one record, keys in the order they are documented."""
    record = entry.record
    row: dict[str, Any] = {
        "segment": segment,
        "offset": entry.offset,
        "length": entry.length,
        "logged_ns": record.logged.unix_ns,
    }
    if isinstance(record, workq.JobAdded):
        return row | added_fields(record)
    if isinstance(record, workq.UnknownCommand):
        known = {"cmd": "unknown", "code": record.command, "id": id_text(record.job_id)}
        return row | known | {"body_hex": record.body.hex()}
    row["cmd"] = record.command.word
    row["id"] = id_text(record.job_id)
    if isinstance(record, workq.JobFinished):
        row["result_hex"] = record.result.hex()
    if record.hidden:
        row["hidden"] = True
    return row


def added_fields(record: workq.JobAdded) -> dict[str, Any]:
    """Return what an add or schedule says about its job."""
    return {
        "cmd": record.command.word,
        "id": id_text(record.job_id),
        "name": record.name,
        "ttr": record.ttr_ms,
        "ttl": record.ttl_ms,
        "priority": record.priority,
        "max_attempts": record.max_attempts,
        "max_fails": record.max_fails,
        "payload_hex": record.payload.hex(),
        "time_ns": _ns(record.time),
        "created_ns": record.created.unix_ns,
    }


def workq_text(segment: str, entry: Entry[workq.Record]) -> str:
    """One line for a person."""
    record = entry.record
    place = f"{segment}:{entry.offset} {iso(record.logged.unix_ns)}"
    if isinstance(record, workq.UnknownCommand):
        job_id = id_text(record.job_id)
        return f"{place} unknown command {record.command} {job_id} {snippet(record.body)}"
    head = f"{place} {record.command.word} {id_text(record.job_id)}"
    if isinstance(record, workq.JobAdded):
        return f"{head} {added_words(record)}"
    if isinstance(record, workq.JobFinished):
        head = f"{head} {snippet(record.result)}"
    return f"{head} hidden" if record.hidden else head


def added_words(record: workq.JobAdded) -> str:
    """Return what an add or schedule says about its job, for a person."""
    due = f" time={iso(record.time.unix_ns)}" if record.time is not None else ""
    return (
        f"{record.name} ttr={record.ttr_ms} ttl={record.ttl_ms} priority={record.priority} "
        f"max-attempts={record.max_attempts} max-fails={record.max_fails}{due} "
        f"created={iso(record.created.unix_ns)} {snippet(record.payload)}"
    )


def _ns(instant: Instant | None) -> int | None:
    return None if instant is None else instant.unix_ns


def kestrel_fields(record: kestrel.Record) -> dict[str, Any]:
    """Return what the record says, wherever it stands."""
    if isinstance(record, kestrel.ItemPut):
        return {
            "command": "PUT",
            "item_id": record.item_id,
            "add_time_ms": record.add_time_ms,
            "expire_time_ms": record.expire_time_ms,
            "error_count": record.error_count,
            "data_size": len(record.data),
            "data_b64": b64encode(record.data).decode("ascii"),
        }
    if isinstance(record, kestrel.ReadHead):
        return {"command": "READ_HEAD", "id": record.item_id}
    if isinstance(record, kestrel.ReadDone):
        return {"command": "READ_DONE", "ids": list(record.item_ids)}
    code = record.command_byte >> 4
    return {"command": "UNKNOWN", "code": code, "data_size": len(record.data)}


def kestrel_text(record: kestrel.Record) -> str:
    """Return what the record says, for a person."""
    if isinstance(record, kestrel.ItemPut):
        expires = ""
        if record.expire_time_ms is not None:
            expires = f" expires={iso(record.expire_time_ms * NS_PER_MS)}"
        errors = f" errors={record.error_count}" if record.error_count else ""
        added = iso(record.add_time_ms * NS_PER_MS)
        return f"PUT {record.item_id} @ {added}{expires}{errors} {snippet(record.data)}"
    if isinstance(record, kestrel.ReadHead):
        return f"READ_HEAD {record.item_id}"
    if isinstance(record, kestrel.ReadDone):
        return " ".join(["READ_DONE", *map(str, record.item_ids)])
    return f"UNKNOWN command {record.command_byte >> 4}, {len(record.data)} bytes of data"


def ledger_fields(record: ledger.Record) -> dict[str, Any]:
    """Return what the record says, wherever it stands."""
    return {"logged_ns": record.logged.unix_ns, "payload": _payload(record)}


def ledger_text(record: ledger.Record) -> str:
    """Return what the record says, for a person."""
    members = _payload(record)
    version, kind = members.pop("v"), members.pop("kind")
    newer = f" (version {version}, unknown)" if isinstance(record, ledger.NewerRecord) else ""
    return f"{iso(record.logged.unix_ns)} {kind}{newer} {json_line(members)}"


def _payload(record: ledger.Record) -> dict[str, Any]:
    members: dict[str, Any] = json_module.loads(ledger.encode_payload(record))
    return members
