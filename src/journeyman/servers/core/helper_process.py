"""Helper processes: for work that holds the interpreter for long, or whose libraries must not stay.

    server --pipe: (function, arguments)--> helper: calls that function of its module
           <--pipe: any number of (PART, message), if the function is a generator,
                    then (DONE, answer), (FAILED, reason) or (NO_MEMORY, "")--

Each message is its size in 8 bytes, then a pickle. A helper answers one request after another, and
ends with its standard input. If memory runs out, the kernel ends a helper before the server.

This file is both sides. The helper runs it as a module and reads the same code of the package.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from asyncio.subprocess import Process

PART, DONE, FAILED, NO_MEMORY = "part", "done", "failed", "no memory"

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # the limit of an answer awaited in the server's loop
PIPE_BYTES = 1024 * 1024  # with Linux's 64 kB the two would wait for each other all the time
_SIZE_BYTES = 8

# Else pools and threads that are not used take part of a helper's memory.
_SPARING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
# These are imported by pyarrow and numba if installed: up to half a second, for nothing used here.
_NOT_NEEDED = ("pandas", "yaml", "cffi")


class HelperFailed(Exception):
    """The helper could not do it."""


class HelperLost(HelperFailed):
    """The helper has ended, or its answers cannot be followed any more."""


class HelperNeedsMemory(HelperFailed):
    """The question does not fit into the helper's memory."""


class Helper(NamedTuple):
    """A helper that can be started: the functions of ``module`` can be called in it.

    If the module has a ``warm_up``, it is called before the first request, a ``close`` at the end.
    """

    module: str
    memory_bytes: int = 0  # 0: no limit
    niceness: int = 0

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-P", "-m", __name__, *map(str, self)]

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )

    async def start_in_loop(self) -> Process:
        import asyncio  # a server starts its bulk readers before this is imported

        return await asyncio.create_subprocess_exec(
            *self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            limit=MAX_ANSWER_BYTES,
        )


def _environment() -> dict[str, str]:
    return os.environ | _SPARING | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def parts_of(helper: subprocess.Popen[bytes], function: str, *arguments: Any) -> Iterator[Any]:
    """The values that this generator yields in the helper. HelperFailed if it was cut short."""
    assert helper.stdin is not None
    assert helper.stdout is not None
    try:
        send(helper.stdin, (function, arguments))
        while True:
            outcome, answer = receive(helper.stdout)
            if outcome != PART:
                break
            yield answer
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise HelperLost(f"the helper process has ended: {error!r}") from error
    _check(outcome, answer)


async def answer_of(helper: Process, function: str, *arguments: Any) -> Any:
    """The value that this function returns in the helper. HelperFailed if it cannot."""
    assert helper.stdin is not None
    assert helper.stdout is not None
    try:
        request = pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
        helper.stdin.write(len(request).to_bytes(_SIZE_BYTES) + request)
        await helper.stdin.drain()
        size = int.from_bytes(await helper.stdout.readexactly(_SIZE_BYTES))
        if size > MAX_ANSWER_BYTES:
            raise HelperLost("the answer is too large")
        outcome, answer = pickle.loads(await helper.stdout.readexactly(size))
    except (OSError, EOFError, RuntimeError) as error:  # uvloop: the pipe's handler is closed
        raise HelperLost("the helper process has ended") from error
    _check(outcome, answer)
    return answer


def _check(outcome: str, answer: Any) -> None:
    if outcome == NO_MEMORY:
        raise HelperNeedsMemory
    if outcome == FAILED:
        raise HelperFailed(answer)


def end(helper: subprocess.Popen[bytes]) -> None:
    for pipe in (helper.stdin, helper.stdout):
        if pipe is not None:
            with suppress(OSError):  # the helper may have ended before it read all
                pipe.close()
    helper.kill()
    helper.wait()


def send(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(len(data).to_bytes(_SIZE_BYTES))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message; EOFError if there is none."""
    size = int.from_bytes(_read_exactly(pipe, _SIZE_BYTES))
    return pickle.loads(_read_exactly(pipe, size))


def _read_exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


# -- in the helper --


def serve(module: Any, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    while True:
        try:
            name, arguments = receive(requests)
        except EOFError:
            return
        outcome, answer = DONE, None
        try:
            answer = getattr(module, name)(*arguments)
            if isinstance(answer, Iterator):
                for part in answer:
                    send(answers, (PART, part))
                answer = None
        except MemoryError:
            outcome, answer = NO_MEMORY, ""
        except Exception as error:  # noqa: BLE001 - the server reports it
            outcome, answer = FAILED, f"{type(error).__name__}: {error}"
        send(answers, (outcome, answer))
        if not gc.isenabled():  # while libraries load it finds nothing; what is there now stays
            gc.freeze()
            gc.enable()


class _Hidden:
    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name in _NOT_NEEDED:
            raise ModuleNotFoundError(name)


def _limit(memory_bytes: int, niceness: int) -> None:
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    os.nice(niceness)
    # Not RLIMIT_AS: that counts libraries, and what allocators reserve and never use.
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if memory_bytes and (most == resource.RLIM_INFINITY or memory_bytes < most):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, most))


def _main(module: str, memory_bytes: str, niceness: str) -> None:
    gc.disable()  # imports are an eighth faster
    _limit(int(memory_bytes), int(niceness))
    sys.meta_path.insert(0, _Hidden)
    with suppress(OSError, AttributeError):  # Linux only, and as far as its limit allows
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # Printed text must not get between the messages.
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)
        functions = import_module(module)
        getattr(functions, "warm_up", int)()
        serve(functions, sys.stdin.buffer, pipe)
        getattr(functions, "close", int)()


if __name__ == "__main__":
    _main(*sys.argv[1:])
