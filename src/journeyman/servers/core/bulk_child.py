"""Bulk reading of logs in a process of its own, so that its libraries do not stay in the server.

    server --pipe: what to read--> child: numpy, Arrow, compiled kernels, 250 MB of memory
           <--pipe: calls on a loader, a chunk of rows at a time--

numpy, Arrow and the compiled kernels take about 250 MB that no call gives back. The child decodes;
what it sends are plain bytes and numbers, as calls on the server's loader. It reads the next chunk
while the server loads the last one, and it has ended when the server listens.

This file is both sides. The child runs it as a module and reads the same code of the package.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from journeyman.disk import Disk, RealDisk

# A reader: files and further arguments in, messages out, of which each can be pickled.
Reader = Callable[..., Iterator[Any]]


class BulkFailed(Exception):
    """The child could not do it; the log is to be read the careful way."""


def can_use(disk: Disk) -> bool:
    """Whether another process sees the same files, and there is what it needs."""
    is_seen = isinstance(disk, RealDisk) and bool(sys.executable)
    return is_seen and all(map(importlib.util.find_spec, ("numpy", "pyarrow", "numba")))


def read(reader: str, *arguments: Any) -> Iterator[Any]:
    """The messages of ``module:function`` called with these arguments in a child."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, reader],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
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
        child.stdout.close()
        child.kill()
        child.wait()


def _serve(reader: str, commands: BinaryIO, answers: BinaryIO) -> None:
    module, _, function = reader.partition(":")
    read_all: Reader = getattr(__import__(module, fromlist=[function]), function)
    pickler = pickle.Pickler(answers, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # no value is sent twice, so none need be remembered
    for message in read_all(*pickle.load(commands)):
        pickler.dump((False, message))
        answers.flush()
    pickler.dump((True, None))
    answers.flush()


if __name__ == "__main__":
    # Printed text must not get between the messages.
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)
        _serve(sys.argv[1], sys.stdin.buffer, pipe)
