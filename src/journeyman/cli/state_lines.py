"""``dump --compact``: the state that the records of a log add up to, one line each.

    ztick     every job and rule that exists, as SET and RULE SET, in the order of last records
    workq     every job that exists at the moment asked for, in queue order
    kestrel   every item that some reader still has to be given, as PUT; then where each reader
              stands, as READ_HEAD and READ_DONE

The folds of journeyman.folds say what the state is; here it only becomes lines. The state is held
in memory, as a server holds it; records that are no part of it are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from journeyman.cli import lines
from journeyman.cli.lines import iso, snippet
from journeyman.cli.output import json_line
from journeyman.folds import kestrel, workq, ztick
from journeyman.formats.framing import Entry
from journeyman.formats.kestrel import ItemPut
from journeyman.logs.catalog import WORKQ, ZTICK, Log, LogFile

# Reads files one after the other; answers with the entries of each.
Read: TypeAlias = Callable[[Iterable[LogFile]], Iterator[tuple[LogFile, Entry[Any]]]]


def effective_lines(
    log: Log, read: Read, as_of_ns: int, damaged: set[str], *, json: bool
) -> Iterator[str]:
    """``damaged`` fills up with the paths in which ``read`` came upon damage."""
    if log.dialect == ZTICK:
        return _schedule(log, read, json)
    if log.dialect == WORKQ:
        return _jobs(log, read, as_of_ns, json)
    return _queue(log, read, damaged, json)


def _schedule(log: Log, read: Read, json: bool) -> Iterator[str]:
    line = lines.ztick_json if json else lines.ztick_text
    states = ztick.replay(entry.record for _, entry in read(log.files))
    return map(line, states.values())


def _jobs(log: Log, read: Read, as_of_ns: int, json: bool) -> Iterator[str]:
    states = workq.replay(entry.record for _, entry in read(log.files))
    seen = (workq.visible(state, as_of_ns) for state in states.values())
    jobs = sorted((job for job in seen if job is not None), key=workq.queue_order)
    for job in jobs:
        queue = workq.queue_of(job, as_of_ns)
        yield json_line(_job_fields(job, queue)) if json else _job_text(job, queue)


def _job_fields(job: workq.FoldedJob, queue: str | None) -> dict[str, Any]:
    return lines.added_fields(job.added) | {
        "state": int(job.state),
        "attempts": job.attempts,
        "fails": job.fails,
        "result_hex": None if job.result is None else job.result.hex(),
        "queue": queue,
    }


def _job_text(job: workq.FoldedJob, queue: str | None) -> str:
    state = job.state.name.lower()
    where = f" in {queue}" if queue is not None else ""
    result = f" result={snippet(job.result)}" if job.result is not None else ""
    until = iso(workq.expires_ns(job))
    return (
        f"{lines.uuid_text(job.added.job_id)} {state}{where} attempts={job.attempts} "
        f"fails={job.fails} until={until} {lines.added_words(job.added)}{result}"
    )


def _queue(log: Log, read: Read, damaged: set[str], json: bool) -> Iterator[str]:
    readers: dict[str, kestrel.Reader | None] = {
        file.reader: kestrel.Reader() for file in log.readers if file.reader is not None
    }
    for file, entry in read(log.readers):
        assert file.reader is not None
        readers[file.reader] = kestrel.apply_reader(readers[file.reader], entry.record)
    for file in log.readers:
        if file.path in damaged:
            readers[file.reader or ""] = None
    span = id_span(entry.record for _, entry in read(log.segments))
    consumed = consumed_by_all(readers, span)

    def waiting() -> Iterator[ItemPut]:
        for _, entry in read(log.segments):
            if isinstance(entry.record, ItemPut) and not consumed(entry.record.item_id):
                yield entry.record

    for item in kestrel.replay(waiting()).values():
        for put in kestrel.snapshot(item):
            yield _queue_line(log, None, put, json)
    if readers:
        for name, reader in kestrel.open_queue(span, readers).readers.items():
            for record in kestrel.snapshot_reader(reader):
                yield _queue_line(log, name, record, json)


def id_span(records: Iterable[Any]) -> tuple[int, ...]:
    """The least and the greatest id of the items among these records; nothing without items."""
    span: tuple[int, ...] = ()
    for record in records:
        if isinstance(record, ItemPut):
            span = (
                (min(*span, record.item_id), max(*span, record.item_id))
                if span
                else (
                    record.item_id,
                    record.item_id,
                )
            )
    return span


def consumed_by_all(
    readers: Mapping[str, kestrel.Reader | None], span: Sequence[int]
) -> Callable[[int], bool]:
    """Tells of an item whether every reader is past it. Without readers none is.

    ``span``: the least and the greatest id of the queue, which decide whether a reader stands where
    its checkpoint says. The default reader does not count beside named ones.
    """
    if not readers:
        return lambda _item_id: False
    placed = kestrel.open_queue(span, readers).readers.values()
    return lambda item_id: all(reader.is_past(item_id) for reader in placed)


def _queue_line(log: Log, reader: str | None, record: Any, json: bool) -> str:
    if json:
        whose: dict[str, Any] = {"queue": log.queue}
        if reader is not None:
            whose["reader"] = reader
        return json_line(whose | lines.kestrel_fields(record))
    whose_text = log.queue if reader is None else f"{log.queue} reader {reader!r}"
    return f"{whose_text} {lines.kestrel_text(record)}"
