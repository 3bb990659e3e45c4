"""The files of a log that follow those which a stream knows.

    ztick     compressed --> to_compress --> active      at first; then every new active file
              active is renamed to .to_compress, folded into .compressed, removed
    workq     000000004.log --> 000000005.log            by number, without gaps
    kestrel   jobs.1700 --> jobs.1800                     by number; ids go on without gaps
    ledger    as workq; a compaction replaces the last segment that it read, and removes the others

A chain (see offsets) ends with the newest file. Each look finds that file again, by inode and
fingerprint, wherever compaction has put it, and appends what follows it. The file is *closed*, its
size final, when another has taken its place: a log syncs and leaves a file before it begins the
next.

Possible problems:

    lost history     a file was compacted, cleaned or retired before it was read, or files that the
                     stream never saw may have been: ``onLostHistory`` decides
    replaced by us   the log was compacted or cleaned offline: a note (logs/publication.py) says
                     which file took the place of the known one, and from where on it is new
    replaced         by another program: lost history too
    changed          a file that was read in part was cut or written over: always an error
    copied           all its bytes and maybe more, under the same name but another inode: the server
                     was moved to another disk, or its logs are copied here; the chain continues

ztick: is the active file the next one? If the known file is still there as ``.to_compress``, yes.
If it is gone, it was folded, and only its link is left. The log removes a file right after it
renames the ``.compressed`` that contains it. If ``.compressed`` is older than that removal, no
other file was folded since, and the active file follows. If it is younger, another file was folded,
and its records are unknown. (File times have ticks of a few milliseconds; two compactions within
one look like one.)

A listing is not atomic: a log can rotate and be compacted meanwhile.

    offset --survey--> chains extended --hold new files--> looked at again --> offset

So new files of a chain are checked again after they were linked. If the names still refer to the
same files, they did so all the time (the inode of a linked file is not reused), and the chain has
every file once. If not, the survey is repeated. If the whole log is gone, the stream reads what its
links have kept.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from journeyman.clock import SystemClock
from journeyman.disk import disk_of, is_database
from journeyman.errors import LogError
from journeyman.logs import segments
from journeyman.logs.catalog import Log
from journeyman.logs.holders import is_registered, lost_files, register
from journeyman.logs.publication import Replacement, replacement_of
from journeyman.spark.files import filesystem_of, find_source_logs
from journeyman.spark.source.options import KESTREL, LEDGER, ZTICK, SourceOptions
from journeyman.spark.streams import offsets
from journeyman.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file at a path, as of one look."""

    path: str
    size: int
    inode: int | None


@dataclass(frozen=True, slots=True)
class LogSeen:
    """One log: the files that records are appended to, in reading order."""

    name: str
    files: tuple[FileSeen, ...]
    queue: str | None = None
    partitions: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class HeldFile:
    """The facts that a hard link keeps of a file which may have left its log."""

    size: int
    changed_ns: int


def survey(options: SourceOptions) -> dict[str, LogSeen]:
    """All logs. Checkpoints of kestrel's readers are no part of a stream: they are replaced."""
    return {log.name: _look_at(options.dialect, log) for log in find_source_logs(options)}


def looked_again(dialect: str, seen_log: LogSeen) -> LogSeen:
    """Return a log as it is now; for workq and kestrel without segments begun since."""
    return replace(
        seen_log,
        files=seen_files_at(_names(dialect, seen_log.name, (f.path for f in seen_log.files))),
    )


def identities(seen_log: LogSeen) -> list[tuple[str, int | None]]:
    """Return the file that each name stands for; sizes may grow."""
    return [(file.path, file.inode) for file in seen_log.files]


def _replacement(file: offsets.FilePlace) -> Replacement | None:
    """The file that took the place of this one."""
    return replacement_of(disk_of(file.path), file.path, file.inode or 0)


