"""Bulk reading of logs in a process of its own, so that its libraries do not stay in the server.

    server --pipe: what to read--> child: numpy, Arrow, compiled kernels, 250 MB of memory
           <--pipe: calls on a loader, a chunk of rows at a time--

numpy, Arrow and the compiled kernels take about 250 MB that no call gives back. The child decodes;
what it sends are plain bytes and numbers, as calls on the server's loader. It reads the next chunk
while the server loads the last one, and it has ended when the server listens.

Its imports take longer than to read a million rows. So a server that finds a large log has it
started before its own imports (``prepare``); it reads nothing until it is asked, for by then the
log is locked.

This file is both sides. The child runs it as a module and reads the same code of the package.
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

from journeyman.disk import Disk, disk_of

# A reader: files and further arguments in, messages out, of which each can be pickled.
Reader = Callable[..., Iterator[Any]]

# Below this, importing the libraries takes longer than reading with the formats.
BULK_BYTES = 8 * 1024 * 1024

PIPE_BYTES = 1024 * 1024  # with Linux's 64 kB the two would wait for each other all the time

ZTICK_READER = "journeyman.servers.ztick.bulk:pieces_of"
WORKQ_READER = "journeyman.servers.workq.bulk:calls_of"

_prepared: dict[str, subprocess.Popen[bytes]] = {}  # by reader; not asked yet


class ViewedFiles(Protocol):
    """A disk, as far as a bulk reader needs one."""

    def view(self, path: str) -> memoryview: ...


class BulkFailed(Exception):
    """The child could not do it; the log is to be read the careful way."""


def can_use(disk: Disk) -> bool:
    """Whether another process sees the same files, and there is what it needs."""
    is_seen = disk.is_shared and bool(sys.executable)
    return is_seen and all(map(importlib.util.find_spec, ("numpy", "pyarrow", "numba")))


def prepare(reader: str, path: str) -> None:
    """Start the child of this reader if the file or directory is large."""
    try:
        disk = disk_of(path)
        files = disk.scan(path).values() if disk.is_dir(path) else [disk.stat(path)]
        if sum(file.size for file in files) >= BULK_BYTES and can_use(disk):
            _prepared[reader] = _start(reader)
    except OSError:
        return  # opening the log will say what is wrong


def dismiss() -> None:
    """End the children that were prepared and not asked."""
    while _prepared:
        _end(_prepared.popitem()[1])


def read(reader: str, *arguments: Any) -> Iterator[Any]:
    """The messages of ``module:function`` called with these arguments in a child."""
    try:
        child = _prepared.pop(reader, None) or _start(reader)
    except OSError as error:
        raise BulkFailed(str(error)) from error
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with child.stdin as pipe:
            pickle.dump(arguments, pipe, pickle.HIGHEST_PROTOCOL)
        while True:
            is_last, message = pickle.load(child.stdout)
            if is_last:
                return
            yield message
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise BulkFailed(f"the process that reads the log has ended: {error!r}") from error
    finally:
        _end(child)


def _start(reader: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, reader],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.kill()
    child.wait()


def _serve(reader: str, commands: BinaryIO, answers: BinaryIO) -> None:
    name, _, function = reader.partition(":")
    module = __import__(name, fromlist=[function])
    read_all: Reader = getattr(module, function)
    module.warm_up()
    pickler = pickle.Pickler(answers, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # no value is sent twice, so none need be remembered
    for message in read_all(*pickle.load(commands)):
        pickler.dump((False, message))
        answers.flush()
    pickler.dump((True, None))
    answers.flush()


if __name__ == "__main__":
    gc.disable()  # imports are an eighth faster, and the process ends before garbage matters
    with suppress(OSError, AttributeError):  # Linux only, and as far as its limit allows
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # Printed text must not get between the messages.
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)
        _serve(sys.argv[1], sys.stdin.buffer, pipe)
