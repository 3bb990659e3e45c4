"""``journeyman storage export`` and ``import``: the store as a Parquet file, and back.

    key, value                      every key of Overhop's keyspace, in order, as bytes
    queue, status, created_at,      of a job's record, for those who query it: null in other rows
    execution_start_at, attempts,
    payload

Indexes and counters are exported for programs that read the keyspace as it is; an import makes
them from the records. Imported jobs replace those of the same id. The next ``follow`` rebuilds the
store: of the imported jobs those stay that the log has, and those of the archive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click

from journeyman.cli.errors import warn
from journeyman.cli.output import counted, quiet_option, working
from journeyman.disk import RealDisk
from journeyman.errors import EncodeError, UsageError
from journeyman.formats.keyspace import keys
from journeyman.formats.keyspace.values import JobRecord, QueueRecord
from journeyman.logs.publication import put_in_place
from journeyman.storage import Storage, Upsert
from journeyman.storage.checking import be_alone, in_batches, key_text
from journeyman.storage.position import POSITION_KEY
from journeyman.storage.records import entries_of, read_job, read_queue_record, uuid_of_job_key

if TYPE_CHECKING:
    import pyarrow as pa

_PREFIXES: Final = sorted(
    (
        keys.QUEUES,
        keys.JOBS,
        keys.QUEUE_TIMES,
        keys.QUEUE_TIMES_V1,
        keys.STATUSES,
        keys.STATUS_FIFO,
        keys.COUNTERS,
    )
)
_BATCH: Final = 2000


def _check_arrow() -> None:
    if find_spec("pyarrow") is None:
        raise UsageError("Parquet needs pyarrow: pip install 'journeyman[columnar]'")


def _schema() -> pa.Schema:
    import pyarrow as pa

    time = pa.timestamp("ns", tz="UTC")
    columns: list[tuple[str, pa.DataType]] = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("queue", pa.string()),
        ("status", pa.string()),
        ("created_at", time),
        ("execution_start_at", time),
        ("attempts", pa.int64()),
        ("payload", pa.string()),
    ]
    return pa.schema(columns)


@click.command()
@click.argument("path", type=click.Path())
@quiet_option
@click.pass_context
def export(ctx: click.Context, path: str, quiet: bool) -> None:
    """Write the store to PATH, a new Parquet file."""
    _check_arrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    disk = RealDisk()
    if disk.exists(path) or disk.is_dir(path):
        raise UsageError(f"{path} already exists: give another path")
    partial, schema, rows = f"{path}.partial", _schema(), 0
    disk.make_dirs(os.path.dirname(os.path.abspath(path)))
    try:
        with (
            Storage.from_settings(ctx.obj) as storage,
            working(f"exporting to {path}", quiet=quiet),
            pq.ParquetWriter(partial, schema) as writer,
        ):
            for batch in in_batches(_rows(storage), _BATCH):
                writer.write_table(pa.Table.from_pylist(batch, schema))
                rows += len(batch)
        put_in_place(disk, partial, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.remove(partial)
        raise
    if not quiet:
        click.echo(f"{path}: {counted(rows, 'key')} exported", err=True)


def _rows(storage: Storage) -> Iterator[dict[str, Any]]:
    with storage.backend.view() as view:
        for prefix in _PREFIXES:
            for key, value in view.scan(*keys.prefix_range(prefix)):
                yield {
                    "key": key,
                    "value": value,
                    **(_columns(key, value) if prefix == keys.JOBS else {}),
                }


def _columns(key: bytes, value: bytes) -> dict[str, Any]:
    uuid = uuid_of_job_key(key)
    record = "" if uuid is None else read_job(uuid, value)
    if isinstance(record, str):
        return {}
    return {
        "queue": record.queue,
        "status": record.status,
        "created_at": _in_range(record.created_at_ns),
        "execution_start_at": _in_range(record.execution_start_ns),
        "attempts": record.attempts_so_far,
        "payload": record.payload,
    }


def _in_range(ns: int) -> int | None:
    """Nanoseconds of a 64-bit timestamp; the value has the others."""
    return ns if -(2**63) <= ns < 2**63 else None


@click.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True), metavar="FILE...")
@quiet_option
@click.pass_context
def import_(ctx: click.Context, paths: tuple[str, ...], quiet: bool) -> None:
    """Import the jobs and queues of Parquet FILEs, or of directories of them.

    Existing jobs are replaced. Records that cannot be read or stored are named on stderr and left
    out.
    """
    _check_arrow()
    jobs = 0
    with Storage.from_settings(ctx.obj) as storage:
        be_alone(storage.backend)
        storage.backend.delete(POSITION_KEY)
        queues = {queue.name: queue for queue in storage.load_queues().queues}
        for path in _files(paths):
            with working(f"importing {path}", quiet=quiet):
                for batch in in_batches(_records(path), _BATCH):
                    queues |= {each.name: each for each in batch if isinstance(each, QueueRecord)}
                    records = [each for each in batch if isinstance(each, JobRecord)]
                    jobs += len(storage.apply([Upsert(record) for record in records]))
        storage.replace_queues(queues.values())
    if not quiet:
        click.echo(f"{counted(jobs, 'job')} imported", err=True)


def _files(paths: tuple[str, ...]) -> list[str]:
    """The files; of a directory, as `pipeline convert --to keyspace` writes it, those in it."""
    found: list[str] = []
    for path in paths:
        names = sorted(os.listdir(path)) if os.path.isdir(path) else None
        if names is None:
            found.append(path)
        else:
            found += [os.path.join(path, name) for name in names if name.endswith(".parquet")]
    return found


def _records(path: str) -> Iterator[JobRecord | QueueRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        for batch in file.iter_batches(_BATCH, columns=["key", "value"]):
            columns = (batch.column(name).to_pylist() for name in ("key", "value"))
            for key, value in zip(*columns, strict=True):
                record = _record(key, value)
                if isinstance(record, str):
                    warn(f"{key_text(key)}: left out: {record}")
                elif record is not None:
                    yield record
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UsageError(f"{path}: not a Parquet file of a store: {error}") from None


def _record(key: bytes, value: bytes) -> JobRecord | QueueRecord | str | None:
    """The imported form of an entry, or the reason against it; None: it follows from others."""
    if key.startswith(keys.QUEUES):
        return read_queue_record(key, value)
    if not key.startswith(keys.JOBS):
        return None
    uuid = uuid_of_job_key(key)
    record = "its key is not a UUID" if uuid is None else read_job(uuid, value)
    if isinstance(record, str):
        return record
    try:
        entries_of(record)
    except EncodeError as error:
        return str(error)
    return record