def seen_files_at(paths: Iterable[str]) -> tuple[FileSeen, ...]:
    """Return the files at these paths, without paths that have none."""
    found = ((path, filesystem_of(path).find(path)) for path in paths)
    return tuple(FileSeen(path, f.size, f.identity) for path, f in found if f is not None)


def _look_at(dialect: str, log: Log) -> LogSeen:
    paths = (file.path for file in log.files if file.reader is None)
    queue = log.files[0].queue if log.files else None
    return LogSeen(log.name, seen_files_at(_names(dialect, log.name, paths)), queue, log.partitions)


def _names(dialect: str, log: str, paths: Iterable[str]) -> Iterable[str]:
    if dialect != ZTICK:
        return paths
    names = segments.ZtickNames(log)
    return names.compressed, names.to_compress, names.active


def is_same(file: offsets.FilePlace, seen_file: FileSeen) -> bool:
    """Return whether this is the file that was read; raises LogError if it is, but was changed."""
    inodes_known = file.inode is not None and seen_file.inode is not None
    if inodes_known and file.inode != seen_file.inode:
        return False
    if file.end == 0:
        return inodes_known or file.path == seen_file.path
    if _mark(seen_file.path, file.end) == file.mark:
        return True
    if inodes_known:
        what = "was cut" if seen_file.size < file.end else "was changed or replaced"
        raise LogError(
            seen_file.path,
            f"{what} in front of byte {file.end}, up to which it was read; "
            "begin a new checkpoint to read it anew",
        )
    return False


def _where_copied(place: offsets.LogPlace, seen_log: LogSeen) -> offsets.LogPlace:
    """The chain with the inodes that its files have now, where they were copied.

    A server that moves to another disk, and a program that fetches logs from other machines, keep
    bytes and names, but no inodes.
    """
    inodes = {None, *(file.inode for file in seen_log.files)}
    by_path = {file.path: file for file in seen_log.files}
    files = []
    for file in place.files:
        names = (file.path, file.path + ".to_compress")
        found = [by_path[name] for name in names if name in by_path]
        copy = next((each for each in found if _is_copy(file, each)), None)
        is_there = file.inode in inodes or file.finished
        if copy is None or is_there or _replacement(file) is not None:
            files.append(file)
        else:
            files.append(replace(file, inode=copy.inode, held=False))
    return replace(place, files=tuple(files))


def _is_copy(file: offsets.FilePlace, seen_file: FileSeen) -> bool:
    """Return whether this file begins with all that was read, and all that the link has."""
    if not file.held or file.inode is None or _mark(seen_file.path, file.end) != file.mark:
        return False
    link = offsets.held_path(file.path, file.inode)
    kept = filesystem_of(link).find(link)
    return kept is None or _mark(link, kept.size) == _mark(seen_file.path, kept.size)


def held_file(file: offsets.FilePlace) -> HeldFile | None:
    """Return the facts of the link on a file; None without one, or if it is no longer that file."""
    if not file.held or file.inode is None:
        return None
    link = offsets.held_path(file.path, file.inode)
    found = filesystem_of(link).find(link)
    if found is None or _mark(link, file.end) != file.mark:
        return None
    return HeldFile(found.size, offsets.changed_ns(link))


def mark_of(file: offsets.FilePlace) -> str | None:
    """The mark of the first ``end`` bytes of a file, wherever compaction has put it since."""
    for name in (
        file.path,
        file.path + ".to_compress",
        offsets.held_path(file.path, file.inode or 0),
    ):
        found = filesystem_of(name).find(name)
        if found is not None and found.identity == file.inode:
            return _mark(name, file.end)
    return None


def opened_path(file: offsets.FilePlace) -> str | None:
    """The name under which this very file can be opened now; None if it is gone."""
    names = [file.path, file.path + ".to_compress"]
    if file.held and file.inode is not None:
        names.insert(0, offsets.held_path(file.path, file.inode))
    for name in names:
        found = filesystem_of(name).find(name)
        if found is None or (file.inode is not None and found.identity != file.inode):
            continue
        if _mark(name, file.end) == file.mark:
            return name
    return None


