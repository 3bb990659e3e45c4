"""The engine ``memory``: keys in sorted chunks; lost when it is closed.

    [ (a b c ...) (g h ...) (k l m ...) ]      each chunk: sorted keys, and their values

A commit makes a new list of chunks and copies those that change; nothing that a view holds is ever
changed. So a view is the list that was there when it began, and readers and writers never wait for
each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from threading import Lock
from typing import Final

from journeyman.errors import StorageClosed
from journeyman.storage import contract

_CHUNK_KEYS: Final = 256


@dataclass(frozen=True, slots=True)
class _Chunk:
    keys: list[bytes]
    values: list[bytes]


@dataclass(frozen=True, slots=True)
class _Chunks:
    """All chunks in order, none of them empty, with the first key of each."""

    firsts: list[bytes]
    chunks: list[_Chunk]

    def at(self, key: bytes) -> int:
        """The index of the chunk where a key is, or would be."""
        return max(bisect_right(self.firsts, key) - 1, 0)


class _Moment(contract.Turn):
    def __init__(self, chunks: _Chunks) -> None:
        self._all = chunks
        self.changes: contract.Changes = {}

    def get(self, key: bytes) -> bytes | None:
        if not self._all.chunks:
            return None
        chunk = self._all.chunks[self._all.at(key)]
        at = bisect_left(chunk.keys, key)
        return chunk.values[at] if at < len(chunk.keys) and chunk.keys[at] == key else None

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[contract.Entry]:
        return islice((self._backward if reverse else self._forward)(start, end), limit)

    def _forward(self, start: bytes, end: bytes) -> Iterator[contract.Entry]:
        for chunk in self._all.chunks[self._all.at(start) :]:
            first, behind = bisect_left(chunk.keys, start), bisect_left(chunk.keys, end)
            yield from zip(chunk.keys[first:behind], chunk.values[first:behind], strict=True)
            if behind < len(chunk.keys):
                return

    def _backward(self, start: bytes, end: bytes) -> Iterator[contract.Entry]:
        for number in range(self._all.at(end), self._all.at(start) - 1, -1):
            for chunk in self._all.chunks[number : number + 1]:
                first, behind = bisect_left(chunk.keys, start), bisect_left(chunk.keys, end)
                for at in range(behind - 1, first - 1, -1):
                    yield chunk.keys[at], chunk.values[at]

    def commit(self, changes: contract.Changes) -> None:
        self.changes = changes


class MemoryBackend(contract.Backend):
    """A store of this process."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = Lock()
        self._all: _Chunks | None = _Chunks([], [])

    @contextmanager
    def view(self) -> Iterator[contract.StoreReader]:
        yield _Moment(self._open())

    @contextmanager
    def turn(self) -> Iterator[contract.Turn]:
        with self._lock:
            turn = _Moment(self._open())
            yield turn
            self._all = _changed(self._open(), turn.changes)

    def flush(self) -> None:
        """There is nothing safer than memory here."""
        self._open()

    def close(self) -> None:
        with self._lock:
            self._all = None

    def _open(self) -> _Chunks:
        if self._all is None:
            raise StorageClosed("memory", "the store was closed")
        return self._all


def _changed(before: _Chunks, changes: contract.Changes) -> _Chunks:
    chunks = list(before.chunks) or [_Chunk([], [])]
    for number, group in groupby(sorted(changes), before.at):
        entries = dict(zip(chunks[number].keys, chunks[number].values, strict=True))
        for key in group:
            value = changes[key]
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
        keys = sorted(entries)
        chunks[number] = _Chunk(keys, [entries[key] for key in keys])
    chunks = [part for chunk in chunks for part in _split(chunk)]
    return _Chunks([chunk.keys[0] for chunk in chunks], chunks)


def _split(chunk: _Chunk) -> list[_Chunk]:
    """A chunk in pieces of a good size; none if it is empty."""
    size = len(chunk.keys)
    if size <= 2 * _CHUNK_KEYS:
        return [chunk] if size else []
    return [
        _Chunk(chunk.keys[at : at + _CHUNK_KEYS], chunk.values[at : at + _CHUNK_KEYS])
        for at in range(0, size, _CHUNK_KEYS)
    ]
