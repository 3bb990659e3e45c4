"""The contract of all engines: what a store of ordered keys must do.

    with backend.view() as view:            a moment of the store: what is written meanwhile is
        view.get(key)                       not seen; any number of views at a time
        view.get_many(keys)
        view.scan(start, end, reverse=True, limit=50)

    with backend.turn() as turn:            the turn to write: one at a time, in this
        old = turn.get(key)                 process or another one; what is read is what is there
        turn.commit({key: new, gone: None})

A turn commits once, as its last deed: all of its changes or none, durable when the ``with`` ends.
So a change that depends on what was read (a counter plus one) is right however many writers there
are. A turn that raises, or commits nothing, changes nothing.

Keys are bytes in the order of their bytes, 1 to MAX_KEY_BYTES long; ranges are
``start <= key < end``. What a scan gives is read while it is asked for, inside the ``with``.

The same suite runs on every engine: tests.contract.storage_contract.

What can be asked of an engine besides its name and place.

Where a store is: ``storage.path`` as it is written -> a directory, or an address.

    ~/x, ~//x        $HOME/x          $HOME, $HOME/x     the home directory, or x in it
    anything else    as it is         (also ~ alone, ~someone, and $HOMEX)
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeAlias

from journeyman.config import StorageMode
from journeyman.disk import Lock, RealDisk
from journeyman.errors import LogLocked, StorageError, StorageLocked, UsageError


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None leaves it to the engine."""

    cache_capacity_bytes: int | None = None
    mode: StorageMode | None = None


def expanded(path: str, environ: Mapping[str, str] | None = None) -> str:
    """The path with its home directory put in. Raises UsageError if there is none."""
    environ = os.environ if environ is None else environ
    if path.startswith("~/"):
        while path.startswith("~/"):
            path = path[2:].lstrip("/")
        return os.path.join(_home(environ), path)
    if path == "$HOME" or path.startswith("$HOME/"):
        return os.path.join(_home(environ), path[len("$HOME") :].lstrip("/"))
    return path


def _home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME")
    if not home:
        raise UsageError("cannot resolve storage.path because HOME is not set")
    return home


Entry: TypeAlias = tuple[bytes, bytes]
# None removes the key; one that is not there may be removed.
Changes: TypeAlias = Mapping[bytes, bytes | None]


class StoreReader(ABC):
    """Reads the store."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if it is not there."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of some keys, in their order."""
        return [self.get(key) for key in keys]

    @abstractmethod
    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[Entry]:
        """Entries with ``start <= key < end``, from the first on, or from the last if reversed."""


class Turn(StoreReader):
    """Reads the store, and changes it once."""

    @abstractmethod
    def commit(self, changes: Changes) -> None:
        """Make these changes when the turn ends. Nothing is read or committed after it."""


class Backend(ABC):
    """An open store. All of it may be used by several threads at once."""

    name: str

    @abstractmethod
    def view(self) -> AbstractContextManager[StoreReader]:
        """A moment of the store."""

    @abstractmethod
    def turn(self) -> AbstractContextManager[Turn]:
        """The turn to write, once those before are over. Not to be asked for inside a turn."""

    @abstractmethod
    def flush(self) -> None:
        """Whatever was written is safe from a power cut when this returns."""

    @abstractmethod
    def close(self) -> None:
        """No more of it. A second time does nothing."""

    def entries_about(self) -> int:
        """How many entries there are, if the engine knows that without counting; else 0."""
        return 0

    def be_alone(self) -> None:  # noqa: B027 - what is in memory is alone
        """Keep out all others that ask for this, as long as it is open. StorageLocked: one is in.

        For a server, and for what must not run beside one. If another gets in all the same, because
        a lock was lost, no write of this one succeeds any more: StorageLocked.
        """

    # -- the same in one call --

    def get(self, key: bytes) -> bytes | None:
        with self.view() as view:
            return view.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.write({key: value})

    def delete(self, key: bytes) -> None:
        self.write({key: None})

    def write(self, changes: Changes) -> None:
        """An atomic batch that depends on nothing that is there."""
        with self.turn() as turn:
            turn.commit(changes)


LOCK_NAME: Final = "workq.lock"


def lock_directory(directory: str) -> Lock:
    """Held until it is released or the process ends. StorageLocked: another process has it."""
    try:
        return RealDisk().lock(f"{directory}/{LOCK_NAME}")
    except LogLocked as error:
        raise StorageLocked(directory, "a server has its jobs here") from error
    except OSError as error:
        raise StorageError(directory, f"{LOCK_NAME}: {error.strerror or error}") from error
