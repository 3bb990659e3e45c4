"""One started program: its process group, its output and its end, as events of the event loop.

    Child(argv, env, output, when_drained)    the process runs when this returns
    child.exited, child.drained               futures: it has ended; its output has ended
    child.signal(SIGTERM)                     to the whole group
    child.reap()                              its exit code; then the group id may be another's
    child.hang_up()                           its output is read no more

asyncio has subprocesses of its own. They are not used, because a process is known there only some
turns of the loop after it has started, too late for the guardian, and because it is reaped as soon
as it ends: its id, which is the id of the group, could be a stranger's by the time of a signal.
Here nothing is awaited, so there is no moment at which a cancellation could find half a child;
and of the event loop only readers are used, which all loops have and none of them owns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from journeyman.runners.output import BoundedOutput

READ_BYTES = 64 * 1024  # what a pipe holds


class Child:
    def __init__(
        self,
        argv: Sequence[bytes],
        env: Mapping[bytes, bytes],
        output: BoundedOutput,
        when_drained: Callable[[Child], object],
    ) -> None:
        """Start it. Raises OSError if that is not possible.

        ``when_drained`` is told when the last one who could write is gone, or was hung up on.
        """
        self._loop = asyncio.get_running_loop()
        self._when_drained = when_drained
        self.output = output
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self.drained: asyncio.Future[None] = self._loop.create_future()
        self._process = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        self.group = self._process.pid  # a new session: the process leads its group
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._loop.add_reader(self._pipe.fileno(), self._read)
        self._watch_exit()

    def signal(self, number: signal.Signals) -> None:
        # Gone already, or no longer ours to signal: either way there is nothing to do.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def reap(self) -> int:
        """The exit code of a process that has exited; negative: the signal that ended it."""
        return self._process.wait()

    def hang_up(self) -> None:
        """Read no more, whoever still writes."""
        if self.drained.done():
            return
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        self.drained.set_result(None)
        self._when_drained(self)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self.output.feed(data)
        else:
            self.hang_up()

    def _watch_exit(self) -> None:
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            # Not Linux, or one that is old or locked down.
            name = f"program-{self.group}"
            threading.Thread(target=self._wait_in_thread, name=name, daemon=True).start()
            return

        def ended() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self.exited.set_result(None)

        self._loop.add_reader(descriptor, ended)

    def _wait_in_thread(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self.exited.set_result, None)