def _mark(path: str, end: int) -> str:
    if end == 0:
        return ""
    try:
        with closing(filesystem_of(path).open(path)) as file:
            return offsets.fingerprint(file, end)
    except FileNotFoundError:
        return "?"  # renamed meanwhile: no mark looks like this


_HOW_TO_GO_ON = "; set onLostHistory=continue to go on with what there is"


@dataclass(frozen=True, slots=True)
class ChainKeeper:
    """Extends chains of logs of one dialect. ``forgiving``: lost history is noted, not raised."""

    dialect: str
    forgiving: bool = False
    stream: str = ""

    def extended(self, place: offsets.LogPlace, seen_log: LogSeen) -> offsets.LogPlace:
        """The chain with what has come since. Raises LogError for what is lost or replaced."""
        place = _where_copied(replace(place, files=place.still_needed()), seen_log)
        newest = place.newest
        if newest is None:
            fresh = replace(place, queue=seen_log.queue, partitions=dict(seen_log.partitions))
            return _append(fresh, seen_log.files, is_closed=self._is_closed_at_first)
        if self.dialect == ZTICK:
            return self._ztick(place, newest, seen_log)
        return self._numbered(place, newest, seen_log)

    def orphaned(self, place: offsets.LogPlace, name: str) -> offsets.LogPlace:
        """The chain of a log of which no file is there any more: read what links have kept."""
        newest = place.newest
        if newest is None or newest.final is not None:
            return replace(place, files=place.still_needed())
        held = held_file(newest)
        place = replace(place, files=place.still_needed())
        if held is None:
            return self._lost(_close(place, newest.end), name, "the log is gone")
        return _close(place, held.size)

    # --- ztick ---

    def _is_closed_at_first(self, at: int, files: tuple[FileSeen, ...]) -> bool:
        if self.dialect == ZTICK:
            return files[at].path.endswith((".compressed", ".to_compress"))
        return at + 1 < len(files)

    def _ztick(
        self, place: offsets.LogPlace, newest: offsets.FilePlace, seen_log: LogSeen
    ) -> offsets.LogPlace:
        names = segments.ZtickNames(seen_log.name)
        by_name = {file.path: file for file in seen_log.files}
        active = by_name.get(names.active)
        to_compress = by_name.get(names.to_compress)
        if active is not None and is_same(newest, active):
            return place
        following = [file for file in (to_compress, active) if file is not None]
        if to_compress is not None and is_same(newest, to_compress):
            place = _close(place, to_compress.size)
            following.remove(to_compress)
        elif not _is_resting(newest, by_name.get(names.compressed)):
            followed = self._followed(place, newest, seen_log)
            if followed is not None:
                return followed
            place = self._folded(place, newest, seen_log.name, by_name.get(names.compressed))
        return _append(
            place, tuple(following), is_closed=lambda at, files: files[at] is to_compress
        )

    def _folded(
        self,
        place: offsets.LogPlace,
        newest: offsets.FilePlace,
        name: str,
        compressed: FileSeen | None,
    ) -> offsets.LogPlace:
        """``newest`` is in the log no more; compaction must have taken it."""
        if compressed is None:
            held = held_file(newest)
            place = _close(place, newest.end if held is None else held.size)
            what = "the file that was being read is gone, and no compaction took it"
            return self._lost(place, name, f"{what}: another program replaced the log")
        if newest.path.endswith(".compressed"):
            return self._lost(place, name, "a compaction ran before its input was read")
        held = held_file(newest)
        if held is None:
            what = f"what follows byte {newest.end} of segment {newest.segment}"
            return self._lost(_close(place, newest.end), name, f"{what} was compacted unread")
        place = _close(place, held.size)
        if offsets.changed_ns(compressed.path) > held.changed_ns:
            what = f"files behind segment {newest.segment} were compacted before they were seen"
            return self._lost(place, name, what)
        return place

    # --- workq, kestrel, ledger ---

    def _numbered(
        self, place: offsets.LogPlace, newest: offsets.FilePlace, seen_log: LogSeen
    ) -> offsets.LogPlace:
        number = self._number(newest.path)
        newer = [file for file in seen_log.files if self._number(file.path) > number]
        if self.dialect == KESTREL:
            newer = _from_first_item(newer)
        present = next((file for file in seen_log.files if file.path == newest.path), None)
        is_there = present is not None and is_same(newest, present)
        if not is_there:
            followed = self._followed(place, newest, seen_log)
            if followed is not None:
                return followed
        if not newer:
            if is_there or newest.final is not None:
                return place
            held = held_file(newest)
            place = _close(place, newest.end if held is None else held.size)
            what = f"{newest.path} was replaced or removed by another program"
            place = self._lost(place, seen_log.name, what)
            files = () if present is None else (present,)
            return _append(place, files, is_closed=lambda _, __: False)
        place = self._close(place, newest, seen_log.name)
        gap = self._gap(newest, newer[0]) or self._cleaned(newer)
        if gap:
            place = self._lost(place, seen_log.name, gap)
        return _append(place, tuple(newer), is_closed=lambda at, files: at + 1 < len(files))

    def _followed(
        self, place: offsets.LogPlace, newest: offsets.FilePlace, seen_log: LogSeen
    ) -> offsets.LogPlace | None:
        """The chain across an offline compaction or cleaning of ours; None if there was none."""
        found = _replacement(newest)
        if found is None:
            return None
        begin = found.size
        new = offsets.FilePlace(
            newest.segment + 1, found.path, begin, inode=found.inode, begin=begin
        )
        mark = mark_of(new)
        held = held_file(newest)
        if held is None and newest.end < found.was:
            what = f"bytes {newest.end} to {found.was} of {newest.path} were compacted unread"
            place = self._lost(_close(place, newest.end), seen_log.name, what)
        else:
            place = _close(place, found.was if held is None else held.size)
        if mark is None:  # it was compacted in its turn, and nobody held it
            return self._followed(replace(place, files=(*place.files, new)), new, seen_log)
        new = replace(new, mark=mark, begin_mark=mark)
        return self.extended(replace(place, files=(*place.files, new)), seen_log)

    def _close(
        self, place: offsets.LogPlace, newest: offsets.FilePlace, name: str
    ) -> offsets.LogPlace:
        """Close a file that another one follows. Its size is asked for only now."""
        if newest.final is not None:
            return place
        path = opened_path(newest)
        found = None if path is None else filesystem_of(path).find(path)
        if found is None:
            what = f"what follows byte {newest.end} of {newest.path} was removed unread"
            return self._lost(_close(place, newest.end), name, what)
        return _close(place, found.size)

    def _gap(self, newest: offsets.FilePlace, following: FileSeen) -> str:
        """Return what is missing between two files, in words; empty if nothing is."""
        if self.dialect == KESTREL:
            path = opened_path(newest)
            last = None if path is None else _item_ids(path)[1]
            first = _item_ids(following.path)[0]
            if last is not None and first is not None and first > last + 1:
                return f"items {last + 1} to {first - 1} were removed unread"
            return ""
        missing = self._number(newest.path) + 1
        if self._number(following.path) == missing:
            return ""
        return f"segment {missing} was removed unread"

    def _cleaned(self, newer: list[FileSeen]) -> str:
        """Return which files lost records before they were read, as the log has noted."""
        directory = posixpath.dirname(newer[0].path)
        names = {posixpath.basename(file.path) for file in newer}
        cleaned = sorted(names.intersection(lost_files(disk_of(directory), directory, self.stream)))
        return f"{', '.join(cleaned)}: cleaned unread" if cleaned else ""

    def _number(self, path: str) -> int:
        name = path.rpartition("/")[2]
        if self.dialect == KESTREL:
            return segments.kestrel_number(name.partition(".")[0], name) or 0
        sequence = segments.ledger_sequence if self.dialect == LEDGER else segments.workq_sequence
        return sequence(name) or 0

    def _lost(self, place: offsets.LogPlace, name: str, what: str) -> offsets.LogPlace:
        if not self.forgiving:
            raise LogError(name, f"history was lost: {what}{_HOW_TO_GO_ON}")
        return replace(place, holes=place.holes + 1, lost=what)


