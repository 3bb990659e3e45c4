"""One look at all logs of a stream: every chain extended by what has come, and links made on it.

    offset --survey--> chains extended --hold new files--> looked at again --> offset

The second look proves the first, see survey. A log that is gone altogether is read to the end of
what links have kept of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from journeyman.errors import LogError
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.streams.chains import ChainKeeper
from journeyman.spark.streams.holds import Holds
from journeyman.spark.streams.offsets import LogPlace, StreamOffset
from journeyman.spark.streams.survey import LogSeen, identities, looked_again, survey

_MAX_LOOKS = 10


@dataclass(slots=True)
class Watch:
    """Looks for one query; remembers which files are needed until a batch is done."""

    options: SourceOptions
    forgiving: bool = False
    hold_files: bool = True
    _needed: set[tuple[str, int]] = field(default_factory=set)  # (directory, inode)

    def extended(self, offset: StreamOffset) -> StreamOffset:
        """The offset with every file that is there now in its chains; nothing of it read yet."""
        keeper = ChainKeeper(self.options.dialect, self.forgiving)
        gone_is_fine = self.forgiving or self.options.ignore_missing_files
        holds = Holds(offset.stream, self.hold_files)
        seen = survey(self.options)
        logs = {}
        for name in {*offset.logs, *seen}:
            known = offset.logs.get(name, LogPlace())
            if name in seen:
                logs[name] = self._settled(keeper, holds, known, seen[name])
            else:
                logs[name] = ChainKeeper(keeper.dialect, gone_is_fine).orphaned(known, name)
        return replace(offset, logs=logs, is_origin=False, origin=None)

    def needs(self, end: StreamOffset) -> None:
        """Nothing that ``end`` speaks of may go before the batch that ends there is done."""
        self._needed |= {each for place in end.logs.values() for each in _places(place)}

    def needs_only(self, end: StreamOffset) -> None:
        """Whatever else was linked on the way may go."""
        self._needed.clear()
        self.needs(end)

    def release(self, end: StreamOffset) -> None:
        """A batch is done for good: let go of all files that nothing behind ``end`` needs."""
        done = {each for place in end.logs.values() for each in _places(place)}
        self._needed -= done
        self.needs(end.without_finished())
        holds = Holds(end.stream, self.hold_files)
        for directory in {directory for directory, _ in done}:
            kept = {inode for where, inode in self._needed if where == directory}
            holds.release_all_but(directory, kept)

    def _settled(
        self, keeper: ChainKeeper, holds: Holds, known: LogPlace, seen: LogSeen
    ) -> LogPlace:
        for _ in range(_MAX_LOOKS):
            place = keeper.extended(known, seen)
            fresh = {file.segment for file in place.files} - {f.segment for f in known.files}
            if not fresh:
                return place
            place = self._held(holds, place, fresh)
            again = looked_again(keeper.dialect, seen)
            if identities(again) == identities(seen):
                return place
            seen = again
        raise LogError(seen.name, "its files change faster than they can be looked at")

    def _held(self, holds: Holds, place: LogPlace, fresh: set[int]) -> LogPlace:
        """The chain with links on its new files, where links can be made."""
        files = list(place.files)
        for at, file in enumerate(files):
            if file.segment not in fresh or file.inode is None:
                continue
            if holds.hold(file.path, file.inode):
                self._needed.add((posixpath.dirname(file.path), file.inode))
                files[at] = replace(file, held=True)
        return replace(place, files=tuple(files))


def _places(place: LogPlace) -> Iterator[tuple[str, int]]:
    for file in place.files:
        if file.inode is not None:
            yield posixpath.dirname(file.path), file.inode
