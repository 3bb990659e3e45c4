"""Part files -> a log on a filesystem of pyarrow or fsspec: what can be promised there.

A file appears whole when it is closed, on object stores. There are no locks, and nothing that
changes several files at once. So:

    ztick               one file; it is the old log or the new one
    workq, keyspace     files are copied one after the other, then older ones go: a reader in
    kestrel             between sees some of them, and so does one behind a write that was killed
                        in the middle. Write to a new place, and point readers there when it is done
    in use or not       nobody asks; do not write to where a server writes

The names, and what append and overwrite mean, are as on a local disk. Appending to a queue of
kestrel does not look at the ids that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.formats.framing import Buffer
from journeyman.formats.keyspace.file import HEADER as KEYSPACE_HEADER
from journeyman.formats.workq import HEADER as WORKQ_HEADER
from journeyman.logs.segments import (
    ZtickNames,
    kestrel_number,
    kestrel_reader_name,
    kestrel_readers,
    kestrel_segment_name,
    kestrel_segments,
    numbered_name,
    workq_segments,
    workq_sequence,
)
from journeyman.spark.files import remote_of
from journeyman.spark.sinks.dialects import SUFFIX, file_name
from journeyman.spark.sinks.options import SinkOptions
from journeyman.spark.sinks.parts import header_of
from journeyman.spark.sinks.staging import Part, PartsWritten, StagedStream
from journeyman.units import NS_PER_MS


def commit(
    options: SinkOptions, overwrite: bool, staging: str, messages: Sequence[PartsWritten]
) -> None:
    """Copy the parts to their places, then remove what they replace."""
    job = _Job(options, overwrite, staging, messages)
    job.run()
    job.store.remove_tree(staging)


def abort(staging: str) -> None:
    remote_of(staging).remove_tree(staging)


class _Job:
    def __init__(
        self, options: SinkOptions, overwrite: bool, staging: str, messages: Sequence[PartsWritten]
    ) -> None:
        self._staging = staging
        self.store = remote_of(options.path)
        self._options = options
        self._path = options.path
        self._overwrite = overwrite
        self._parts: dict[StagedStream, list[Part]] = {}
        for message in messages:
            for part in message.parts:
                self._parts.setdefault(part.stream, []).append(part)

    def run(self) -> None:
        match self._options.dialect:
            case "ztick":
                self._ztick()
            case "workq":
                there = workq_segments(self.store.names(self._path))
                last = 0 if self._overwrite or not there else workq_sequence(there[-1]) or 0
                names = map(numbered_name, range(last + 1, last + 1 + self._count()))
                self._place_all(names, there, WORKQ_HEADER)
            case "keyspace":
                there = [n for n in self.store.names(self._path) if n.endswith(SUFFIX)]
                if there and not self._overwrite:
                    raise UsageError(
                        f"{self._path} holds a keyspace: write elsewhere, or overwrite"
                    )
                self._place_all(map(file_name, range(self._count())), there, KEYSPACE_HEADER)
            case _:
                for queue in sorted({stream.queue or "" for stream in self._parts}):
                    self._kestrel(queue)

    def _count(self) -> int:
        return max(len(self._parts.get(StagedStream(), ())), 1)

    def _ztick(self) -> None:
        names = ZtickNames(self._path)
        sources = [part.path for part in self._parts.get(StagedStream(), ())]
        if not self._overwrite and self.store.find(names.active) is not None:
            if not sources:
                return
            # Not every store lets a file be read while another takes its place.
            together = f"{self._staging}/log"
            self.store.write_whole(together, self._joined([names.active, *sources], 0))
            sources = [together]
        self.store.write_whole(names.active, self._joined(sources, 0))
        for older in (names.compressed, names.to_compress):
            if self._overwrite and self.store.find(older) is not None:
                self.store.remove(older)

    def _place_all(self, names: Iterable[str], there: Sequence[str], header: bytes) -> None:
        parts = self._parts.get(StagedStream(), [])
        if not parts and there and not self._overwrite:
            return
        placed = set()
        contents: list[Iterable[Buffer]] = [self.store.read(part.path) for part in parts]
        for name, pieces in zip(names, contents or [[header]], strict=True):
            self.store.write_whole(f"{self._path}/{name}", pieces)
            placed.add(name)
        self._remove(name for name in there if self._overwrite and name not in placed)

    def _kestrel(self, queue: str) -> None:
        there = self.store.names(self._path)
        old = [*kestrel_segments(queue, there), *kestrel_readers(queue, there).values()]
        highest = max((kestrel_number(queue, name) or 0 for name in there), default=0)
        number = max(highest + 1, SystemClock().now_ns() // NS_PER_MS)
        placed = set()
        for stream, parts in self._parts.items():
            if stream.queue != queue:
                continue
            if stream.reader is None:
                names = [kestrel_segment_name(queue, number + at) for at in range(len(parts))]
                groups = [[part.path] for part in parts]
            else:
                names, groups = (
                    [kestrel_reader_name(queue, stream.reader)],
                    [[p.path for p in parts]],
                )
            header = len(header_of("kestrel", stream))
            for name, paths in zip(names, groups, strict=True):
                self.store.write_whole(f"{self._path}/{name}", self._joined(paths, header))
                placed.add(name)
        self._remove(name for name in old if self._overwrite and name not in placed)

    def _joined(self, paths: Sequence[str], header_bytes: int) -> Iterator[bytes]:
        for at, path in enumerate(paths):
            yield from self.store.read(path, header_bytes if at else 0)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.store.remove(f"{self._path}/{name}")
