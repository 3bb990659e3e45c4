"""Part files -> a ztick log: all of it in the one file at its path.

    append      active = active + parts        .compressed and .to_compress stay as they are
    overwrite   active = parts                 and they go

Either is one rename at the end. Before an overwrite the older files are folded into the active one,
for otherwise they would load beside the new file after a crash, or be gone beside the old one:

    step                                                a crash behind it loads as
    0                                                   C, T, A
    1 active = C + T + A, by a rename                   C, T, C, T, A
    2 remove .compressed, then .to_compress             T, C, T, A; then C, T, A
    3 active = parts, by a rename                       the new log

As the last record of a key wins, all of these but the last are the log as it was.
"""

from __future__ import annotations

from journeyman.columnar.ztick.decode import hop
from journeyman.errors import UsageError
from journeyman.formats.ztick import CODEC
from journeyman.logs.publication import put_in_place, remove_durably
from journeyman.logs.segments import ZtickNames
from journeyman.spark.sinks.commit import Write, join_parts, locked, settle_tail
from journeyman.spark.sinks.staging import SinkDisk, Stream


def check_free(disk: SinkDisk, path: str) -> None:
    """Raises LogLocked if the log is in use, UsageError if no log can be there."""
    if disk.is_dir(path):
        raise UsageError(f"{path} is a directory: give the path of the logfile in it")
    names = ZtickNames(path)
    if disk.exists(names.lock):
        with locked(disk, path, [names.lock]):
            pass


def commit(write: Write) -> None:
    disk, names = write.disk, ZtickNames(write.options.path)
    disk.make_dirs(names.directory)
    check_free(disk, names.active)
    with locked(disk, names.active, [names.lock]):
        parts = [part.path for part in write.parts(Stream())]
        before = None
        if write.overwrite:
            _fold_older_files(write, names)
        elif disk.exists(names.active):
            if not parts:
                return
            settle_tail(disk, CODEC, hop, names.active)
            # What was nothing but damage is gone now.
            before = names.active if disk.exists(names.active) else None
        whole = join_parts(write, CODEC, hop, parts, "log", before=before)
        put_in_place(disk, whole, names.active)


def _fold_older_files(write: Write, names: ZtickNames) -> None:
    disk = write.disk
    older = [path for path in (names.compressed, names.to_compress) if disk.exists(path)]
    if not older:
        return
    files = [*older, names.active] if disk.exists(names.active) else older
    for path in files:
        settle_tail(disk, CODEC, hop, path)
    files = [path for path in files if disk.exists(path)]
    together = write.staged("together")
    disk.concatenate([(path, 0) for path in files], together)
    put_in_place(disk, together, names.active)
    for path in older:
        if disk.exists(path):
            remove_durably(disk, path)