def _append(
    place: offsets.LogPlace,
    files: tuple[FileSeen, ...],
    *,
    is_closed: Callable[[int, tuple[FileSeen, ...]], bool],
) -> offsets.LogPlace:
    newest = place.newest
    segment = 0 if newest is None else newest.segment + 1
    new = tuple(
        offsets.FilePlace(
            segment + at,
            file.path,
            inode=file.inode,
            final=file.size if is_closed(at, files) else None,
        )
        for at, file in enumerate(files)
    )
    return replace(place, files=(*place.files, *new))


def _close(place: offsets.LogPlace, size: int) -> offsets.LogPlace:
    """The newest file gets no more bytes."""
    newest = place.files[-1]
    if newest.final is not None:
        return place
    return replace(place, files=(*place.files[:-1], replace(newest, final=size)))


def _is_resting(newest: offsets.FilePlace, compressed: FileSeen | None) -> bool:
    """Return whether the newest known file is the compacted one, and still there."""
    return compressed is not None and is_same(newest, compressed)


def _from_first_item(files: list[FileSeen]) -> list[FileSeen]:
    """Return the files without empty segments in front: these say nothing of the ids, and go when
    the queue is opened."""
    first = next((at for at, f in enumerate(files) if _item_ids(f.path)[0] is not None), len(files))
    return files[first:]


