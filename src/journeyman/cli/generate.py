"""``journeyman generate``: a realistic log, the same bytes for the same seed.

For tests, benchmarks and trying the other commands out. What is made verifies clean.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

import click

from journeyman.cli import output
from journeyman.cli.synthetic import (
    Plan,
    SyntheticBytes,
    kestrel_pieces,
    workq_pieces,
    ztick_pieces,
)
from journeyman.disk import AppendFile, Disk, disk_of
from journeyman.errors import UsageError
from journeyman.formats.workq import MAX_PAYLOAD_BYTES
from journeyman.logs import segments
from journeyman.logs.catalog import DIALECTS, KESTREL, WORKQ, ZTICK

DEFAULT_START = "2026-01-01T00:00:00Z"
MAX_RECORDS = 1_000_000_000
MIN_SEGMENT_BYTES = 64
_SEGMENT_BYTES = {ZTICK: 0, WORKQ: 64 * 1024 * 1024, KESTREL: 16 * 1024 * 1024}
_DEFAULT_PATH = {ZTICK: "logfile", WORKQ: "cmdlog", KESTREL: "journal"}
_RECORDS_PER_ID = {ZTICK: 4, WORKQ: 3, KESTREL: 1}
_WORKQ_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_BAR_FROM_RECORDS = 200_000

# Options that only some dialects have.
_MEANT_FOR = {
    "ids": (ZTICK, WORKQ),
    "payload_bytes": (WORKQ, KESTREL),
    "segment_bytes": (WORKQ, KESTREL),
    "rules": (ZTICK,),
    "queue": (WORKQ, KESTREL),
    "readers": (KESTREL,),
}


@click.command()
@click.argument("dialect", type=click.Choice(DIALECTS), metavar="DIALECT")
@click.argument("path", type=click.Path(), required=False)
@click.option(
    "--records",
    type=click.IntRange(0, MAX_RECORDS),
    required=True,
    help="Records to write (kestrel: items).",
)
@click.option(
    "--ids",
    type=click.IntRange(1, MAX_RECORDS),
    help="Different jobs. [default: a quarter of the records for ztick, a third for workq]",
)
@click.option(
    "--removals",
    type=output.FiniteRange(0, 1),
    default=0.2,
    show_default=True,
    help="ztick: share of removals; workq: of finished jobs deleted; kestrel: of items read.",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(0, MAX_PAYLOAD_BYTES),
    default=100,
    show_default=True,
    help="Size of a job's payload or an item's data.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Another seed gives another log."
)
@click.option(
    "--segment-bytes",
    type=click.IntRange(MIN_SEGMENT_BYTES),
    help="Size at which a segment ends. [default: 64 MiB for workq, 16 MiB for kestrel]",
)
@click.option(
    "--rules", type=click.IntRange(0), default=12, show_default=True, help="Rules, set first."
)
@click.option(
    "--queue", default="jobs", show_default=True, help="Name of the queue (workq: of the jobs)."
)
@click.option(
    "--readers", type=click.IntRange(0, 1000), default=1, show_default=True, help="Checkpoints."
)
@click.option(
    "--start",
    type=output.MOMENT,
    default=DEFAULT_START,
    show_default=True,
    help="When the log begins: ISO 8601, nanoseconds or `now`.",
)
@click.option("--force", is_flag=True, help="Replace an existing log, unless it is in use.")
@output.format_options
@output.quiet_option
@click.pass_context
def generate(
    ctx: click.Context,
    dialect: str,
    path: str | None,
    records: int,
    ids: int | None,
    removals: float,
    payload_bytes: int,
    seed: int,
    segment_bytes: int | None,
    rules: int,
    queue: str,
    readers: int,
    start: int,
    force: bool,
    format_: str,
    json_: bool,
    quiet: bool,
) -> None:
    """Write a realistic log of DIALECT to PATH.

    PATH is a file for ztick (by default ./logfile) and a directory for workq (./cmdlog) and kestrel
    (./journal). The same options give the same bytes. An existing log is replaced only
    with --force.
    """
    for name, dialects in _MEANT_FOR.items():
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and dialect not in dialects:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} means nothing for {dialect}: leave it out")
    path = path or _DEFAULT_PATH[dialect]
    if start < 0:
        raise UsageError("--start must not be before 1970")
    _check_queue(dialect, queue)
    plan = Plan(
        records=records,
        ids=ids or max(1, records // _RECORDS_PER_ID[dialect]),
        removals=removals,
        payload_bytes=payload_bytes,
        seed=seed,
        segment_bytes=segment_bytes or _SEGMENT_BYTES[dialect],
        rules=rules,
        queue=queue,
        readers=readers,
        start_ns=start,
    )
    disk = disk_of(path)
    directory = posixpath.dirname(path) or "." if dialect == ZTICK else path
    _make_room(disk, dialect, path, directory, queue, force)
    sizes = _write(disk, directory, _pieces(dialect, path, plan), records, quiet)
    if not quiet:
        _report(output.as_json(format_, json_), dialect, path, records, sizes)


def _check_queue(dialect: str, queue: str) -> None:
    if dialect == KESTREL:
        segments.check_queue_name(queue)
    if dialect == WORKQ and not _WORKQ_NAME.fullmatch(queue):
        raise UsageError(f"{queue!r} is not a workq name: use 1 to 255 letters, digits, `_.-`")


def _pieces(dialect: str, path: str, plan: Plan) -> Iterator[SyntheticBytes]:
    if dialect == ZTICK:
        return ztick_pieces(posixpath.basename(path), plan)
    if dialect == WORKQ:
        return workq_pieces(plan)
    return kestrel_pieces(plan)


def _make_room(
    disk: Disk, dialect: str, path: str, directory: str, queue: str, force: bool
) -> None:
    """Refuse to touch a log that is there, or, with --force, remove it under its lock."""
    if dialect == ZTICK and disk.is_dir(path):
        raise IsADirectoryError(21, "Is a directory", path)
    if disk.exists(directory) and not disk.is_dir(directory):
        raise NotADirectoryError(20, "Not a directory", directory)
    existing = _existing(disk, dialect, path, directory, queue)
    if not existing:
        disk.make_dirs(directory)
        return
    if not force:
        raise UsageError(f"{existing[0]} already exists: choose another path or give --force")
    lock = disk.lock(_lock_path(dialect, path, directory, queue))
    try:
        for each in existing:
            disk.remove(each)
        disk.sync_dir(directory)
    finally:
        lock.release()


def _existing(disk: Disk, dialect: str, path: str, directory: str, queue: str) -> list[str]:
    if dialect == ZTICK:
        return segments.ztick_files(disk, path)
    names = segments.names_in(disk, directory)
    if dialect == WORKQ:
        own = segments.workq_segments(names)
    else:
        own = [
            *segments.kestrel_segments(queue, names),
            *segments.kestrel_readers(queue, names).values(),
        ]
    return [posixpath.join(directory, name) for name in own]


def _lock_path(dialect: str, path: str, directory: str, queue: str) -> str:
    if dialect == ZTICK:
        return segments.ZtickNames(path).lock
    name = segments.APPEND_LOCK if dialect == WORKQ else segments.kestrel_lock_name(queue)
    return posixpath.join(directory, name)


def _write(
    disk: Disk, directory: str, pieces: Iterator[SyntheticBytes], records: int, quiet: bool
) -> dict[str, int]:
    """Write the pieces; answer with the size of each file."""
    sizes: dict[str, int] = {}
    done = 0
    file: AppendFile | None = None
    with output.progress("generating", records, quiet=quiet, worth=_BAR_FROM_RECORDS) as advance:
        for piece in pieces:
            path = posixpath.join(directory, piece.file)
            if file is None or file.path != path:
                _finish(file)
                file = disk.open_append(path)
            file.write(piece.data)
            sizes[path] = file.size()
            done += piece.records
            advance(done)
    _finish(file)
    disk.sync_dir(directory)
    return sizes


def _finish(file: AppendFile | None) -> None:
    if file is not None:
        file.sync()
        file.close()


def _report(as_json_: bool, dialect: str, path: str, records: int, sizes: dict[str, int]) -> None:
    total = sum(sizes.values())
    files = [{"file": file, "size": size} for file, size in sizes.items()]
    report = {"dialect": dialect, "path": path, "records": records, "size": total, "files": files}
    text = (
        f"{path}: {output.counted(records, 'record')}, {total} bytes "
        f"in {output.counted(len(files), 'file')} ({dialect})"
    )
    with output.Output() as out:
        out.line(output.json_line(report) if as_json_ else text)