def _item_ids(path: str) -> tuple[int | None, int | None]:
    """The first and the last item id in a segment."""
    import pyarrow.compute as pc

    from journeyman.columnar.kestrel.decode import iter_batches

    filesystem = filesystem_of(path)
    found = filesystem.find(path)
    with closing(filesystem.open(path)) as file:
        data = offsets.read_range(file, 0, 0 if found is None else found.size)
    first = last = None
    for chunk in iter_batches(data):
        ids = pc.drop_null(chunk.batch.column("item_id"))
        if len(ids):
            first = ids[0].as_py() if first is None else first
            last = ids[-1].as_py()
    return first, last


def register_stream(
    offset: offsets.StreamOffset, who: str, directories: Iterable[str] = ()
) -> bool:
    """Let the logs of these directories keep what is behind ``offset``; whether one is new."""
    is_new = False
    known = {posixpath.dirname(f.path) for log in offset.logs.values() for f in log.files}
    for directory in sorted(known.union(directories)):
        if "://" in directory and not is_database(directory):
            continue
        disk = disk_of(directory)
        if not disk.is_dir(directory):
            continue
        is_new = is_new or not is_registered(disk, directory, offset.stream)
        places, now_ns = offset.places_in(directory), SystemClock().now_ns()
        register(disk, directory, offset.stream, who or f"stream {offset.stream}", now_ns, places)
    return is_new


_MAX_LOOKS = 10
_REGISTER_NS = 3600 * NS_PER_S  # a stream that finds nothing new is there all the same


@dataclass(slots=True)
class Watch:
    """Looks for one query; remembers which files are needed until a batch is done."""

    options: SourceOptions
    forgiving: bool = False
    hold_files: bool = True
    _needed: set[tuple[str, int]] = field(default_factory=set)  # (directory, inode)
    _copies: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)  # new: old
    _registered_at: offsets.StreamOffset | None = None
    _registered_ns: int = 0

    def extended(self, offset: offsets.StreamOffset) -> offsets.StreamOffset:
        """The offset with every file that is there now in its chains; nothing of it read yet."""
        keeper = ChainKeeper(self.options.dialect, self.forgiving, offset.stream)
        gone_is_fine = self.forgiving or self.options.ignore_missing_files
        holds = offsets.Holds(offset.stream, self.hold_files)
        seen = survey(self.options)
        if self.hold_files and self._registered(offset, seen.values()):
            seen = survey(self.options)  # a file that left before it was registered is not missed
        logs = {}
        for name in {*offset.logs, *seen}:
            known = offset.logs.get(name, offsets.LogPlace())
            if name in seen:
                logs[name] = self._settled(keeper, holds, known, seen[name])
            else:
                logs[name] = ChainKeeper(keeper.dialect, gone_is_fine).orphaned(known, name)
        return replace(offset, logs=logs, is_origin=False, origin=None)

    def _registered(self, offset: offsets.StreamOffset, seen_logs: Iterable[LogSeen]) -> bool:
        """Register as a holder with all that is before ``offset`` done; whether that is new."""
        now_ns = SystemClock().now_ns()
        if self._registered_at == offset and now_ns - self._registered_ns < _REGISTER_NS:
            return False
        self._registered_at, self._registered_ns = offset, now_ns
        directories = {posixpath.dirname(f.path) for log in seen_logs for f in log.files}
        return register_stream(offset, self.options.holder, directories)

    def needs(self, end: offsets.StreamOffset) -> None:
        """Keep all that ``end`` speaks of until the batch that ends there is done."""
        self._needed |= {each for place in end.logs.values() for each in _places(place)}

    def needs_only(self, end: offsets.StreamOffset) -> None:
        """Whatever else was linked on the way may go."""
        self._needed.clear()
        self.needs(end)

    def release(self, end: offsets.StreamOffset) -> None:
        """A batch is done for good: let go of all files that nothing behind ``end`` needs."""
        done = {each for place in end.logs.values() for each in _places(place)}
        self._needed -= done
        self._needed -= {self._copies.pop(each) for each in done & self._copies.keys()}
        self.needs(end.without_finished())
        holds = offsets.Holds(end.stream, self.hold_files)
        for directory in {directory for directory, _ in done}:
            kept = {inode for where, inode in self._needed if where == directory}
            holds.release_all_but(directory, kept)

    def _settled(
        self,
        keeper: ChainKeeper,
        holds: offsets.Holds,
        known_place: offsets.LogPlace,
        seen_log: LogSeen,
    ) -> offsets.LogPlace:
        for _ in range(_MAX_LOOKS):
            place = keeper.extended(known_place, seen_log)
            before = {file.segment: file.inode for file in known_place.files}
            fresh = {f.segment for f in place.files if before.get(f.segment, -1) != f.inode}
            if not fresh:
                return place
            self._note_copies(place, before)
            place = self._with_links(holds, place, fresh)
            again = looked_again(keeper.dialect, seen_log)
            if identities(again) == identities(seen_log):
                return place
            seen_log = again
        raise LogError(seen_log.name, "its files change faster than they can be looked at")

    def _note_copies(self, place: offsets.LogPlace, before: Mapping[int, int | None]) -> None:
        for file in place.files:
            old = before.get(file.segment)
            if old is not None and file.inode is not None and file.inode != old:
                directory = posixpath.dirname(file.path)
                self._copies[directory, file.inode] = directory, old

    def _with_links(
        self, holds: offsets.Holds, place: offsets.LogPlace, fresh: set[int]
    ) -> offsets.LogPlace:
        """The chain with links on its new files, where links can be made."""
        files = list(place.files)
        for at, file in enumerate(files):
            if file.segment not in fresh or file.inode is None:
                continue
            if holds.hold(file.path, file.inode):
                self._needed.add((posixpath.dirname(file.path), file.inode))
                files[at] = replace(file, held=True)
        return replace(place, files=tuple(files))


def _places(place: offsets.LogPlace) -> Iterator[tuple[str, int]]:
    for file in place.files:
        if file.inode is not None:
            yield posixpath.dirname(file.path), file.inode
